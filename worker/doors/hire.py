"""The HIRE door: contracts, execution, tasks, streams and files, as a seeker sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any, cast

from flask import Blueprint, Response, g, request

from worker.contracts.book import Contract
from worker.contracts.canonical import MAX_BYTES, parse
from worker.contracts.hiring import Hiring
from worker.contracts.manifest import Manifest
from worker.contracts.signatures import is_address
from worker.contracts.task import Body, Task
from worker.delivery.deliverables import Deliverables
from worker.delivery.streams import released
from worker.doors.answers import SSE_HEADERS, json_answer, sse, whole
from worker.doors.bodies import raw
from worker.doors.hire_views import charged, entity_tag, payment_headers, problem_body, task_body, task_status
from worker.errors import BadRequest, Conflict, NotFound, Problem, Unavailable, UnsupportedMedia
from worker.limits import Limits
from worker.settings import Settings

NAME = "hire"
CONTRACT = "X-Contract-ID"
_EXPOSED = (
    "PAYMENT-REQUIRED, PAYMENT-RESPONSE, X-PAYMENT-RESPONSE, X-Payment-Address, X-Payment-Amount, "
    "X-Payment-Currency, X-Payment-Network, Location, Retry-After, Idempotent-Replayed, Preference-Applied, "
    "X-Payment-Status, ETag, Content-Disposition, Repr-Digest, Content-Range, X-Request-Id"
)
# One process holds no more streams than this; the next one is told to come back.
MOST_STREAMS = 1_000
# Unpaid contracts lie in the memory of the store: room for two schemas of the largest size, and for words.
CONTRACT_BYTES = 128 << 10


def render_problem(problem: Problem) -> dict[str, Any]:
    return problem_body(problem, getattr(g, "contract_id", None))


def door(
    hiring: Hiring, manifest: Manifest, deliverables: Deliverables, limits: Limits, settings: Settings
) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)

    @blueprint.after_request
    def expose(response: Response) -> Response:
        response.headers["Access-Control-Expose-Headers"] = _EXPOSED
        return response

    @blueprint.get("/manifest")
    @blueprint.get("/.well-known/hire-manifest.json")
    def show_manifest() -> Response:
        return json_answer(manifest.document())

    services = _Services(hiring, deliverables, limits, settings)
    _contracts(blueprint, services)
    _execute(blueprint, services)
    _tasks(blueprint, services)
    _streams(blueprint, services)
    _files(blueprint, deliverables)
    return blueprint


@dataclass(frozen=True)
class _Services:
    """What the views share: the services behind them, and how strangers who ask too often are slowed down."""

    hiring: Hiring
    deliverables: Deliverables
    limits: Limits
    settings: Settings

    def slow_down(self, what: str, most: int, wallet: str = "") -> None:
        self.limits.take(what, request.remote_addr or "-", most)
        if wallet:
            self.limits.take(what, wallet.lower(), most)

    @contextmanager
    def guessing_limited(self) -> Iterator[None]:
        """Ids are credentials: whoever asks for many that do not exist is slowed down."""
        try:
            yield
        except NotFound:
            self.slow_down("unknown", self.settings.limit_unknown)
            raise

    def find(self, task_id: str) -> Task:
        with self.guessing_limited():
            return self.hiring.find(request.headers.get(CONTRACT, ""), task_id)

    def show(self, task: Task) -> Response:
        body = task_body(task, self.deliverables, self.hiring.asking.load)
        response = json_answer(body, task_status(task))
        response.headers.update(payment_headers(task, self.hiring.asking.network))
        response.headers["Cache-Control"] = "private, no-store"
        if response.status_code == 202:
            response.headers["Location"] = self.deliverables.task_url(task.execution.id)
        if response.status_code == 202 or task.parked:
            response.headers["Retry-After"] = "1"
        if task.replayed:
            response.headers["Idempotent-Replayed"] = "true"
        response.set_etag(entity_tag(body), weak=True)
        return response


def _contracts(blueprint: Blueprint, services: _Services) -> None:
    hiring = services.hiring

    @blueprint.post("/contracts")
    def draft() -> Response:
        document = _document()
        services.slow_down("contracts", services.settings.limit_contracts, _seeker(document))
        hiring.asking.takes_contracts()
        return json_answer(hiring.book.sign(document), 201)

    @blueprint.put("/contracts")
    def register() -> Response:
        hiring.asking.takes_contracts()
        return json_answer(_contract_view(hiring.book.register(_document()), hiring))

    @blueprint.get("/contracts")
    def show_contract() -> Response:
        with services.guessing_limited():
            contract = hiring.book.find(_contract_id())
            if contract is None:
                raise NotFound("no such contract", code="CONTRACT_NOT_FOUND")
        return json_answer(_contract_view(contract, hiring))


def _execute(blueprint: Blueprint, services: _Services) -> None:
    hiring, settings = services.hiring, services.settings

    @blueprint.post("/execute")
    def execute() -> Response:
        began = time.monotonic()
        contract_id = _contract_id()
        body = Body.of(_input())
        if "PAYMENT-SIGNATURE" not in request.headers and "X-PAYMENT" not in request.headers:
            known = hiring.book.find(contract_id) if settings.limit_executes else None
            wallet = known.terms.seeker_wallet if known else ""
            services.slow_down("executes", settings.limit_executes, wallet)
        with services.guessing_limited():
            task = hiring.execute(contract_id, body, _headers(), request.headers.get("X-Webhook-URL"))
        wanted, applied = _preference(request.headers.get("Prefer", ""), settings.inline_budget)
        budget = settings.inline_budget if wanted is None else wanted
        if not task.replayed and budget > 0:
            task = hiring.wait(task, began + budget)
            if task.unpaid:
                raise hiring.demand(task)
        response = services.show(task)
        if applied:
            response.headers["Preference-Applied"] = applied
        return response


def _tasks(blueprint: Blueprint, services: _Services) -> None:
    @blueprint.get("/tasks/<task_id>")
    def poll(task_id: str) -> Response:
        task = services.find(task_id)
        g.contract_id = task.contract.terms.contract_id
        response = services.show(task)
        response.status_code = 200
        response.headers.pop("Location", None)
        response.make_conditional(request)
        return response

    @blueprint.delete("/tasks/<task_id>")
    def cancel(task_id: str) -> Response:
        task = services.find(task_id)
        g.contract_id = task.contract.terms.contract_id
        try:
            response = services.show(services.hiring.cancel(task))
        except Conflict as refused:  # too late: it may well have been paid for
            refused.charged = charged(services.hiring.task(task.contract, task_id))
            refused.advice = "GET this address to see what became of it."
            raise
        response.status_code = 200
        return response


def _streams(blueprint: Blueprint, services: _Services) -> None:
    executions = services.hiring.executions
    open_streams = BoundedSemaphore(MOST_STREAMS)

    @blueprint.get("/stream/<task_id>")
    def stream(task_id: str) -> Response:
        token = request.args.get("token", "")
        if not services.deliverables.opens_stream(task_id, token):
            services.find(task_id)
        after = whole(request.headers.get("Last-Event-ID") or request.args.get("after_sequence", ""), 0)
        sealed = not executions.get(task_id).raw.get("before_work")
        if not open_streams.acquire(blocking=False):
            raise Unavailable("too many streams are open", code="WORKER_BUSY", retry_after=5)
        batches = released(executions, task_id, after, sealed=sealed)
        response = Response(sse(batches), mimetype="text/event-stream", headers=SSE_HEADERS)
        response.call_on_close(open_streams.release)
        return response


def _files(blueprint: Blueprint, deliverables: Deliverables) -> None:
    @blueprint.route("/files/<execution_id>/<which>/<token>/<name>", methods=["GET", "HEAD"])
    def file(execution_id: str, which: str, token: str, name: str) -> Response:
        reply, chunks = deliverables.open(execution_id, which, token, request.method, dict(request.headers))
        response = Response(chunks, reply.status)
        for key, value in reply.headers.items():
            response.headers[key] = value
        return response


def _contract_view(contract: Contract, hiring: Hiring) -> dict[str, Any]:
    state = "SIGNED"
    if contract.execution is not None:
        ended = hiring.executions.get(contract.execution).state.terminal
        state = "COMPLETED" if ended else "EXECUTING"
    return {"state": state, "contract": contract.document, "hash": contract.hash}


def _contract_id() -> str:
    contract_id = request.headers.get(CONTRACT, "")
    if not contract_id:
        raise BadRequest(
            "the request names no contract",
            code="MISSING_CONTRACT_ID",
            field=CONTRACT,
            expected="the id of a signed contract",
        )
    g.contract_id = contract_id[:128]
    return contract_id


def _headers() -> Mapping[str, str]:
    """The request's headers, found in any case."""
    return cast(Mapping[str, str], request.headers)


def _document() -> dict[str, Any]:
    document = _input(CONTRACT_BYTES)
    if not isinstance(document, dict):
        raise BadRequest("a contract is a JSON object", expected="object")
    return document


def _input(most: int = MAX_BYTES) -> Any:
    if request.mimetype not in ("", "application/json"):
        raise UnsupportedMedia(field="Content-Type", expected="application/json", received=request.mimetype)
    return parse(raw(), max_bytes=most)


def _seeker(document: Mapping[str, Any]) -> str:
    """The wallet that a draft names, if it names one at all."""
    parties = document.get("parties")
    seeker = parties.get("seeker") if isinstance(parties, dict) else None
    wallet = seeker.get("wallet") if isinstance(seeker, dict) else None
    return wallet if isinstance(wallet, str) and is_address(wallet) else ""


def _preference(wishes: str, most: float) -> tuple[float | None, str]:
    """How long the caller wants to wait, None for no wish, and what to say of it (RFC 7240).

    `respond-async` alone means not at all; with `wait` it means not longer than that.
    """
    found: dict[str, str] = {}
    for wish in wishes.split(","):
        name, _, value = wish.partition(";")[0].partition("=")
        found.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = found.get("wait", "")
    seconds = min(float(wait), most) if wait.isascii() and wait.isdigit() and len(wait) < 10 else None
    applied = ["respond-async"] if "respond-async" in found else []
    if seconds is not None:
        return seconds, ", ".join([*applied, f"wait={int(seconds)}"])
    return (0.0, "respond-async") if applied else (None, "")
