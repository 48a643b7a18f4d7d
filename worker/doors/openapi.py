"""The description of the HTTP interface, OpenAPI 3.1: kept by hand, held to the running service by tests."""

from __future__ import annotations

from worker import __version__
from worker.doors import openapi_kernel, openapi_kernel_schemas, openapi_swarm
from worker.doors.openapi_nodes import (
    OBJECT,
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
    open_to,
    operation,
    sent,
)
from worker.doors.openapi_schemas import SCHEMAS

# Reasons that every operation of a door may have to refuse.
_OF_HIRE = {
    400: "The request is malformed; nothing was charged.",
    429: "Too many requests; `Retry-After` says how long to wait.",
    431: "The headers have more than 16 kB.",
    500: "Something broke here; the request id helps the operator to find out what.",
    503: "Not possible right now; nothing was charged.",
}


def document(public_url: str, *, swarm: bool) -> Node:
    """The whole description for a worker at this address; `swarm`: its door for kernels is open."""
    paths = {**_hire(), **_ops(), **openapi_kernel.paths()}
    schemas = {**SCHEMAS, **openapi_kernel_schemas.SCHEMAS}
    schemes = dict(openapi_kernel.SCHEMES)
    if swarm:
        paths |= openapi_swarm.paths()
        schemas |= openapi_swarm.SCHEMAS
        schemes |= openapi_swarm.SCHEMES
        execute = paths["/execute"]["post"]
        execute["description"] = openapi_swarm.AT_THE_ROOT
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HIRE worker",
            "version": __version__,
            "description": "Hire a worker over HTTPS and pay it per task in USDC (x402).",
        },
        "servers": [{"url": public_url}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": schemes},
    }


def _hire() -> Node:
    contract = header("X-Contract-ID", "The id of the contract. It is a credential.", required=True)
    task_id = in_path("task_id")
    body = sent("Contract")
    task = json("Task", "The task as it stands.", headers=("PAYMENT-RESPONSE", "ETag", "Retry-After"))
    manifest = operation("manifest", "What is sold here", {200: json("Manifest", "The agent manifest.")}, {})
    well_known = {**manifest, "operationId": "manifestWellKnown"}
    return {
        "/manifest": {"get": manifest},
        "/.well-known/hire-manifest.json": {"get": well_known},
        "/contracts": {
            "post": operation(
                "draftContract",
                "Send a draft; it comes back with the worker's signature",
                {201: json("Contract", "The draft, signed by the worker.")}
                | failed(409, 413, 415, 422, 403, 410),
                _OF_HIRE,
                body=body,
            ),
            "put": operation(
                "registerContract",
                "Hand in the document with both signatures",
                {200: json("ContractView", "Both signatures are good; the contract may be executed.")}
                | failed(403, 409, 410, 413, 415, 422),
                _OF_HIRE,
                body=body,
            ),
            "get": operation(
                "getContract",
                "A contract and how far it is",
                {200: json("ContractView", "The contract.")} | failed(404),
                _OF_HIRE,
                parameters=[contract],
            ),
        },
        "/execute": {
            "post": operation(
                "execute",
                "Have the contract's task done; without a payment the answer says what it costs",
                {
                    200: task,
                    202: json("Task", "Under way.", headers=("Location", "Retry-After")),
                    402: json("PaymentRequired", "What it costs.", headers=("PAYMENT-REQUIRED",)),
                    504: json("Problem", "The work took too long; it was not charged."),
                }
                | failed(403, 404, 409, 410, 413, 415, 422),
                _OF_HIRE,
                parameters=[
                    contract,
                    header("PAYMENT-SIGNATURE", "An x402 payment for the offer of a 402."),
                    header("X-PAYMENT", "The same in version 1 of x402."),
                    header("X-Webhook-URL", "Who is told of the end if this request pays."),
                    header("Prefer", "`wait=n`, `respond-async` (RFC 7240)."),
                ],
                body={
                    "description": "The input of the task, bare.",
                    "required": True,
                    "content": {"application/json": {"schema": {}}},
                },
            )
        },
        "/tasks/{task_id}": {
            "get": operation(
                "getTask",
                "How a task stands",
                {200: task, 304: {"description": "Nothing has changed."}} | failed(404),
                _OF_HIRE,
                parameters=[task_id, contract, header("If-None-Match", "The ETag of the last answer.")],
            ),
            "delete": operation(
                "cancelTask",
                "Cancel a task",
                {200: task} | failed(404, 409),
                _OF_HIRE,
                parameters=[task_id, contract],
            ),
        },
        "/stream/{task_id}": {
            "get": operation(
                "streamTask",
                "Everything that happens, as server-sent events",
                {200: events()} | failed(404),
                _OF_HIRE,
                parameters=[
                    task_id,
                    header("X-Contract-ID", "The id of the contract, unless the address has a token."),
                    in_query("token", TEXT),
                    in_query("after_sequence", WHOLE),
                    header("Last-Event-ID", "The sequence of the last event seen."),
                ],
            )
        },
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
                _OF_HIRE if verb == "get" else {},
                parameters=[
                    *map(in_path, ("execution_id", "which", "token", "name")),
                    header("Range", "One range of bytes."),
                ],
            )
            for verb in ("get", "head")
        },
    }


def _ops() -> Node:
    status = json("Status", "It is.")
    failing = json("Status", "It is not.", headers=("Retry-After",))
    text = {"description": "Prometheus text.", "content": {"text/plain": {"schema": TEXT}}}
    whole = {"description": "This document.", "content": {"application/json": {"schema": OBJECT}}}
    unknown = {401: json("KernelProblem", "The bearer is missing or wrong.")}
    return {
        "/health": {"get": operation("health", "Is it alive", {200: status}, {})},
        "/v0/health": {"get": operation("kernelHealth", "Is it alive", {200: status}, {})},
        "/v0/ready": {
            "get": operation(
                "kernelReady",
                "Can it reach its store",
                {200: status, 503: json("KernelProblem", "It cannot.")},
                {},
            )
        },
        "/ready": {
            "get": open_to(
                operation("ready", "Is all in place", {200: status, 503: failing, **unknown}, {}), "operator"
            )
        },
        "/metrics": {
            "get": open_to(operation("metrics", "Measured values", {200: text, **unknown}, {}), "operator")
        },
        "/openapi.json": {"get": operation("openapi", "This document", {200: whole}, {})},
    }
