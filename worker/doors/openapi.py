"""The description of the HTTP interface, OpenAPI 3.1: kept by hand, held to the running service by tests."""

from __future__ import annotations

from typing import Any

from worker import __version__
from worker.doors.openapi_schemas import SCHEMAS, ref

Node = dict[str, Any]

_TEXT: Node = {"type": "string"}
_WHOLE: Node = {"type": "integer", "minimum": 0}
# Reasons that every operation of a door may have to refuse.
_OF_HIRE = {
    400: "The request is malformed; nothing was charged.",
    429: "Too many requests; `Retry-After` says how long to wait.",
    431: "The headers have more than 16 kB.",
    500: "Something broke here; the request id helps the operator to find out what.",
    503: "Not possible right now; nothing was charged.",
}
_OF_KERNEL = {
    401: "The bearer is missing or wrong.",
    429: "Too many wrong bearers.",
    431: "The headers have more than 16 kB.",
    500: "Something broke here.",
    503: "The store is away.",
}


def document(public_url: str) -> Node:
    """The whole description for a worker at this address."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HIRE worker",
            "version": __version__,
            "description": "Hire a worker over HTTPS and pay it per task in USDC (x402).",
        },
        "servers": [{"url": public_url}],
        "paths": {**_hire(), **_ops(), **_kernel()},
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"operator": {"type": "http", "scheme": "bearer"}},
        },
    }


def _hire() -> Node:
    contract = _header("X-Contract-ID", "The id of the contract. It is a credential.", required=True)
    task_id = _in_path("task_id")
    body = {"required": True, "content": {"application/json": {"schema": ref("Contract")}}}
    task = _json("Task", "The task as it stands.", headers=("PAYMENT-RESPONSE", "ETag", "Retry-After"))
    manifest = _operation(
        "manifest", "What is sold here", {200: _json("Manifest", "The agent manifest.")}, {}
    )
    well_known = {**manifest, "operationId": "manifestWellKnown"}
    return {
        "/manifest": {"get": manifest},
        "/.well-known/hire-manifest.json": {"get": well_known},
        "/contracts": {
            "post": _operation(
                "draftContract",
                "Send a draft; it comes back with the worker's signature",
                {201: _json("Contract", "The draft, signed by the worker.")}
                | _failed(409, 413, 415, 422, 403, 410),
                _OF_HIRE,
                body=body,
            ),
            "put": _operation(
                "registerContract",
                "Hand in the document with both signatures",
                {200: _json("ContractView", "Both signatures are good; the contract may be executed.")}
                | _failed(403, 409, 410, 413, 415, 422),
                _OF_HIRE,
                body=body,
            ),
            "get": _operation(
                "getContract",
                "A contract and how far it is",
                {200: _json("ContractView", "The contract.")} | _failed(404),
                _OF_HIRE,
                parameters=[contract],
            ),
        },
        "/execute": {
            "post": _operation(
                "execute",
                "Have the contract's task done; without a payment the answer says what it costs",
                {
                    200: task,
                    202: _json("Task", "Under way.", headers=("Location", "Retry-After")),
                    402: _json("PaymentRequired", "What it costs.", headers=("PAYMENT-REQUIRED",)),
                    504: _json("Problem", "The work took too long; it was not charged."),
                }
                | _failed(403, 404, 409, 410, 413, 415, 422),
                _OF_HIRE,
                parameters=[
                    contract,
                    _header("PAYMENT-SIGNATURE", "An x402 payment for the offer of a 402."),
                    _header("X-PAYMENT", "The same in version 1 of x402."),
                    _header("X-Webhook-URL", "Who is told of the end if this request pays."),
                    _header("Prefer", "`wait=n`, `respond-async` (RFC 7240)."),
                ],
                body={
                    "description": "The input of the task, bare.",
                    "required": True,
                    "content": {"application/json": {"schema": {}}},
                },
            )
        },
        "/tasks/{task_id}": {
            "get": _operation(
                "getTask",
                "How a task stands",
                {200: task, 304: {"description": "Nothing has changed."}} | _failed(404),
                _OF_HIRE,
                parameters=[task_id, contract, _header("If-None-Match", "The ETag of the last answer.")],
            ),
            "delete": _operation(
                "cancelTask",
                "Cancel a task",
                {200: task} | _failed(404, 409),
                _OF_HIRE,
                parameters=[task_id, contract],
            ),
        },
        "/stream/{task_id}": {
            "get": _operation(
                "streamTask",
                "Everything that happens, as server-sent events",
                {200: _events()} | _failed(404),
                _OF_HIRE,
                parameters=[
                    task_id,
                    _header("X-Contract-ID", "The id of the contract, unless the address has a token."),
                    _in_query("token", _TEXT),
                    _in_query("after_sequence", _WHOLE),
                    _header("Last-Event-ID", "The sequence of the last event seen."),
                ],
            )
        },
        "/files/{execution_id}/{which}/{token}/{name}": {
            verb: _operation(
                f"{verb}File",
                "A deliverable; its address is its key",
                {
                    200: _bytes("The whole file."),
                    206: _bytes("The range that was asked for."),
                    304: {"description": "Nothing has changed."},
                    412: {"description": "If-Match names another version."},
                    416: {"description": "The file has no such range."},
                }
                | (_failed(403, 404) if verb == "get" else _bare(403, 404)),
                _OF_HIRE if verb == "get" else {},
                parameters=[
                    *map(_in_path, ("execution_id", "which", "token", "name")),
                    _header("Range", "One range of bytes."),
                ],
            )
            for verb in ("get", "head")
        },
    }


def _ops() -> Node:
    status = _json("Status", "It is.")
    failing = _json("Status", "It is not.", headers=("Retry-After",))
    operator: Node = {"security": [{"operator": []}]}
    text = {"description": "Prometheus text.", "content": {"text/plain": {"schema": _TEXT}}}
    whole = {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}
    unknown = {401: _json("KernelProblem", "The bearer is missing or wrong.")}
    return {
        "/health": {"get": _operation("health", "Is it alive", {200: status}, {})},
        "/v0/health": {"get": _operation("kernelHealth", "Is it alive", {200: status}, {})},
        "/v0/ready": {
            "get": _operation(
                "kernelReady",
                "Can it reach its store",
                {200: status, 503: _json("KernelProblem", "It cannot.")},
                {},
            )
        },
        "/ready": {
            "get": _operation("ready", "Is all in place", {200: status, 503: failing, **unknown}, {})
            | operator
        },
        "/metrics": {"get": _operation("metrics", "Measured values", {200: text, **unknown}, {}) | operator},
        "/openapi.json": {"get": _operation("openapi", "This document", {200: whole}, {})},
    }


def _kernel() -> Node:
    id = _in_path("id")
    execution: dict[int, Node] = {200: _json("Execution", "The execution.")}
    after, limit = _in_query("after_sequence", _WHOLE), _in_query("limit", _WHOLE)

    def refused(*statuses: int) -> dict[int, Node]:
        return {status: _json("KernelProblem", "Refused.") for status in statuses}

    def operation(name: str, summary: str, answers: dict[int, Node], **more: Any) -> Node:
        made = _operation(name, summary, answers, _OF_KERNEL, "KernelProblem", **more)
        return {**made, "security": [{"operator": []}]}

    def body(schema: str) -> Node:
        return {"required": True, "content": {"application/json": {"schema": ref(schema)}}}

    base = "/v0/executions"
    listed = [*(_in_query(name, _TEXT) for name in ("status", "agent_id", "label", "cursor")), limit]
    return {
        base: {
            "post": operation(
                "createExecution",
                "Have an agent do something",
                {201: _json("Execution", "Made.")} | refused(400, 413),
                body=body("NewExecution"),
            ),
            "get": operation(
                "listExecutions",
                "Executions, newest first",
                {200: _json("ExecutionPage", "One page.")} | refused(400),
                parameters=listed,
            ),
        },
        f"{base}/{{id}}": {
            "get": operation("getExecution", "One execution", execution | refused(404), parameters=[id])
        },
        f"{base}/{{id}}/cancel": {
            "post": operation("cancelExecution", "Cancel it", execution | refused(404, 409), parameters=[id])
        },
        f"{base}/{{id}}/signal": {
            "post": operation(
                "signalExecution",
                "Tell it something",
                {200: _json("Status", "Told.")} | refused(400, 404, 409, 413),
                parameters=[id],
                body=body("Signal"),
            )
        },
        f"{base}/{{id}}/events": {
            "get": operation(
                "listEvents",
                "Its log",
                {200: _json("EventPage", "Events after a sequence.")} | refused(404),
                parameters=[id, after, limit],
            )
        },
        f"{base}/{{id}}/stream": {
            "get": operation(
                "streamExecution",
                "Its log as it grows",
                {200: _events()} | refused(404),
                parameters=[id, after],
            )
        },
    }


def _operation(
    name: str,
    summary: str,
    answers: dict[int, Node],
    always: dict[int, str],
    problem: str = "Problem",
    *,
    parameters: list[Node] | None = None,
    body: Node | None = None,
) -> Node:
    refused = {status: _json(problem, why) for status, why in always.items()}
    made: Node = {
        "operationId": name,
        "summary": summary,
        "responses": {str(status): answer for status, answer in sorted({**refused, **answers}.items())},
    }
    if parameters:
        made["parameters"] = parameters
    if body:
        made["requestBody"] = body
    return made


def _json(schema: str, description: str, headers: tuple[str, ...] = ()) -> Node:
    made: Node = {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
    if headers:
        made["headers"] = {name: {"schema": _TEXT} for name in headers}
    return made


def _failed(*statuses: int) -> dict[int, Node]:
    return {status: _json("Problem", "Refused, or failed; the code says why.") for status in statuses}


def _bare(*statuses: int) -> dict[int, Node]:
    return {status: {"description": "Refused."} for status in statuses}


def _bytes(description: str) -> Node:
    return {"description": description, "content": {"*/*": {}}}


def _events() -> Node:
    return {"description": "Events.", "content": {"text/event-stream": {"schema": _TEXT}}}


def _header(name: str, description: str, *, required: bool = False) -> Node:
    return {
        "in": "header",
        "name": name,
        "required": required,
        "description": description,
        "schema": _TEXT,
    }


def _in_path(name: str) -> Node:
    return {"in": "path", "name": name, "required": True, "schema": {**_TEXT, "minLength": 1}}


def _in_query(name: str, schema: Node) -> Node:
    return {"in": "query", "name": name, "required": False, "schema": schema}
