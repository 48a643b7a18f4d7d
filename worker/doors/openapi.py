"""The description of the HTTP interface, OpenAPI 3.1: kept by hand, held to the running service by tests."""

from __future__ import annotations

from worker import __version__
from worker.doors import openapi_hire, openapi_kernel, openapi_kernel_schemas, openapi_swarm
from worker.doors.openapi_nodes import (
    OBJECT,
    TEXT,
    Node,
    json,
    open_to,
    operation,
)
from worker.doors.openapi_schemas import SCHEMAS


def document(public_url: str, *, swarm: bool) -> Node:
    """The whole description for a worker at this address; `swarm`: its door for kernels is open."""
    paths = {**openapi_hire.paths(), **_ops(), **openapi_kernel.paths()}
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
