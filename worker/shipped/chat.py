"""The chat agent: any OpenAI-compatible endpoint behind a capability, streamed token by token.

In a swarm it proposes: it asks the model for JSON of the task's schema, and checks what comes back.

It is registered only where CHAT_BASE_URL and CHAT_MODEL are set; CHAT_API_KEY is optional. A value under
the same name in the job's settings wins, so a profile can name another model. Neither the key nor a word
of the endpoint's error text ever reaches a seeker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

from worker.capabilities.declare import agent
from worker.core.errors import Failed, InvalidInput, Transient
from worker.shipped.completions import Endpoint, stream
from worker.shipped.proposal import Message, propose

if TYPE_CHECKING:
    from worker.agents.job import Job

MAX_CHARS = 200_000
MAX_MESSAGES = 100
MAX_TOKENS = 32_768
ROLES = ("system", "user", "assistant")
TIME_LIMIT = 120
# What is kept back from the time limit, so that a slow endpoint fails here and not by a killed process.
MARGIN = 2.0
INTERRUPTED = ("CHAT_INTERRUPTED", "the answer broke off after it had begun; ask again for a whole one")

INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "maxLength": MAX_CHARS},
        "messages": {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_MESSAGES,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {
                    "role": {"type": "string", "enum": list(ROLES)},
                    "content": {"type": "string", "minLength": 1},
                },
                "additionalProperties": False,
            },
        },
        "max_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    },
    # A swarm's inputs have keys of their own; in a conversation an unknown key is refused all the same.
    "additionalProperties": True,
}


def chat(job: Job) -> Any:
    """A conversation, streamed; for a swarm's kernel an answer in JSON of its schema."""
    if job.swarm is None:
        return _conversation(job)
    endpoint, left = _endpoint(job.settings), job.seconds_left
    job.progress(0.1, "asking")

    def ask(messages: list[Message]) -> str:
        try:
            return "".join(stream(endpoint, {"messages": messages}, lambda: _remaining(left())))
        except Failed as failed:
            if failed.code != "CHAT_EMPTY":
                raise
            # Worth being asked once more, like any other answer that does not fit.
            return ""

    return propose(job, ask)


def _conversation(job: Job) -> Iterator[str]:
    """Pass the conversation on and yield what comes back.

    A model does not say the same twice, so an answer cannot be taken up by another run: a fault before
    its first word is a passing one, a fault after it ends the task.
    """
    body = request_body(job.input)
    endpoint = _endpoint(job.settings)
    left = job.seconds_left
    mine = uuid4().hex
    begun = False
    try:
        for text in stream(endpoint, body, lambda: _remaining(left())):
            if not begun and job.once("answering", lambda: mine) != mine:
                raise Failed(*INTERRUPTED)
            begun = True
            yield text
    except Transient:
        if begun:
            raise Failed(*INTERRUPTED) from None
        raise


def register(environ: Mapping[str, str]) -> bool:
    """Offer the capability when an endpoint and a model are configured."""
    if not environ.get("CHAT_BASE_URL") or not environ.get("CHAT_MODEL"):
        return False
    declare: Callable[[Any], Any] = agent(
        "chat",
        price="0.05",
        description="A conversation with a language model, streamed.",
        input_schema=INPUT_SCHEMA,
        output_schema=None,
        inline=False,
        stream=True,
        example_input={"prompt": "Name three uses of a lighthouse.", "max_tokens": 200},
        example_output="A lighthouse warns ships, marks a harbour, and gives keepers a home.",
        model=environ["CHAT_MODEL"],
        time_limit=TIME_LIMIT,
    )
    declare(chat)
    return True


def request_body(given: Any) -> dict[str, Any]:
    """The messages and limits to send; exactly one of prompt and messages must be there."""
    if not isinstance(given, dict):
        raise InvalidInput(field="", expected="an object", received=type(given).__name__)
    prompt, messages = given.get("prompt"), given.get("messages")
    if (prompt is None) == (messages is None):
        received = "neither" if prompt is None else "both"
        raise InvalidInput(field="prompt", expected="either prompt or messages", received=received)
    unknown = sorted(set(given) - set(INPUT_SCHEMA["properties"]))
    if unknown:
        known = ", ".join(INPUT_SCHEMA["properties"])
        raise InvalidInput(field=unknown[0][:60], expected=f"one of {known}", received="an unknown key")
    if messages is None:
        messages = [{"role": "user", "content": prompt}]
        _text(prompt, "prompt")
    elif not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidInput(
            field="messages", expected=f"1 to {MAX_MESSAGES} messages", received=_kind(messages)
        )
    body: dict[str, Any] = {"messages": [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]}
    if sum(len(m["content"]) for m in body["messages"]) > MAX_CHARS:
        raise InvalidInput(field="messages", expected=f"at most {MAX_CHARS} characters", received="more")
    tokens, temperature = given.get("max_tokens"), given.get("temperature")
    if tokens is not None:
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= MAX_TOKENS:
            raise InvalidInput(field="max_tokens", expected=f"1 to {MAX_TOKENS}", received=_kind(tokens))
        body["max_tokens"] = tokens
    if temperature is not None:
        if (
            not isinstance(temperature, int | float)
            or isinstance(temperature, bool)
            or not 0 <= temperature <= 2
        ):
            raise InvalidInput(
                field="temperature", expected="a number from 0 to 2", received=_kind(temperature)
            )
        body["temperature"] = temperature
    return body


def _message(message: Any, field: str) -> dict[str, str]:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise InvalidInput(field=field, expected="an object with role and content", received=_kind(message))
    if message["role"] not in ROLES:
        raise InvalidInput(
            field=f"{field}.role", expected="one of " + ", ".join(ROLES), received=_kind(message["role"])
        )
    return {"role": message["role"], "content": _text(message["content"], f"{field}.content")}


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_CHARS:
        raise InvalidInput(
            field=field, expected=f"text of 1 to {MAX_CHARS} characters", received=_kind(value)
        )
    return value


def _endpoint(settings: Mapping[str, Any]) -> Endpoint:
    def setting(name: str) -> str:
        value = settings.get(name) or os.environ.get(name) or ""
        return value.strip() if isinstance(value, str) else ""

    base, model, key = setting("CHAT_BASE_URL"), setting("CHAT_MODEL"), setting("CHAT_API_KEY")
    try:
        parts = urlsplit(base)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and not parts.username
    except ValueError:
        usable = False
    if not usable or not model or not key.isascii() or not key.isprintable():
        raise Failed("CHAT_NOT_CONFIGURED", "the chat endpoint is not configured correctly on this worker")
    return Endpoint(url=base.rstrip("/") + "/chat/completions", model=model, key=key)


def _remaining(seconds: float | None) -> float:
    return TIME_LIMIT - MARGIN if seconds is None else seconds - MARGIN


def _kind(value: Any) -> str:
    """What was received, without repeating a conversation."""
    if isinstance(value, str):
        return f"{len(value)} characters"
    return str(value)[:40] if isinstance(value, int | float) else type(value).__name__


register(os.environ)
