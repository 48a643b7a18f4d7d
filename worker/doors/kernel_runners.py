"""Runner routes of the kernel door: stream, job results, tools."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, g, request

from worker.core.errors import BadRequest
from worker.doors.answers import SSE_HEADERS, json_answer
from worker.doors.bearers import may_offer, only
from worker.doors.hangup import client_of
from worker.doors.kernel_forms import MOST_ID, body, flag, plain, query, required, storable, text
from worker.doors.services import KernelServices
from worker.remote.runners import JobResult

MOST_TOOLS = 1_000
_TIME = re.compile(
    r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]\d\d:\d\d)",
    re.ASCII,
)


def add(blueprint: Blueprint, services: KernelServices, *, prefix: str, shared: str) -> None:
    """`shared` is the prefix of endpoints that agents use too."""
    _jobs(blueprint, services, prefix)
    _offers(blueprint, services, prefix)

    @blueprint.get("/tools", endpoint=f"{shared}tools")
    def tools() -> Response:
        return json_answer(services.runners.tools(request.args.get("prefix", "")))


def _jobs(blueprint: Blueprint, services: KernelServices, prefix: str) -> None:
    """Routes for jobs and their results."""
    runners = services.runners

    @blueprint.get("/runners/stream", endpoint=f"{prefix}stream")
    def stream() -> Response:
        runner, consumer = query("runner_id", "consumer_id")
        only(g.caller, runner)
        tools = [tool.strip() for tool in request.args.get("capabilities", "").split(",")]
        wanted = _tools([tool for tool in tools if tool])
        may_offer(g.caller, wanted)
        services.streams.refuse_when_full()
        frames = services.streams.runner(runner, consumer, wanted, client_of(request.environ))
        return Response(frames, mimetype="text/event-stream", headers=SSE_HEADERS)

    @blueprint.post("/runners/<path:id>/results", endpoint=f"{prefix}result")
    def job_result(id: str) -> Response:
        only(g.caller, id)
        fields = body()
        result = JobResult(
            job=required(fields, "job_id"),
            id=required(fields, "execution_id", most=0),
            step=required(fields, "step_id", most=0),
            success=flag(fields, "success"),
            data=fields.get("data"),
            error=text(fields, "error", most=0),
            retryable=flag(fields, "retryable"),
        )
        text(fields, "consumer_id")
        for name in ("started_at", "completed_at"):
            _time(fields, name)
        with storable():
            runners.result(result, g.caller.name)
        return json_answer({"status": "ok"})

    @blueprint.post("/runners/steps/<step>/started", endpoint=f"{prefix}started")
    def started(step: str) -> Response:
        fields = body()
        execution, runner = required(fields, "execution_id", most=0), required(fields, "runner_id")
        only(g.caller, runner)
        runners.started(execution, step, runner, g.caller.name)
        return json_answer({"status": "ok"})


def _offers(blueprint: Blueprint, services: KernelServices, prefix: str) -> None:
    """Routes for the tools that runners offer."""
    runners = services.runners

    @blueprint.post("/runners/<path:id>/capabilities", endpoint=f"{prefix}capabilities")
    def capabilities(id: str) -> Response:
        only(g.caller, id)
        wanted = _tools(body().get("tools") or [])
        may_offer(g.caller, wanted)
        runners.update_all(id, wanted)
        return json_answer({"status": "ok"})

    @blueprint.post("/runners/<path:id>/tools", endpoint=f"{prefix}publish")
    def publish(id: str) -> Response:
        only(g.caller, id)
        tools = body().get("tools") or []
        if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
            raise BadRequest("tools must be a list of objects", field="tools", expected="array of objects")
        may_offer(g.caller, _tools([required(each, "id") for each in tools]))
        with storable():
            runners.publish(plain(id, "runner_id"), [_schema(each) for each in tools])
        return Response(status=204)

    @blueprint.delete("/runners/<path:id>", endpoint=f"{prefix}unregister")
    def unregister(id: str) -> Response:
        only(g.caller, id)
        runners.unregister(id)
        return Response(status=204)


def _tools(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise BadRequest("tools must be a list of texts", field="tools", expected="array of strings")
    if len(names) > MOST_TOOLS:
        raise BadRequest(
            "too many tools", field="tools", expected=f"at most {MOST_TOOLS}", received=len(names)
        )
    for tool in names:
        if len(tool.encode()) > MOST_ID:
            raise BadRequest(f"tool_id exceeds maximum length of {MOST_ID} characters", field="tools")
        plain(tool, "tools")
    return names


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    return {
        "id": tool["id"],
        "description": text(tool, "description", most=0),
        "input_schema": {} if schema is None else schema,
    }


def _time(fields: dict[str, Any], name: str) -> None:
    value = text(fields, name, most=64)
    if value and not _TIME.fullmatch(value):
        raise BadRequest(f"{name} must be an RFC 3339 time", field=name)
