"""The HIRE door: contracts, execution, tasks, streams and files, as a seeker sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flask import Blueprint, Response, request
from werkzeug.urls import iri_to_uri

from worker.core.callers import network_of
from worker.core.errors import BadRequest, NotFound, Problem
from worker.core.settings import Settings
from worker.delivery.deliverables import Deliverables
from worker.doors.answers import (
    SSE_HEADERS,
    AnswerHeaders,
    PlainAnswer,
    json_answer,
    json_text,
    sse,
    this_request,
    whole,
)
from worker.doors.bodies import Body, raw
from worker.doors.contract_bodies import RESERVE_BYTES, contract_body, expect_json, seeker_wallet
from worker.doors.direct import DirectRoute
from worker.doors.hangup import bound_writes
from worker.doors.hire_views import (
    claim_only_what_is_known,
    entity_tag,
    payment_headers,
    refusal,
    task_body,
    task_status,
    unused_payment,
)
from worker.doors.kept_answers import KeptAnswers
from worker.doors.limits import RequestLimits, TooManyRequests
from worker.doors.request_headers import RequestHeaders
from worker.doors.stream_places import StreamPlaces
from worker.hiring.buying import Buying
from worker.hiring.contracts import ContractService
from worker.hiring.evidence import Evidence
from worker.hiring.manifest import Manifest
from worker.hiring.service import Hiring
from worker.hiring.task import PaymentRequired, Task, TaskInput
from worker.hiring.tasks import Tasks
from worker.x402.networks import Network
from worker.x402.sign_in import SIGN_IN_HEADER

NAME = "hire"
CONTRACT = "X-Contract-ID"
EXECUTE = "/execute"
EXPOSED = (
    "PAYMENT-REQUIRED, PAYMENT-RESPONSE, X-PAYMENT-RESPONSE, X-Payment-Address, X-Payment-Amount, "
    "X-Payment-Currency, X-Payment-Network, Location, Retry-After, Idempotent-Replayed, Preference-Applied, "
    "X-Payment-Status, ETag, Content-Disposition, Repr-Digest, Content-Range, X-Request-Id"
)
_SHOWN_TO_ALL = f"{NAME}.show_manifest"
# Routes that take payments.
_PAID = ("hire.execute", "buy.buy", "chat.complete")
# Where a request keeps the contract that its refusal names, and whether its task's record was read.
_CONTRACT_ID, LOOKED_UP = "worker.contract_id", "worker.looked_up"


def refuse(problem: Problem) -> Response:
    """Any refusal in the HIRE error format."""
    asked = this_request()
    if problem.status == 404 and asked.blueprint == NAME:
        problem.charged = None  # an expired or lost record may have been paid for
    if pays(asked.environ):
        if asked.endpoint in _PAID:
            claim_only_what_is_known(problem, looked_up=asked.environ.get(LOOKED_UP, False))
        elif problem.charged is False:
            problem.charged = None  # the payment may have been taken by another request
    return refusal(problem, asked.environ.get(_CONTRACT_ID)).response()


def add_private(headers: AnswerHeaders) -> None:
    """Headers of answers that depend on headers which shared caches ignore."""
    headers.setdefault("Access-Control-Expose-Headers", EXPOSED)
    headers.setdefault("Cache-Control", "private, no-store")


def door(services: HireServices, manifest: Manifest) -> Blueprint:
    blueprint = Blueprint(NAME, __name__)

    @blueprint.after_request
    def expose(response: Response) -> Response:
        if this_request().endpoint == _SHOWN_TO_ALL:
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
        else:
            add_private(response.headers)
        return response

    @blueprint.get("/manifest")
    @blueprint.get("/.well-known/hire-manifest.json")
    def show_manifest() -> Response:
        return json_answer(manifest.document())

    _contracts(blueprint, services)
    _execute(blueprint, services)
    _tasks(blueprint, services)
    _streams(blueprint, services)
    _files(blueprint, services.deliverables)
    return blueprint


@dataclass(frozen=True)
class HireServices:
    """Services and rate limits shared by the views."""

    hiring: Hiring
    tasks: Tasks
    contracts: ContractService
    deliverables: Deliverables
    limits: RequestLimits
    network: Network
    settings: Settings
    evidence: Evidence
    buying: Buying
    places: StreamPlaces = field(default_factory=StreamPlaces)
    kept_answers: KeptAnswers = field(default_factory=KeptAnswers, init=False)

    def slow_down(self, environ: Mapping[str, Any], kind: str, most: int) -> None:
        if most:
            self.limits.take(kind, network_of(environ.get("REMOTE_ADDR")), most)

    def slow_down_wallet(self, kind: str, most: int, wallet: str) -> None:
        if wallet:
            self.limits.take(kind, wallet.lower(), most)

    def slow_down_executes(self, environ: Mapping[str, Any], contract_id: str) -> None:
        """Limits executes by address and wallet; requests with and without a payment are counted separately.

        Customers behind one address, such as a gateway, are limited only by their wallets.
        """
        most = self.settings.limit_executes
        if not most:
            return
        kind = "payments" if pays(environ) else "executes"
        wallet = self.contracts.seeker_wallet(contract_id)
        if not self.has_paid(wallet):
            self.slow_down(environ, kind, most)
        self.slow_down_wallet(kind, most, wallet)

    def limited_contract(self, kind: str) -> dict[str, Any]:
        """The contract in the body. Beyond its address's limit, as many small ones of customers are read."""
        most = self.settings.limit_contracts
        refused: TooManyRequests | None = None
        try:
            self.slow_down(request.environ, kind, most)
        except TooManyRequests as over:
            if (request.content_length or RESERVE_BYTES + 1) > RESERVE_BYTES:
                raise
            refused = over
        self.contracts.check_room()
        document = contract_body()
        if refused is not None:
            if not self.has_paid(seeker_wallet(document)):
                raise refused
            self.slow_down(request.environ, f"{kind} of customers", most)
        return document

    def has_paid(self, wallet: str) -> bool:
        return bool(wallet) and self.contracts.has_paid(wallet)

    @contextmanager
    def guessing_limited(self, environ: Mapping[str, Any]) -> Iterator[None]:
        """Rate-limits requests for unknown ids, because ids are credentials."""
        try:
            yield
        except NotFound:
            self.slow_down(environ, "unknown", self.settings.limit_unknown)
            raise

    def find(self, task_id: str) -> Task:
        """The task by its contract's id or, for a plain purchase, by its token or a signed-in payer."""
        contract_id = request.headers.get(CONTRACT, "")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        sign_in = request.headers.get(SIGN_IN_HEADER, "")
        environ = request.environ
        with self.guessing_limited(environ):
            if not contract_id and (token or sign_in):
                if sign_in:
                    self.slow_down(environ, "executes", self.settings.limit_executes)
                return self.buying.find(task_id, token, sign_in)
            return self.tasks.find(contract_id, task_id)

    def answer(
        self, environ: Mapping[str, Any], task: Task, began: float, offer_again: Callable[[Task], Problem]
    ) -> PlainAnswer:
        """The task once it has ended or its request has waited long enough."""
        most = self.settings.inline_budget
        wanted, applied = _preference(environ.get("HTTP_PREFER", ""), most)
        budget = most if wanted is None else wanted
        if not task.replayed and budget > 0:
            task = self.tasks.wait(task, began + budget)
            if task.unpaid:
                raise offer_again(task)
        return self.show(task, applied)

    def show(self, task: Task, applied: str = "") -> PlainAnswer:
        shown = self.kept_answers.get(task, self._render)
        headers = {**shown.headers}
        if task.paid_already:
            headers["X-Payment-Status"] = unused_payment(task)
        if task.replayed:
            headers["Idempotent-Replayed"] = "true"
        if applied:
            headers["Preference-Applied"] = applied
        return PlainAnswer(shown.body, shown.status, headers)

    def _render(self, task: Task) -> PlainAnswer:
        body, status = task_body(task, self.deliverables, self.tasks.load), task_status(task)
        text = json_text(body)
        headers = {
            **payment_headers(task, self.network),
            "Cache-Control": "private, no-store",
            "ETag": f'W/"{entity_tag(body, text)}"',
        }
        if status == 202:
            headers["Location"] = iri_to_uri(self.deliverables.task_url(task.id))
        if status == 202 or task.parked:
            headers["Retry-After"] = "1"
        return PlainAnswer(text, status, headers)


def _contracts(blueprint: Blueprint, services: HireServices) -> None:
    contracts = services.contracts

    @blueprint.post("/contracts")
    def draft() -> Response:
        document = services.limited_contract("contracts")
        wallet = seeker_wallet(document)
        # Anybody may name a wallet, and the chain shows which wallets have paid.
        if not services.has_paid(wallet):
            services.slow_down_wallet("contracts", services.settings.limit_contracts, wallet)
        return json_answer(contracts.sign(document, network_of(request.remote_addr)), 201)

    @blueprint.put("/contracts")
    def register() -> Response:
        return json_answer(contracts.register(services.limited_contract("registers")))

    @blueprint.get("/contracts")
    def show_contract() -> Response:
        with services.guessing_limited(request.environ):
            return json_answer(contracts.show(_contract_id(request.environ)))


def _execute(blueprint: Blueprint, services: HireServices) -> None:
    @blueprint.post(EXECUTE)
    def execute() -> Response:
        return _executed(services, request.environ, raw).response()


def direct_routes(services: HireServices) -> dict[str, DirectRoute]:
    answer = partial(_executed, services)
    # Without a contract the request may be the swarm door's.
    return {EXECUTE: DirectRoute(f"{NAME}.execute", answer, add_private, needs="HTTP_X_CONTRACT_ID")}


def _executed(services: HireServices, environ: dict[str, Any], read: Body) -> PlainAnswer:
    began, hiring = time.monotonic(), services.hiring
    contract_id = _contract_id(environ)
    expect_json(environ)
    # Cheap checks first: limits, contract, record, budget; the body last.
    services.slow_down_executes(environ, contract_id)
    body, headers = TaskInput(read()), RequestHeaders(environ)
    try:
        with services.guessing_limited(environ):
            try:
                task = hiring.execute(contract_id, body, headers, headers.get("X-Webhook-URL"))
            finally:
                # The record has been read by now, unless the body could not be compared with it.
                environ[LOOKED_UP] = not body.unreadable
        return services.answer(environ, task, began, hiring.offer_again)
    except PaymentRequired as offered:
        return refusal(offered, environ[_CONTRACT_ID])


def _tasks(blueprint: Blueprint, services: HireServices) -> None:
    @blueprint.get("/tasks/<task_id>")
    def poll(task_id: str) -> Response:
        task = services.find(task_id)
        request.environ[_CONTRACT_ID] = _shown_id(task)
        response = services.show(task).response()
        response.status_code = 200
        response.headers.pop("Location", None)
        response.make_conditional(request)
        return response

    @blueprint.get("/tasks/<task_id>/evidence")
    def evidence(task_id: str) -> Response:
        return json_answer(
            services.evidence.of(services.find(task_id)), headers={"Cache-Control": "private, no-store"}
        )

    @blueprint.delete("/tasks/<task_id>")
    def cancel(task_id: str) -> Response:
        task = services.find(task_id)
        request.environ[_CONTRACT_ID] = _shown_id(task)
        response = services.show(services.tasks.cancel(task, forfeit=_forfeit())).response()
        response.status_code = 200
        return response


def _streams(blueprint: Blueprint, services: HireServices) -> None:
    @blueprint.get("/stream/<task_id>")
    def stream(task_id: str) -> Response:
        token = request.args.get("token", "")
        if not services.deliverables.opens_stream(task_id, token):
            services.find(task_id)
        after = whole(request.headers.get("Last-Event-ID") or request.args.get("after_sequence", ""), 0)
        batches = services.tasks.events(task_id, after)
        give_back = services.places.take(task_id, newcomer=not services.hiring.has_customer(task_id))
        bound_writes(request.environ)
        response = Response(sse(batches), mimetype="text/event-stream", headers=SSE_HEADERS)
        response.call_on_close(give_back)
        return response


def _files(blueprint: Blueprint, deliverables: Deliverables) -> None:
    @blueprint.route("/files/<execution_id>/<which>/<token>/<name>", methods=["GET", "HEAD"])
    def file(execution_id: str, which: str, token: str, name: str) -> Response:
        reply, chunks = deliverables.open(execution_id, which, token, request.method, dict(request.headers))
        bound_writes(request.environ)
        response = Response(chunks, reply.status)
        for key, value in reply.headers.items():
            response.headers[key] = value
        return response


def _contract_id(environ: dict[str, Any]) -> str:
    contract_id: str = environ.get("HTTP_X_CONTRACT_ID", "")
    if not contract_id:
        raise BadRequest(
            "the request names no contract",
            code="MISSING_CONTRACT_ID",
            field=CONTRACT,
            expected="the id of a signed contract",
        )
    environ[_CONTRACT_ID] = contract_id[:128]
    return contract_id


def _shown_id(task: Task) -> str | None:
    """The contract's id; a plain purchase has none."""
    return None if task.contract.is_purchase else task.contract.terms.contract_id


def pays(environ: Mapping[str, Any]) -> bool:
    """Whether the request carries a payment, valid or not."""
    return "HTTP_PAYMENT_SIGNATURE" in environ or "HTTP_X_PAYMENT" in environ


def _forfeit() -> bool:
    """Whether a cancel explicitly forfeits the payment."""
    value = request.args.get("forfeit", "")
    if value not in ("", "true", "false"):
        raise BadRequest(
            field="forfeit", expected="true, or left out", received=value[:60], charge_known=False
        )
    return value == "true"


def _preference(wishes: str, most: float) -> tuple[float | None, str]:
    """Parses Prefer (RFC 7240): seconds to wait, None without a preference, and Preference-Applied.

    `respond-async` alone means no wait; with `wait` it means at most that long.
    """
    if not wishes:
        return None, ""
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
