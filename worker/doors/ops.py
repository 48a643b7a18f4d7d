"""The ops door: health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, request

from worker.capabilities.declare import Capability
from worker.core.errors import Unauthorized
from worker.core.states import Lane
from worker.doors.answers import json_answer
from worker.doors.bearers import OPERATOR
from worker.doors.metrics import render
from worker.doors.openapi.documents import operator_document, seeker_document
from worker.doors.own_machine import asked_from_this_machine
from worker.doors.services import OpsServices
from worker.payments.attention import attention
from worker.store.health import REFUSES, SILENT, UNREACHABLE
from worker.store.outage import StoreError, note
from worker.store.request_counts import RequestCounts

NAME = "ops"
# A clock that has not ticked for this long counts as stopped.
CLOCK_SECONDS = 10.0
BROKEN = "broken; see the log"
# The store is unusable in these states.
_AWAY = (UNREACHABLE, SILENT, REFUSES)


@dataclass(frozen=True, slots=True)
class ReadinessCheck:
    """One readiness check."""

    name: str
    run: Callable[[], str]
    uses_store: bool = True


def door(services: OpsServices, counts: RequestCounts) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)
    checks = [
        ReadinessCheck("store", services.store_health.check),
        ReadinessCheck("queue", lambda: _check_queue(services)),
        ReadinessCheck("clock", lambda: _check_clock(services)),
        ReadinessCheck("work", lambda: _check_work(services)),
        ReadinessCheck("books", lambda: _check_books(services)),
        ReadinessCheck("files", services.storage.check, uses_store=False),
    ]

    @blueprint.get("/health")
    @blueprint.get("/v0/health")
    def health() -> Response:
        return json_answer({"status": "ok"})

    @blueprint.get("/v0/ready")
    def store_ready() -> Response:
        if services.store_health.check() in _AWAY:
            body = {
                "error": "service unavailable: database not reachable",
                "code": "SERVICE_UNAVAILABLE",
                "details": None,
            }
            return json_answer(body, 503, {"Retry-After": "5"})
        return json_answer({"status": "ready"})

    @blueprint.get("/ready")
    def ready() -> Response:
        operator_only(services)
        results: dict[str, str] = {}
        for check in checks:
            # The other checks use the store too; wait only once for a store that is away.
            away = check.uses_store and results.get("store") in _AWAY
            results[check.name] = UNREACHABLE if away else _result(check)
        failing = [name for name, result in results.items() if result != "ok"]
        body: dict[str, Any] = {"status": "failing" if failing else "ready", "checks": results}
        if results["store"] == "ok" and (found := _attention(services)):
            # Items for the operator's attention do not make the worker unready.
            body["attention"] = found
        if failing:
            return json_answer({**body, "failing": failing}, 503, {"Retry-After": "5"})
        return json_answer(body)

    @blueprint.get("/openapi.json")
    def openapi() -> Response:
        return _described(seeker_document(services.publisher, _sold(services)))

    @blueprint.get("/openapi/operator.json")
    def operator_openapi() -> Response:
        settings = services.settings
        return _described(operator_document(settings.public_url, swarm=bool(settings.swarm_keys)))

    @blueprint.get("/metrics")
    def metrics() -> Response:
        operator_only(services)
        counts.flush()
        return Response(render(services), mimetype="text/plain; version=0.0.4")

    return blueprint


def _described(document: bytes) -> Response:
    return Response(document, headers={"Access-Control-Allow-Origin": "*"}, mimetype="application/json")


def operator_only(services: OpsServices) -> None:
    """Requires the operator's token or, if none is set, a request from this machine."""
    caller = services.bearers.caller(
        request.remote_addr or "",
        request.headers.get("Authorization", ""),
        from_this_machine=asked_from_this_machine(request.environ),
    )
    if caller != OPERATOR:
        raise Unauthorized()


def _result(check: ReadinessCheck) -> str:
    try:
        return check.run()
    except StoreError as error:
        return UNREACHABLE if note(error, "ready") else BROKEN


def _sold(services: OpsServices) -> list[Capability]:
    """Capabilities for sale; none while the store is away, because the routes do not depend on them."""
    try:
        return list(services.manifest.for_sale().values())
    except StoreError as error:
        note(error, "openapi")
        return []


def _attention(services: OpsServices) -> dict[str, str]:
    try:
        return attention(services.leg_books, services.audit_book, services.listings)
    except StoreError as error:
        note(error, "ready")
        return {}


def _check_queue(services: OpsServices) -> str:
    return "ok" if len(services.queue) < services.settings.queue_limit else "full"


def _check_clock(services: OpsServices) -> str:
    age = services.store.clock_age()
    return "ok" if age is not None and age < CLOCK_SECONDS else "no clock ticks"


def _check_work(services: OpsServices) -> str:
    missing = [lane for lane in (Lane.EXPRESS, Lane.QUEUE) if not services.store.takers(lane)]
    return f"no process takes work from: {', '.join(missing)}" if missing else "ok"


def _check_books(services: OpsServices) -> str:
    """Contracts older than the store's last start get no 402 until the ledger is compared with the chain."""
    if not services.settings.rpc_url:
        return "ok"
    return "being compared with the chain" if services.comparison_mark.comparison_pending(0) else "ok"
