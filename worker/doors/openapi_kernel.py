"""The kernel door in the description of the HTTP interface: executions, agents, runners, tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.doors.openapi_kernel_schemas import AGENT_EVENTS, NAME, RUNNER_EVENTS
from worker.doors.openapi_nodes import (
    TEXT,
    WHOLE,
    Node,
    events,
    in_path,
    in_query,
    json,
    open_to,
    operation,
    sent,
)

SCHEMES: Node = {
    "operator": {"type": "http", "scheme": "bearer", "description": "KERNEL_TOKEN."},
    "participant": {
        "type": "http",
        "scheme": "bearer",
        "description": "The key of one agent or runner (AGENT_KEYS): it opens what is that one's own.",
    },
}
# Reasons that every operation of the door may have to refuse.
_ALWAYS = {
    401: "The bearer is missing or wrong, or the session is not known or has expired.",
    429: "Too many wrong bearers.",
    431: "The headers have more than 16 kB.",
    500: "Something broke here.",
    503: "The store is away, or this process takes no more streams.",
}
# Ids of runners may have slashes inside.
_RUNNER: Node = {"type": "string", "pattern": "^[^/]+(/[^/]+)*$"}
_STEP: Node = {"type": "string", "pattern": "^[^/]+$"}


def paths() -> Node:
    return {**_executions(), **_agents(), **_runners(), **_tools()}


def _executions() -> Node:
    id = in_path("id")
    execution: dict[int, Node] = {200: json("Execution", "The execution.")}
    after, limit = in_query("after_sequence", WHOLE), in_query("limit", WHOLE)
    base = "/v0/executions"
    listed = [*(in_query(name, TEXT) for name in ("status", "agent_id", "label", "cursor")), limit]
    return {
        base: {
            "post": _operators(
                "createExecution",
                "Have an agent do something",
                {201: json("Execution", "Made.")} | _refused(400, 413),
                body=sent("NewExecution"),
            ),
            "get": _operators(
                "listExecutions",
                "Executions, newest first",
                {200: json("ExecutionPage", "One page.")} | _refused(400),
                parameters=listed,
            ),
        },
        f"{base}/{{id}}": {
            "get": _operators("getExecution", "One execution", execution | _refused(404), parameters=[id])
        },
        f"{base}/{{id}}/cancel": {
            "post": _operators(
                "cancelExecution", "Cancel it", execution | _refused(404, 409), parameters=[id]
            )
        },
        f"{base}/{{id}}/signal": {
            "post": _operators(
                "signalExecution",
                "Tell it something",
                {200: json("Status", "Told.")} | _refused(400, 404, 409, 413),
                parameters=[id],
                body=sent("Signal"),
            )
        },
        f"{base}/{{id}}/events": {
            "get": _operators(
                "listEvents",
                "Its log",
                {200: json("EventPage", "Events after a sequence.")} | _refused(404),
                parameters=[id, after, limit],
            )
        },
        f"{base}/{{id}}/stream": {
            "get": _operators(
                "streamExecution",
                "Its log as it grows",
                {200: events()} | _refused(404),
                parameters=[id, after],
            )
        },
    }


def _agents() -> Node:
    return {
        "/v0/agents/stream": {
            "get": _participants(
                "agentStream",
                "Be an agent: work is assigned over this stream for as long as it is open",
                {200: events(AGENT_EVENTS)} | _refused(400),
                parameters=_connection("agent_id"),
            )
        },
        "/v0/agents/intent": {
            "post": _participants(
                "submitIntent",
                "Call a tool, wait for a signal, complete or fail; a refusal by policy is an answer too",
                {200: json("IntentAnswer", "What became of it.")} | _refused(400, 409),
                body=sent("IntentRequest"),
            )
        },
        "/v0/agents/step-result": {
            "post": _participants(
                "reportStep",
                "What became of a tool that the agent ran itself",
                {200: json("Status", "Written down.")} | _refused(400, 404, 409),
                body=sent("StepResult"),
            )
        },
    }


def _runners() -> Node:
    runner = in_path("id", _RUNNER)
    done = {200: json("Status", "Done.")}
    offered = in_query("capabilities", {**TEXT, "description": "Ids of tools, with commas between."})
    return {
        "/v0/runners/stream": {
            "get": _participants(
                "runnerStream",
                "Be a runner: jobs are assigned over this stream, one at a time",
                {200: events(RUNNER_EVENTS)} | _refused(400),
                parameters=[*_connection("runner_id"), offered],
            )
        },
        "/v0/runners/{id}/results": {
            "post": _participants(
                "submitResult",
                "What became of a job",
                done | _refused(400, 404, 409),
                parameters=[runner],
                body=sent("JobResult"),
            )
        },
        "/v0/runners/steps/{step}/started": {
            "post": _participants(
                "stepStarted",
                "The runner has begun with a step",
                done | _refused(400, 404),
                parameters=[in_path("step", _STEP)],
                body=sent("StepStarted"),
            )
        },
    }


def _tools() -> Node:
    runner = in_path("id", _RUNNER)
    gone = {204: {"description": "Done."}}
    return {
        "/v0/runners/{id}/capabilities": {
            "post": _participants(
                "updateCapabilities",
                "The tools that the runner offers from now on",
                {200: json("Status", "Done.")} | _refused(400),
                parameters=[runner],
                body=sent("ToolIds"),
            )
        },
        "/v0/runners/{id}/tools": {
            "post": _participants(
                "publishTools",
                "The same, with what each tool takes",
                gone | _refused(400),
                parameters=[runner],
                body=sent("Tools"),
            )
        },
        "/v0/runners/{id}": {
            "delete": _participants(
                "unregisterRunner", "It offers nothing any more", gone | _refused(404), parameters=[runner]
            )
        },
        "/v0/tools": {
            "get": _participants(
                "listTools",
                "All tools that runners have published",
                {200: json("ToolList", "By id.")},
                parameters=[in_query("prefix", TEXT)],
            )
        },
    }


def _refused(*statuses: int) -> dict[int, Node]:
    return {status: json("KernelProblem", "Refused.") for status in statuses}


def _operators(name: str, summary: str, answers: Mapping[int, Node], **more: Any) -> Node:
    # A participant's key is known here, and opens nothing.
    answers = _refused(403) | dict(answers)
    return open_to(operation(name, summary, answers, _ALWAYS, "KernelProblem", **more), "operator")


def _participants(name: str, summary: str, answers: Mapping[int, Node], **more: Any) -> Node:
    answers = _refused(403) | dict(answers)
    made = operation(name, summary, answers, _ALWAYS, "KernelProblem", **more)
    return open_to(made, "operator", "participant")


def _connection(name: str) -> list[Node]:
    return [in_query(name, NAME, required=True), in_query("consumer_id", NAME, required=True)]
