"""The hire door in the description of the HTTP interface: contracts, the work, tasks, streams, files."""

from __future__ import annotations

from worker.doors.openapi_nodes import (
    ANYTHING,
    TEXT,
    WHOLE,
    Node,
    bare,
    content,
    events,
    failed,
    header,
    in_path,
    in_query,
    json,
    operation,
    sent,
)

# Reasons that every operation of a door may have to refuse.
_ALWAYS = {
    400: "The request is malformed; nothing was charged.",
    429: "Too many requests; `Retry-After` says how long to wait.",
    431: "The headers have more than 16 kB.",
    500: "Something broke here; the request id helps the operator to find out what.",
    503: "Not possible right now; nothing was charged.",
}
_CONTRACT = header("X-Contract-ID", "The id of the contract. It is a credential.", required=True)
_TASK = json("Task", "The task as it stands.", headers=("PAYMENT-RESPONSE", "ETag", "Retry-After"))


def paths() -> Node:
    return {**_contracts(), **_work(), **_tasks(), **_files()}


def _contracts() -> Node:
    manifest = operation("manifest", "What is sold here", {200: json("Manifest", "The agent manifest.")}, {})
    well_known = {**manifest, "operationId": "manifestWellKnown"}
    body = sent("Contract")
    return {
        "/manifest": {"get": manifest},
        "/.well-known/hire-manifest.json": {"get": well_known},
        "/contracts": {
            "post": operation(
                "draftContract",
                "Send a draft; it comes back with the worker's signature",
                {201: json("Contract", "The draft, signed by the worker.")}
                | failed(409, 413, 415, 422, 403, 410),
                _ALWAYS,
                body=body,
            ),
            "put": operation(
                "registerContract",
                "Hand in the document with both signatures",
                {200: json("ContractView", "Both signatures are good; the contract may be executed.")}
                | failed(403, 409, 410, 413, 415, 422),
                _ALWAYS,
                body=body,
            ),
            "get": operation(
                "getContract",
                "A contract and how far it is",
                {200: json("ContractView", "The contract.")} | failed(404),
                _ALWAYS,
                parameters=[_CONTRACT],
            ),
        },
    }


def _work() -> Node:
    return {
        "/execute": {
            "post": operation(
                "execute",
                "Have the contract's task done; without a payment the answer says what it costs",
                {
                    200: _TASK,
                    202: json("Task", "Under way.", headers=("Location", "Retry-After")),
                    402: json("PaymentRequired", "What it costs.", headers=("PAYMENT-REQUIRED",)),
                    504: json("Problem", "The work took too long; it was not charged."),
                }
                | failed(403, 404, 409, 410, 413, 415, 422),
                _ALWAYS,
                parameters=[
                    _CONTRACT,
                    header("PAYMENT-SIGNATURE", "An x402 payment for the offer of a 402."),
                    header("X-PAYMENT", "The same in version 1 of x402."),
                    header("X-Webhook-URL", "Who is told of the end if this request pays."),
                    header("Prefer", "`wait=n`, `respond-async` (RFC 7240)."),
                ],
                body={
                    "description": "The input of the task, bare.",
                    "required": True,
                    "content": {"application/json": {"schema": ANYTHING}},
                },
            )
        },
    }


def _tasks() -> Node:
    task_id = in_path("task_id")
    return {
        "/tasks/{task_id}": {
            "get": operation(
                "getTask",
                "How a task stands",
                {200: _TASK, 304: {"description": "Nothing has changed."}} | failed(404),
                _ALWAYS,
                parameters=[task_id, _CONTRACT, header("If-None-Match", "The ETag of the last answer.")],
            ),
            "delete": operation(
                "cancelTask",
                "Cancel a task",
                {200: _TASK} | failed(404, 409),
                _ALWAYS,
                parameters=[task_id, _CONTRACT],
            ),
        },
        "/stream/{task_id}": {
            "get": operation(
                "streamTask",
                "Everything that happens, as server-sent events",
                {200: events()} | failed(404),
                _ALWAYS,
                parameters=[
                    task_id,
                    header("X-Contract-ID", "The id of the contract, unless the address has a token."),
                    in_query("token", TEXT),
                    in_query("after_sequence", WHOLE),
                    header("Last-Event-ID", "The sequence of the last event seen."),
                ],
            )
        },
    }


def _files() -> Node:
    return {
        "/files/{execution_id}/{which}/{token}/{name}": {
            verb: operation(
                f"{verb}File",
                "A deliverable; its address is its key",
                {
                    200: content("The whole file."),
                    206: content("The range that was asked for."),
                    304: {"description": "Nothing has changed."},
                    412: {"description": "If-Match names another version."},
                    416: {"description": "The file has no such range."},
                }
                | (failed(403, 404) if verb == "get" else bare(403, 404)),
                _ALWAYS if verb == "get" else {},
                parameters=[
                    *map(in_path, ("execution_id", "which", "token", "name")),
                    header("Range", "One range of bytes."),
                ],
            )
            for verb in ("get", "head")
        },
    }
