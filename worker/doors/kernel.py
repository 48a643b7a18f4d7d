"""The kernel door, `/v0`: executions created, listed, watched, signalled and cancelled by the operator.

Agents and runners have their own modules; this one combines them behind one bearer check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
from flask import Blueprint, Response, g, request

from worker.core.agent_keys import AGENT, RUNNER, to_rewrite
from worker.core.errors import BadRequest, Forbidden
from worker.core.states import State
from worker.doors import kernel_agents, kernel_runners
from worker.doors.answers import (
    SSE_HEADERS,
    JsonAnswer,
    PlainAnswer,
    json_answer,
    json_text,
    sse,
    this_request,
    whole,
)
from worker.doors.bearers import OPERATOR, Caller
from worker.doors.bodies import Body
from worker.doors.direct import DirectRoute
from worker.doors.hangup import bound_writes
from worker.doors.kernel_forms import body, fields_of, number, plain, refuse, required, storable
from worker.doors.own_machine import asked_from_this_machine
from worker.doors.services import KernelServices
from worker.engine.events import iso
from worker.engine.listing import Filter
from worker.engine.record import Execution, ExecutionRow

log = structlog.get_logger()

NAME = "kernel"
# Rebuno kernels from v0.6 on, and their SDKs, use the same prefix for something else.
OTHER_PROTOCOL = (
    "this is the Rebuno kernel protocol of v0.1 to v0.5 (SDK 0.2 to 0.4.8); "
    "SDKs from 0.5 on speak another one"
)
__all__ = ["NAME", "door", "refuse"]


def door(services: KernelServices) -> Blueprint:
    blueprint = Blueprint(NAME, __name__, url_prefix="/v0")
    # Load now, so that an invalid policy fails at start-up, not at its first decision.
    _ = services.policy

    @blueprint.before_request
    def authenticate() -> None:
        asked = this_request()
        g.caller = _caller(services, asked.environ, asked.endpoint or "")

    _executions(blueprint, services)
    _logs(blueprint, services)
    kernel_agents.add(blueprint, services, prefix=f"{AGENT}_")
    kernel_runners.add(blueprint, services, prefix=f"{RUNNER}_", shared=_SHARED)
    rewrite = to_rewrite(services.settings.agent_keys)
    if rewrite:
        log.warning("agent_keys.without_role", entries=rewrite)
    return blueprint


def direct_routes(services: KernelServices) -> dict[str, DirectRoute]:
    """What each execution of a remote agent asks for."""

    def route(
        endpoint: str, answer: Callable[[dict[str, Any], Caller], bytes], status: int = 200
    ) -> DirectRoute:
        def checked(environ: dict[str, Any], read: Body) -> PlainAnswer:
            caller = _caller(services, environ, endpoint)
            return PlainAnswer(answer(fields_of(read()), caller), status)

        return DirectRoute(endpoint, checked)

    def create(fields: dict[str, Any], caller: Caller) -> bytes:
        return _created(services, fields)

    def intent(fields: dict[str, Any], caller: Caller) -> bytes:
        return kernel_agents.submit_intent(services, fields, caller)

    def result(fields: dict[str, Any], caller: Caller) -> bytes:
        return kernel_agents.record_result(services, fields, caller)

    agents = f"{NAME}.{AGENT}_"
    return {
        "/v0/executions": route(f"{NAME}.create", create, 201),
        "/v0/agents/intent": route(f"{agents}intent", intent),
        "/v0/agents/step-result": route(f"{agents}step_result", result),
    }


def _caller(services: KernelServices, environ: Mapping[str, Any], endpoint: str) -> Caller:
    """Who asks, if this endpoint is open to them."""
    if "HTTP_REBUNO_SIGNATURE" in environ:
        raise BadRequest(OTHER_PROTOCOL)
    caller = services.bearers.caller(
        environ.get("REMOTE_ADDR") or "",
        environ.get("HTTP_AUTHORIZATION", ""),
        from_this_machine=asked_from_this_machine(environ),
    )
    if caller is not OPERATOR and not endpoint.startswith(OPEN_TO[caller.role]):
        raise Forbidden(f"this key is for {_WHO[caller.role]}")
    return caller


# Prefixes of endpoint names that keys of agents, of runners, or of both may call.
_SHARED = "remote_"
OPEN_TO = {role: (f"{NAME}.{role}_", f"{NAME}.{_SHARED}") for role in (AGENT, RUNNER)}
_WHO = {AGENT: "an agent", RUNNER: "a runner"}


def _executions(blueprint: Blueprint, services: KernelServices) -> None:
    executions = services.executions

    def shown(execution: Execution) -> dict[str, Any]:
        return {
            **_summary(execution),
            "input": executions.input(execution),
            "output": executions.output(execution),
        }

    @blueprint.post("/executions")
    def create() -> Response:
        return JsonAnswer(_created(services, body()), 201)

    @blueprint.get("/executions")
    def listed() -> Response:
        state = request.args.get("status", "")
        if state and state not in tuple(State):
            raise BadRequest(f'invalid status "{state[:40]}"', field="status", expected=[*State])
        labels = tuple(_label_filter(label) for label in request.args.getlist("label"))
        found = executions.rows(
            Filter(state=state, agent=request.args.get("agent_id", ""), labels=labels),
            cursor=request.args.get("cursor", ""),
            limit=number("limit", 50, most=200) or 50,
        )
        return json_answer(
            {"executions": [_summary(each) for each in found.executions], "next_cursor": found.next_cursor}
        )

    @blueprint.get("/executions/<id>")
    def get(id: str) -> Response:
        return json_answer(shown(executions.get(id)))

    @blueprint.post("/executions/<id>/cancel")
    def cancel(id: str) -> Response:
        return json_answer(shown(executions.cancel(id)))

    @blueprint.post("/executions/<id>/signal")
    def signal(id: str) -> Response:
        fields = body()
        kind = required(fields, "signal_type")
        with storable():
            executions.signal(id, kind, fields.get("payload"))
        return json_answer({"status": "ok"})


def _created(services: KernelServices, fields: dict[str, Any]) -> bytes:
    """Creates an execution, and shows it."""
    agent = plain(required(fields, "agent_id"), "agent_id")
    input, labels = fields.get("input"), _labels(fields.get("labels"))
    with storable():
        begun = services.executions.begin(agent, input, door=NAME, labels=labels)
    return json_text(
        {
            "id": begun.id,
            "status": State.PENDING if begun.assigned is None else State.RUNNING,
            "agent_id": agent,
            "labels": labels,
            "created_at": iso(begun.created),
            "updated_at": iso(begun.assigned or begun.created),
            "input": input,
            "output": None,
        }
    )


def _logs(blueprint: Blueprint, services: KernelServices) -> None:
    executions = services.executions

    @blueprint.get("/executions/<id>/events")
    def events(id: str) -> Response:
        executions.get(id)
        found = executions.events(id, number("after_sequence", 0), number("limit", 100, most=1000) or 100)
        latest = found[-1].sequence if found else 0
        return json_answer({"events": [event.shown() for event in found], "latest_sequence": latest})

    @blueprint.get("/executions/<id>/stream")
    def stream(id: str) -> Response:
        executions.get(id)
        bound_writes(request.environ)
        after = number("after_sequence", 0)
        after = max(after, whole(request.headers.get("Last-Event-ID", ""), 0))
        return Response(sse(executions.follow(id, after)), mimetype="text/event-stream", headers=SSE_HEADERS)


def _summary(execution: Execution | ExecutionRow) -> dict[str, Any]:
    return {
        "id": execution.id,
        "status": execution.state,
        "agent_id": execution.agent,
        "labels": execution.labels,
        "created_at": iso(execution.created),
        "updated_at": iso(execution.updated),
    }


def _labels(labels: Any) -> dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict):
        raise BadRequest("labels must map text to text", field="labels", expected="object of strings")
    for name, value in labels.items():
        if not isinstance(value, str):
            raise BadRequest("a label must be text", field=f"labels.{name[:80]}", expected="string")
    return labels


def _label_filter(label: str) -> tuple[str, str]:
    name, colon, value = label.partition(":")
    if not colon or not name:
        raise BadRequest(f'invalid label filter "{label[:80]}", expected key:value', field="label")
    return name, value
