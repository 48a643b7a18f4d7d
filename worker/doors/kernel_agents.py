"""Agent routes of the kernel door: stream, intents, results of the agents' own tools."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, request

from worker.core.errors import BadRequest
from worker.core.ids import is_id
from worker.doors.answers import SSE_HEADERS, JsonAnswer, json_text
from worker.doors.bearers import Caller, only
from worker.doors.hangup import client_of
from worker.doors.kernel_forms import body, flag, plain, query, required, storable, text
from worker.doors.services import KernelServices
from worker.remote.intent import Intent
from worker.remote.payloads import MOST_ERROR
from worker.remote.refusals import SessionNotFound


def add(blueprint: Blueprint, services: KernelServices, *, prefix: str) -> None:
    @blueprint.get("/agents/stream", endpoint=f"{prefix}stream")
    def stream() -> Response:
        agent, consumer = query("agent_id", "consumer_id")
        only(g.caller, agent)
        services.streams.refuse_when_full()
        frames = services.streams.agent(agent, consumer, client_of(request.environ))
        return Response(frames, mimetype="text/event-stream", headers=SSE_HEADERS)

    @blueprint.post("/agents/intent", endpoint=f"{prefix}intent")
    def intent() -> Response:
        return JsonAnswer(submit_intent(services, body(), g.caller))

    @blueprint.post("/agents/step-result", endpoint=f"{prefix}step_result")
    def step_result() -> Response:
        return JsonAnswer(record_result(services, body(), g.caller))


def submit_intent(services: KernelServices, fields: dict[str, Any], caller: Caller) -> bytes:
    with storable():
        return services.intents.submit(_intent(fields, caller)) + b"\n"


def record_result(services: KernelServices, fields: dict[str, Any], caller: Caller) -> bytes:
    id, session = required(fields, "execution_id", most=0), required(fields, "session_id", most=0)
    step = required(fields, "step_id", most=0)
    success, error = flag(fields, "success"), text(fields, "error", most=0)
    _known(id, session)
    with storable():
        services.intents.step_result(
            id, session, step, success=success, data=fields.get("data"), error=error, caller=caller.name
        )
    return json_text({"status": "ok"})


def _intent(fields: dict[str, Any], caller: Caller) -> Intent:
    id, session = required(fields, "execution_id", most=0), required(fields, "session_id", most=0)
    about = fields.get("intent")
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
        caller=caller.name,
    )
    _known(id, session)
    return read


def _known(id: str, session: str) -> None:
    """Refuses malformed ids before they become store keys."""
    if not is_id(id) or not is_id(session):
        raise SessionNotFound(f"session {session[:256]}")
