"""The agents' part of the kernel door: their stream, their intents, the results of their own tools."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, request

from worker.bearers import only
from worker.doors.answers import SSE_HEADERS, json_answer
from worker.doors.hangup import client_of
from worker.doors.kernel_forms import body, flag, plain, query, required, storable, text
from worker.errors import BadRequest
from worker.executions.intents import Intent
from worker.executions.payloads import MOST_ERROR
from worker.executions.refusals import SessionNotFound
from worker.ids import is_id
from worker.parts import Parts


def add(blueprint: Blueprint, parts: Parts, *, prefix: str) -> None:
    @blueprint.get("/agents/stream", endpoint=f"{prefix}agent_stream")
    def stream() -> Response:
        agent, consumer = query("agent_id", "consumer_id")
        only(g.caller, agent)
        parts.streams.refuse_when_full()
        frames = parts.streams.agent(agent, consumer, client_of(request.environ))
        return Response(frames, mimetype="text/event-stream", headers=SSE_HEADERS)

    @blueprint.post("/agents/intent", endpoint=f"{prefix}intent")
    def intent() -> Response:
        given = body()
        with storable():
            answer = parts.intents.submit(_intent(given))
        return Response(answer + b"\n", mimetype="application/json")

    @blueprint.post("/agents/step-result", endpoint=f"{prefix}step_result")
    def step_result() -> Response:
        given = body()
        id, session = required(given, "execution_id", most=0), required(given, "session_id", most=0)
        step = required(given, "step_id", most=0)
        success, error = flag(given, "success"), text(given, "error", most=0)
        _known(id, session)
        with storable():
            parts.intents.step_result(
                id, session, step, success=success, data=given.get("data"), error=error, caller=g.caller
            )
        return json_answer({"status": "ok"})


def _intent(given: dict[str, Any]) -> Intent:
    id, session = required(given, "execution_id", most=0), required(given, "session_id", most=0)
    about = given.get("intent")
    if about is not None and not isinstance(about, dict):
        raise BadRequest("intent must be an object", field="intent", expected="object")
    about = about or {}

    def of(name: str, most: int = 256) -> str:
        return text(about, name, shown=f"intent.{name}", most=most)

    read = Intent(
        id=id,
        session=session,
        type=required(about, "type", shown="intent.type", most=0),
        tool=plain(of("tool_id"), "intent.tool_id"),
        arguments=about.get("arguments"),
        has_arguments=about.get("arguments") is not None,
        key=of("idempotency_key", most=0),
        signal_type=of("signal_type"),
        output=about.get("output"),
        error=of("error", MOST_ERROR),
        remote=flag(about, "remote", shown="intent.remote"),
        caller=g.caller,
    )
    _known(id, session)
    return read


def _known(id: str, session: str) -> None:
    """Names that cannot be ours lead to no key of the store."""
    if not is_id(id) or not is_id(session):
        raise SessionNotFound(f"session {session[:256]}")
