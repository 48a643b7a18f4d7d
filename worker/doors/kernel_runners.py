"""The runners' part of the kernel door: their stream, the results of their jobs, what they can do."""

from __future__ import annotations

import re
from typing import Any

from flask import Blueprint, Response, g, request

from worker.bearers import only
from worker.doors.answers import SSE_HEADERS, json_answer
from worker.doors.hangup import client_of
from worker.doors.kernel_forms import MOST_ID, body, flag, plain, query, required, storable, text
from worker.errors import BadRequest
from worker.executions.runners import JobResult
from worker.parts import Parts

MOST_TOOLS = 1_000
_TIME = re.compile(
    r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]\d\d:\d\d)",
    re.ASCII,
)


def add(blueprint: Blueprint, parts: Parts, *, prefix: str) -> None:
    _jobs(blueprint, parts, prefix)
    _offers(blueprint, parts, prefix)


def _jobs(blueprint: Blueprint, parts: Parts, prefix: str) -> None:
    """Where jobs come from and go to."""
    runners = parts.remote.runners

    @blueprint.get("/runners/stream", endpoint=f"{prefix}runner_stream")
    def stream() -> Response:
        runner, consumer = query("runner_id", "consumer_id")
        only(g.caller, runner)
        tools = [tool.strip() for tool in request.args.get("capabilities", "").split(",")]
        wanted = _tools([tool for tool in tools if tool])
        parts.streams.refuse_when_full()
        frames = parts.streams.runner(runner, consumer, wanted, client_of(request.environ))
        return Response(frames, mimetype="text/event-stream", headers=SSE_HEADERS)

    @blueprint.post("/runners/<path:id>/results", endpoint=f"{prefix}result")
    def job_result(id: str) -> Response:
        only(g.caller, id)
        given = body()
        result = JobResult(
            job=required(given, "job_id"),
            id=required(given, "execution_id", most=0),
            step=required(given, "step_id", most=0),
            success=flag(given, "success"),
            data=given.get("data"),
            error=text(given, "error", most=0),
            retryable=flag(given, "retryable"),
        )
        text(given, "consumer_id")
        for name in ("started_at", "completed_at"):
            _time(given, name)
        with storable():
            runners.result(result, g.caller)
        return json_answer({"status": "ok"})

    @blueprint.post("/runners/steps/<step>/started", endpoint=f"{prefix}started")
    def started(step: str) -> Response:
        given = body()
        execution, runner = required(given, "execution_id", most=0), required(given, "runner_id")
        only(g.caller, runner)
        runners.started(execution, step, runner, g.caller)
        return json_answer({"status": "ok"})


def _offers(blueprint: Blueprint, parts: Parts, prefix: str) -> None:
    """What runners can do."""
    runners = parts.remote.runners

    @blueprint.post("/runners/<path:id>/capabilities", endpoint=f"{prefix}capabilities")
    def capabilities(id: str) -> Response:
        only(g.caller, id)
        runners.update_all(id, _tools(body().get("tools") or []))
        return json_answer({"status": "ok"})

    @blueprint.post("/runners/<path:id>/tools", endpoint=f"{prefix}publish")
    def publish(id: str) -> Response:
        only(g.caller, id)
        given = body().get("tools") or []
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise BadRequest("tools must be a list of objects", field="tools", expected="array of objects")
        _tools([required(each, "id") for each in given])
        with storable():
            runners.publish(plain(id, "runner_id"), [_schema(each) for each in given])
        return Response(status=204)

    @blueprint.get("/tools", endpoint=f"{prefix}tools")
    def tools() -> Response:
        return json_answer(runners.tools(request.args.get("prefix", "")))

    @blueprint.delete("/runners/<path:id>", endpoint=f"{prefix}unregister")
    def unregister(id: str) -> Response:
        only(g.caller, id)
        runners.unregister(id)
        return Response(status=204)


def _tools(given: Any) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise BadRequest("tools must be a list of texts", field="tools", expected="array of strings")
    if len(given) > MOST_TOOLS:
        raise BadRequest(
            "too many tools", field="tools", expected=f"at most {MOST_TOOLS}", received=len(given)
        )
    for tool in given:
        if len(tool.encode()) > MOST_ID:
            raise BadRequest(f"tool_id exceeds maximum length of {MOST_ID} characters", field="tools")
        plain(tool, "tools")
    return given


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    return {
        "id": tool["id"],
        "description": text(tool, "description", most=0),
        "input_schema": {} if schema is None else schema,
    }


def _time(given: dict[str, Any], name: str) -> None:
    value = text(given, name, most=64)
    if value and not _TIME.fullmatch(value):
        raise BadRequest(f"{name} must be an RFC 3339 time", field=name)
