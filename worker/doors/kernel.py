"""The kernel door, `/v0`: executions created, listed, watched, signalled and cancelled by the operator.

Agents and runners have files of their own; here they are put together under one check of bearers.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, request

from worker.bearers import OPERATOR
from worker.doors import kernel_agents, kernel_runners
from worker.doors.answers import SSE_HEADERS, json_answer, sse, whole
from worker.doors.hangup import bound_writes
from worker.doors.kernel_forms import body, number, plain, render_problem, required, storable
from worker.errors import BadRequest, Forbidden
from worker.executions.events import iso
from worker.executions.record import Execution
from worker.executions.service import Filter
from worker.executions.states import State
from worker.parts import Parts

NAME = "kernel"
__all__ = ["NAME", "door", "render_problem"]


def door(parts: Parts) -> Blueprint:
    blueprint = Blueprint(NAME, __name__, url_prefix="/v0")
    # Read now: a policy with errors ends the start, not the first call that it should decide.
    _ = parts.policy

    @blueprint.before_request
    def authenticate() -> None:
        g.caller = parts.bearers.caller(request.remote_addr or "", request.headers.get("Authorization", ""))
        if g.caller != OPERATOR and not (request.endpoint or "").startswith(f"{NAME}.{OPEN}"):
            raise Forbidden("this key is for an agent or a runner")

    _executions(blueprint, parts)
    _logs(blueprint, parts)
    kernel_agents.add(blueprint, parts, prefix=OPEN)
    kernel_runners.add(blueprint, parts, prefix=OPEN)
    return blueprint


# Endpoints whose name begins so are open to the keys of agents and runners too.
OPEN = "remote_"


def _executions(blueprint: Blueprint, parts: Parts) -> None:
    executions = parts.executions

    def shown(execution: Execution) -> dict[str, Any]:
        return {
            **_summary(execution),
            "input": executions.input(execution),
            "output": executions.output(execution),
        }

    @blueprint.post("/executions")
    def create() -> Response:
        given = body()
        agent = plain(required(given, "agent_id"), "agent_id")
        input, labels = given.get("input"), _labels(given.get("labels"))
        with storable():
            begun = executions.begin(agent, input, door=NAME, labels=labels)
        return json_answer(
            {
                "id": begun.id,
                "status": State.PENDING if begun.assigned is None else State.RUNNING,
                "agent_id": agent,
                "labels": labels,
                "created_at": iso(begun.created),
                "updated_at": iso(begun.assigned or begun.created),
                "input": input,
                "output": None,
            },
            201,
        )

    @blueprint.get("/executions")
    def listed() -> Response:
        state = request.args.get("status", "")
        if state and state not in tuple(State):
            raise BadRequest(f'invalid status "{state[:40]}"', field="status", expected=[*State])
        labels = tuple(_label_filter(given) for given in request.args.getlist("label"))
        found = executions.page(
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
        given = body()
        kind = required(given, "signal_type")
        with storable():
            executions.signal(id, kind, given.get("payload"))
        return json_answer({"status": "ok"})


def _logs(blueprint: Blueprint, parts: Parts) -> None:
    executions = parts.executions

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


def _summary(execution: Execution) -> dict[str, Any]:
    return {
        "id": execution.id,
        "status": execution.state,
        "agent_id": execution.agent,
        "labels": execution.labels,
        "created_at": iso(execution.created),
        "updated_at": iso(execution.updated),
    }


def _labels(given: Any) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BadRequest("labels must map text to text", field="labels", expected="object of strings")
    for name, value in given.items():
        if not isinstance(value, str):
            raise BadRequest("a label must be text", field=f"labels.{name[:80]}", expected="string")
    return given


def _label_filter(given: str) -> tuple[str, str]:
    name, colon, value = given.partition(":")
    if not colon or not name:
        raise BadRequest(f'invalid label filter "{given[:80]}", expected key:value', field="label")
    return name, value
