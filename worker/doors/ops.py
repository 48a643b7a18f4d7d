"""The ops door: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from flask import Blueprint, Response, request

from worker.bearers import OPERATOR
from worker.doors import kernel_metrics
from worker.doors.answers import json_answer
from worker.doors.openapi import document
from worker.errors import Unauthorized
from worker.executions.states import Lane, State
from worker.parts import Parts
from worker.requests_count import RequestCounts

NAME = "ops"
# A clock that has not ticked for this long counts as stopped.
CLOCK_SECONDS = 10.0

_HELP = {
    "worker_executions_total": ("counter", "Executions by what became of them."),
    "worker_resets_total": ("counter", "Running executions that were queued again, by reason."),
    "worker_http_requests_total": ("counter", "Requests answered."),
    "worker_executions": ("gauge", "Executions in the store by state."),
    "worker_queue_depth": ("gauge", "Ids waiting in a lane."),
    "worker_clock_age_seconds": ("gauge", "Time since any clock ticked."),
}


@dataclass(frozen=True, slots=True)
class Ping:
    """One thing that readiness hangs on."""

    name: str
    check: Callable[[], str]


def door(parts: Parts, counts: RequestCounts) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)
    pings = [
        Ping("store", lambda: _ping_store(parts)),
        Ping("queue", lambda: _ping_queue(parts)),
        Ping("clock", lambda: _ping_clock(parts)),
        Ping("work", lambda: _ping_work(parts)),
        Ping("books", lambda: _ping_books(parts)),
    ]

    @blueprint.get("/health")
    @blueprint.get("/v0/health")
    def health() -> Response:
        return json_answer({"status": "ok"})

    @blueprint.get("/v0/ready")
    def store_ready() -> Response:
        try:
            parts.client.ping()
        except redis.RedisError:
            body = {
                "error": "service unavailable: database not reachable",
                "code": "SERVICE_UNAVAILABLE",
                "details": None,
            }
            return json_answer(body, 503, {"Retry-After": "5"})
        return json_answer({"status": "ready"})

    @blueprint.get("/ready")
    def ready() -> Response:
        operator_only(parts)
        results: dict[str, str] = {}
        for ping in pings:
            # the others ask the store too: one that is away is waited for once
            away = results.get("store", "ok") != "ok"
            results[ping.name] = "unreachable" if away else _result(ping)
        failing = [name for name, result in results.items() if result != "ok"]
        body: dict[str, Any] = {"status": "failing" if failing else "ready", "checks": results}
        if failing:
            return json_answer({**body, "failing": failing}, 503, {"Retry-After": "5"})
        return json_answer(body)

    @blueprint.get("/openapi.json")
    def openapi() -> Response:
        settings = parts.settings
        described = document(settings.public_url, swarm=bool(settings.swarm_keys))
        return json_answer(described, headers={"Access-Control-Allow-Origin": "*"})

    @blueprint.get("/metrics")
    def metrics() -> Response:
        operator_only(parts)
        counts.flush()
        stats = parts.store.stats()
        text = _render(_samples(parts, stats)) + kernel_metrics.render(stats, _active(parts))
        return Response(text, mimetype="text/plain; version=0.0.4")

    return blueprint


def operator_only(parts: Parts) -> None:
    """The operator's token, where one is set."""
    caller = parts.bearers.caller(request.remote_addr or "", request.headers.get("Authorization", ""))
    if caller != OPERATOR:
        raise Unauthorized()


def _result(ping: Ping) -> str:
    try:
        return ping.check()
    except redis.RedisError:
        return "unreachable"


def _ping_store(parts: Parts) -> str:
    parts.client.ping()
    return "ok"


def _ping_queue(parts: Parts) -> str:
    return "ok" if len(parts.queue) < parts.settings.queue_limit else "full"


def _ping_clock(parts: Parts) -> str:
    age = parts.store.clock_age()
    return "ok" if age is not None and age < CLOCK_SECONDS else "no clock ticks"


def _ping_work(parts: Parts) -> str:
    missing = [lane for lane in (Lane.EXPRESS, Lane.QUEUE) if not parts.store.takers(lane)]
    return f"nobody takes work from: {', '.join(missing)}" if missing else "ok"


def _ping_books(parts: Parts) -> str:
    """Contracts older than the store's last start are not sold to before the chain has been looked at."""
    if not parts.settings.rpc_url:
        return "ok"
    return "being compared with the chain" if parts.comparison_mark.comparison_pending(0) else "ok"


def _active(parts: Parts) -> int:
    states = (State.PENDING, State.RUNNING, State.BLOCKED)
    return sum(parts.store.count(parts.keys.by_state(state)) for state in states)


def _samples(parts: Parts, stats: Mapping[str, bytes]) -> dict[str, float]:
    samples: dict[str, float] = {
        name: int(value) for name, value in stats.items() if name.startswith("worker_")
    }
    for state in State:
        samples[f'worker_executions{{state="{state}"}}'] = parts.store.count(parts.keys.by_state(state))
    samples['worker_queue_depth{lane="queue"}'] = len(parts.queue)
    samples['worker_queue_depth{lane="express"}'] = int(parts.client.llen(parts.keys.express))
    age = parts.store.clock_age()
    if age is not None:
        samples["worker_clock_age_seconds"] = age
    return samples


def _render(samples: dict[str, float]) -> str:
    families: dict[str, list[str]] = defaultdict(list)
    for sample, value in sorted(samples.items()):
        families[sample.split("{")[0]].append(
            f"{sample} {value:g}" if value < 1e6 else f"{sample} {int(value)}"
        )
    lines: list[str] = []
    for family, rows in families.items():
        kind, text = _HELP.get(family, ("untyped", family))
        lines += [f"# HELP {family} {text}", f"# TYPE {family} {kind}", *rows]
    return "\n".join(lines) + "\n"
