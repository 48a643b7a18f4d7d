"""Translates OpenAI's chat completions: a request into the chat agent's input, its text into answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.core.canonical import parse
from worker.core.errors import InvalidInput
from worker.engine.events import one_line

DONE = "data: [DONE]\n\n"
HEARTBEAT = ":heartbeat\n\n"
# A hundred messages in parts; a conversation is read before anything is known of its sender.
MOST_VALUES = 2_000
# What this door understands; of the rest a buyer would pay for something else than was asked for.
_KNOWN = (
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "stream",
    "stream_options",
    "n",
    "user",
)


@dataclass(frozen=True)
class ChatRequest:
    """A request as the agent takes it; `stream` says how its answer is sent."""

    model: str
    input: dict[str, Any]
    stream: bool


def read_request(raw: bytes) -> ChatRequest:
    """Reads the body; refuses what the agent cannot do."""
    body = parse(raw, max_values=MOST_VALUES)
    if not isinstance(body, dict):
        raise InvalidInput(field="", expected="an object", received=type(body).__name__)
    given = {name: value for name, value in body.items() if value is not None}
    for name in given:
        if name not in _KNOWN:
            expected = "one of " + ", ".join(_KNOWN)
            raise InvalidInput("this parameter has no effect here", field=name[:60], expected=expected)
    if given.get("n", 1) != 1:
        raise InvalidInput(field="n", expected=1, received=str(given["n"])[:20])
    if not isinstance(given.get("model"), str):
        raise InvalidInput(field="model", expected="the name of a model")
    if not isinstance(given.get("stream", False), bool):
        raise InvalidInput(field="stream", expected="true or false")
    return ChatRequest(given["model"], _input(given), given.get("stream", False))


def _input(given: Mapping[str, Any]) -> dict[str, Any]:
    messages = given.get("messages")
    found: dict[str, Any] = {
        "messages": [_message(each) for each in messages] if isinstance(messages, list) else messages
    }
    most = given.get("max_completion_tokens", given.get("max_tokens"))
    if most is not None:
        found["max_tokens"] = most
    if "temperature" in given:
        found["temperature"] = given["temperature"]
    return found


def _message(message: Any) -> Any:
    """The message with a plain text; what cannot be one is left to the agent's schema."""
    if not isinstance(message, dict):
        return message
    role, content = message.get("role"), message.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


@dataclass(frozen=True)
class ChatAnswer:
    """The answers about one task. `credentials`: what reads the task later."""

    task_id: str
    created: int
    model: str
    credentials: Mapping[str, str]

    def whole(self, text: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {**self._common("chat.completion"), "choices": [choice]}

    def begin(self) -> str:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> str:
        return self._chunk({"content": text})

    def end(self) -> str:
        return self._chunk({}, "stop") + DONE

    def broken(self, error: Mapping[str, Any]) -> str:
        """An error after the stream has begun."""
        return _frame({"error": dict(error), "task_id": self.task_id, **self.credentials})

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _frame({**self._common("chat.completion.chunk"), "choices": [choice]})

    def _common(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.task_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "task_id": self.task_id,
            **self.credentials,
        }


def _frame(data: Mapping[str, Any]) -> str:
    return f"data: {one_line(json.dumps(data, ensure_ascii=False, separators=(',', ':')))}\n\n"
