"""A fake language model behind the chat endpoint that answers in the shape of the given schema."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.fakes import openai_server as upstream
from tests.fakes.openai_server import DONE, Handler, Reply, event, says

EARLIER = re.compile(r'"reuse_payload": \{"answer": "([^"]*)"')


def answers(handler: Handler) -> None:
    """A capable model's answer, streamed in pieces."""
    says(json.dumps(_answer(handler.server.endpoint.requests[-1][2]["messages"])))(handler)


def fenced(handler: Handler) -> None:
    """The same in a code fence, after some reasoning."""
    text = json.dumps(_answer(handler.server.endpoint.requests[-1][2]["messages"]))
    says(f"<think>Is it {{so}}?</think>Certainly!\n```json\n{text}\n```\nIs there more?")(handler)


def twice(first: Reply) -> Reply:
    """Misbehaves on the first request of each task, and answers the next one."""
    met: set[str] = set()

    def reply(handler: Handler) -> None:
        task = handler.server.endpoint.requests[-1][2]["messages"][1]["content"]
        again = task in met
        met.add(task)  # before the answer, because the next request follows at once
        (answers if again else first)(handler)

    return reply


MODELS: dict[str, Reply] = {
    "behaves": answers,
    "talks": fenced,
    "forgets the form": twice(says("I would say four.")),
    "forgets a key": twice(says("{}")),
    "gets types wrong": twice(says('{"answer": 4, "decision": 7, "confidence": "high"}')),
    "says nothing": twice(upstream.chunked(event(None, "content_filter"), DONE)),
    "is busy": twice(upstream.refuses(503)),
    "breaks off": twice(upstream.chunked(event('{"answer":'))),
}


def _answer(messages: list[dict[str, str]]) -> dict[str, Any]:
    schema = json.loads(messages[0]["content"].partition("JSON Schema:\n")[2])
    asked = json.loads(messages[1]["content"])
    inputs = asked["inputs"]
    topic = inputs.get("source_message") or {}
    [proposal] = inputs.get("candidate_proposals") or [{}]
    earlier = EARLIER.search(messages[1]["content"])
    known: dict[str, Any] = {
        "answer": earlier[1] if earlier and "Stage DECIDE" in messages[0]["content"] else "four",
        "decision": "REJECT",
        "confidence": 0.9,
        "source_message_id": topic.get("message_id"),
        **{name: proposal.get(name) for name in ("proposal_id", "proposal_message_id")},
        "stance": "support",
        "summary": "It is cheaper.",
        "needs_review": False,
    }
    wanted = [*schema.get("properties", {}), *schema.get("required", [])]
    return {name: known[name] for name in wanted if name in known}
