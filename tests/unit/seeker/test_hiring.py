"""Hiring a worker in memory: what the seeker signs, saves, resends and never does."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_worker import (
    SEEKER,
    SEEKER_KEY,
    TRANSACTION,
    URL,
    WORKER,
    FakeWorker,
    ReceivedRequest,
    answer,
    drop,
    failed,
    status,
)
from worker.core.errors import BadRequest, Problem
from worker.seeker import Order, PurchaseStore, Result, Seeker, SpendLimits, Wallet
from worker.seeker.http import HttpAnswer
from worker.seeker.problems import (
    ContractRefused,
    OfferRefused,
    PaymentRefused,
    PaymentUnknown,
    PurchaseBusy,
    SpendCapReached,
    TaskFailed,
    WorkerRefused,
    WorkerUnreachable,
)
from worker.seeker.purchases import PaymentFate, PurchaseEnding
from worker.x402.networks import BASE, BASE_SEPOLIA
from worker.x402.wire import decode_payment

INPUT = {"brief": "A logo"}
ORDER = Order("logo-design")
STALE = "invalid_exact_evm_payload_authorization_valid_before"


@dataclass
class Clock:
    """A clock that advances only on sleep."""

    at: float = 1_700_000_000.0
    slept: float = 0.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds + 0.001
        self.slept += seconds


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


def make(fake_worker: FakeWorker, directory: Path, clock: Clock, **limits: Any) -> Seeker:
    spend_limits = SpendLimits(**{"most": 1_000_000, **limits})
    purchases = PurchaseStore(directory / "purchases")
    return Seeker(
        Wallet(SEEKER_KEY), purchases, spend_limits, http=fake_worker, now=clock.now, sleep=clock.sleep
    )


def buy(fake_worker: FakeWorker, directory: Path, clock: Clock, **limits: Any) -> Result:
    return make(fake_worker, directory, clock, **limits).hire(URL, ORDER, INPUT)


def test_hire_pays_once_with_a_valid_receipt(tmp_path: Path, clock: Clock) -> None:
    """One payment of the exact price is sent to the worker; result and receipt are verified."""
    fake_worker = FakeWorker()
    result = buy(fake_worker, tmp_path, clock)
    assert (result.doubt, result.transaction) == (None, TRANSACTION)
    [header] = fake_worker.payments
    payment = decode_payment(header)
    paid = payment.authorization
    assert (paid.payer, paid.to, paid.value) == (SEEKER.lower(), WORKER.lower(), 500_000)
    assert paid.valid_before - int(clock.at) <= 600
    assert payment.identifier is not None
    assert fake_worker.executes[0].body == b'{"brief":"A logo"}'


def test_payment_is_saved_before_it_is_sent(tmp_path: Path, clock: Clock) -> None:
    """When the worker receives the payment, a private file already contains all of it."""
    found: list[tuple[str, int]] = []

    def look(got: ReceivedRequest) -> None:
        if got.payment:
            [path] = (tmp_path / "purchases").glob("*.json")
            stored_header = json.loads(path.read_text())["payments"][-1]["signed"]["value"]
            found.append((stored_header, path.stat().st_mode & 0o777))
            assert stored_header == got.payment

    buy(FakeWorker(watch=look), tmp_path, clock)
    assert [mode for _, mode in found] == [0o600]
    assert (tmp_path / "purchases").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fault", [drop, status(500), status(502), status(503), status(429), status(200)])
def test_lost_answer_resends_the_identical_payment(tmp_path: Path, clock: Clock, fault: Any) -> None:
    """Lost connections, 5xx, 429 and empty answers are unknown: the same bytes are resent until answered."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fault, fault, fault])
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert len(fake_worker.payments) == 4
    assert len(set(fake_worker.payments)) == 1


def test_402_after_a_lost_answer_signs_nothing(tmp_path: Path, clock: Clock) -> None:
    """A 402 that does not mention the payment already sent is answered with that payment only."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, drop, *[fake_worker.ask] * 20])
    with pytest.raises(PaymentUnknown) as raised:
        buy(fake_worker, tmp_path, clock)
    assert len(set(fake_worker.payments)) == 1
    assert len(fake_worker.payments) < 10
    [left] = PurchaseStore(tmp_path / "purchases").unfinished()
    assert raised.value.details["ref"] == left.ref
    assert left.unsettled is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"errorReason": "settlement_pending"},
        {"errorReason": "invalid_exact_evm_nonce_already_used"},
        {"errorReason": "unexpected_settle_error"},
        {"errorReason": "a reason of its own"},
        {"errorReason": None},
        {"errorReason": "insufficient_funds", "transaction": TRANSACTION},
        {"success": None},
    ],
)
def test_doubtful_refusal_is_not_believed(tmp_path: Path, clock: Clock, changes: dict[str, Any]) -> None:
    """Unlisted codes, and refusals with a transaction, leave the payment open; nothing is signed."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, *[fake_worker.refuse("insufficient_funds", **changes)] * 20])
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path, clock)
    assert len(set(fake_worker.payments)) == 1


def test_certain_refusal_ends_the_hire(tmp_path: Path, clock: Clock) -> None:
    """Insufficient funds need a person: the refusal is reported and nothing else is signed."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.refuse("insufficient_funds")])
    with pytest.raises(PaymentRefused) as raised:
        buy(fake_worker, tmp_path, clock)
    assert raised.value.details["reason"] == "insufficient_funds"
    assert len(fake_worker.payments) == 1


def test_expired_payment_is_replaced_once(tmp_path: Path, clock: Clock) -> None:
    """An expired window is fixed by a new signature; a second such refusal is reported."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.refuse(STALE)])
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 2
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.refuse(STALE), fake_worker.refuse(STALE)])
    with pytest.raises(PaymentRefused):
        buy(fake_worker, tmp_path / "other", clock)
    assert len(set(fake_worker.payments)) == 2


def test_refused_payments_count_until_they_expire(tmp_path: Path, clock: Clock) -> None:
    """The refusing worker may keep the payment, so the cap covers both until the first window ends."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.refuse(STALE)])
    seeker = make(fake_worker, tmp_path, clock, most=500_000)
    with pytest.raises(SpendCapReached):
        seeker.hire(URL, ORDER, INPUT)
    assert len(set(fake_worker.payments)) == 1
    clock.at += 601
    [left] = seeker.purchases.unfinished()
    assert seeker.resume(left.ref).transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 2


def test_payment_due_is_paid_only_by_hand(tmp_path: Path, clock: Clock) -> None:
    """Work that waits for another payment is paid when the seeker resumes, under the same contract."""
    fake_worker = FakeWorker()
    due = {"status": "pending", "task_id": "task-1", "phase": "payment_due"}
    fake_worker.plan = deque(
        [fake_worker.ask, lambda got: replace(fake_worker.pending(got), body=json.dumps(due).encode())]
    )
    fake_worker.plan.append(fake_worker.refuse("insufficient_funds"))
    seeker = make(fake_worker, tmp_path, clock)
    with pytest.raises(PaymentRefused):
        seeker.hire(URL, ORDER, INPUT)
    [left] = seeker.purchases.unfinished()
    assert seeker.resume(left.ref).transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 2
    assert len({got.headers["x-contract-id"] for got in fake_worker.executes}) == 1


def test_delivered_work_is_never_paid_again(tmp_path: Path, clock: Clock) -> None:
    """A worker that has settled and asks again gets nothing, not even after a resume."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    fake_worker.plan = deque([fake_worker.ask] * 9)
    with pytest.raises(PaymentUnknown):
        seeker.resume(result.purchase.ref)
    assert len(set(fake_worker.payments)) == 1


def test_killed_client_resumes_from_disk(tmp_path: Path, clock: Clock) -> None:
    """Another process that finds the saved payment sends it and gets the result; nothing is signed."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        buy(fake_worker, tmp_path, clock)
    again = make(fake_worker, tmp_path, clock)
    left = again.unfinished(URL, "logo-design", INPUT)
    assert left is not None
    assert again.unfinished(URL, "logo-design", {"brief": "Another"}) is None
    assert again.unfinished("https://other.example", "logo-design", INPUT) is None
    assert again.resume(left.ref).transaction == TRANSACTION
    assert len(fake_worker.payments) == 2
    assert len(set(fake_worker.payments)) == 1


def test_purchases_are_per_wallet(tmp_path: Path, clock: Clock) -> None:
    """A purchase started by one wallet is not found for another."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        buy(fake_worker, tmp_path, clock)
    other = replace(make(fake_worker, tmp_path, clock), wallet=Wallet("0x" + "33" * 32))
    assert other.unfinished(URL, "logo-design", INPUT) is None


def test_purchase_is_complete_once_files_are_saved(tmp_path: Path, clock: Clock) -> None:
    """The same order continues for free until the deliverables are verified; after that it is a new one."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    left = seeker.unfinished(URL, "logo-design", INPUT)
    assert left is not None
    assert left.payments[0].fate is PaymentFate.SETTLED
    [saved] = seeker.collect(result, tmp_path / "out")
    assert saved.path.read_bytes() == b"<svg/>"
    assert seeker.unfinished(URL, "logo-design", INPUT) is None


def test_invalid_receipt_is_reported_with_the_result(tmp_path: Path, clock: Clock) -> None:
    """A result whose receipt has the wrong signer is returned with a warning, and the purchase stays open."""

    def tamper(got: ReceivedRequest) -> Any:
        answer = fake_worker.done(got)
        document = json.loads(answer.body)
        document["receipt"]["payload"]["payer"] = WORKER
        return replace(answer, body=json.dumps(document).encode())

    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, tamper])
    seeker = make(fake_worker, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    assert result.doubt is not None
    seeker.collect(result, tmp_path / "out")
    assert seeker.unfinished(URL, "logo-design", INPUT) is not None


def test_free_retries_reuse_the_payment(tmp_path: Path, clock: Clock) -> None:
    """A transient failure is retried with the same request until the worker says it is final."""
    fake_worker = FakeWorker()
    again = failed("TRANSIENT_FAILURE", 503, retryable=True, retries_left=1)
    fake_worker.plan = deque([fake_worker.ask, again, again])
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert len(fake_worker.payments) == 3
    assert len(set(fake_worker.payments)) == 1


def test_endless_retries_are_given_up(tmp_path: Path, clock: Clock) -> None:
    """Free retries are limited."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, *[failed("TRANSIENT_FAILURE", 503, retryable=True)] * 50])
    with pytest.raises(TaskFailed):
        buy(fake_worker, tmp_path, clock)
    assert len(fake_worker.payments) < 20


def test_failed_work_ends_the_purchase_with_its_code(tmp_path: Path, clock: Clock) -> None:
    """A final failure keeps its code and details, and is not resent."""
    fake_worker = FakeWorker()
    final = failed("OUTPUT_SCHEMA_INVALID", retryable=False, charged=False, message="x", status=5)
    fake_worker.plan = deque([fake_worker.ask, final])
    seeker = make(fake_worker, tmp_path, clock)
    with pytest.raises(TaskFailed) as raised:
        seeker.hire(URL, ORDER, INPUT)
    assert raised.value.code == "OUTPUT_SCHEMA_INVALID"
    assert raised.value.details["charged"] is False
    assert seeker.purchases.unfinished() == []


def test_invalid_input_is_not_resent(tmp_path: Path, clock: Clock) -> None:
    """INVALID_INPUT is retryable only with a different input, so the same input is not resent."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, failed("INVALID_INPUT", 422, retryable=True, field="brief")])
    with pytest.raises(TaskFailed) as raised:
        buy(fake_worker, tmp_path, clock)
    assert raised.value.details["field"] == "brief"
    assert len(fake_worker.payments) == 1


def test_refusal_before_payment_costs_nothing(tmp_path: Path, clock: Clock) -> None:
    """A refusal before payment ends the hire unsigned, with the worker's message."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([failed("INVALID_INPUT", 422, None, field="brief", advice="say more")])
    with pytest.raises(WorkerRefused) as raised:
        buy(fake_worker, tmp_path, clock)
    assert (raised.value.code, raised.value.advice) == ("INVALID_INPUT", "say more")
    assert not (tmp_path / "purchases").exists() or not list((tmp_path / "purchases").glob("*.json"))


def test_refusal_after_payment_keeps_the_purchase_open(tmp_path: Path, clock: Clock) -> None:
    """If the worker no longer knows the contract, it is sent once more; then a person must look."""
    fake_worker = FakeWorker()
    gone = failed("CONTRACT_NOT_FOUND", 404, None)
    fake_worker.plan = deque([fake_worker.ask, gone, gone])
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path, clock)
    assert [got.method for got in fake_worker.got if got.path == "/contracts"] == ["POST", "PUT", "PUT"]
    assert len(set(fake_worker.payments)) == 1


def pending(code: str, number: int) -> Any:
    """The worker cannot tell the outcome of the payment."""
    details = {"charged": None, "advice": "send the identical request again"}
    error = {"code": code, "message": "not known", "details": details}
    return lambda got: answer(number, {"status": "pending", "error": error}, {"Retry-After": "7"})


@pytest.mark.parametrize("charge", [{"charged": None}, {"charged": False}])
@pytest.mark.parametrize("code", ["SERVICE_UNAVAILABLE", "INTERNAL_ERROR", "WORKER_BUSY"])
def test_503_after_payment_keeps_the_purchase_open(
    tmp_path: Path, clock: Clock, code: str, charge: dict[str, Any]
) -> None:
    """Whatever a 503 says about the charge, the identical payment is resent until there is an answer."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque(
        [fake_worker.ask, pending(code, 503), failed(code, 503, None, **charge), pending(code, 500)]
    )
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert len(fake_worker.payments) == 4 and len(set(fake_worker.payments)) == 1
    assert clock.slept >= 14, "the worker's pace was not kept"


def test_forgotten_pending_contract_is_imported_again(tmp_path: Path, clock: Clock) -> None:
    """404 and pending: the contract is sent once more, then the same payment until it is found."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque(
        [fake_worker.ask, pending("CONTRACT_NOT_FOUND", 404), pending("WORKER_BUSY", 503)]
    )
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert [got.method for got in fake_worker.got if got.path == "/contracts"] == ["POST", "PUT", "PUT"]
    assert len(set(fake_worker.payments)) == 1


def test_unknown_charge_keeps_the_purchase_open(tmp_path: Path, clock: Clock) -> None:
    """`charged: null`: the payment may still be taken, so the purchase stays open and is resumed."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, failed("CANCELLED", 409, retryable=False, charged=None)])
    seeker = make(fake_worker, tmp_path, clock)
    with pytest.raises(TaskFailed):
        seeker.hire(URL, ORDER, INPUT)
    purchase = seeker.unfinished(URL, "logo-design", INPUT)
    assert purchase is not None and purchase.unsettled is not None


def test_expired_result_ends_the_purchase(tmp_path: Path, clock: Clock) -> None:
    """A 410 that states the payment's outcome is final: nothing is resent."""
    fake_worker = FakeWorker()
    gone = failed("RESULT_EXPIRED", 410, None, charged=True, settled_at="2026-01-01T00:00:00Z")
    fake_worker.plan = deque([fake_worker.ask, gone])
    seeker = make(fake_worker, tmp_path, clock)
    with pytest.raises(TaskFailed) as raised:
        seeker.hire(URL, ORDER, INPUT)
    assert (raised.value.code, raised.value.details["charged"]) == ("RESULT_EXPIRED", True)
    assert seeker.unfinished(URL, "logo-design", INPUT) is None


def test_forgotten_contract_is_imported_again(tmp_path: Path, clock: Clock) -> None:
    """A worker that lost its store gets the signed contract once more, then the same payment."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, failed("CONTRACT_NOT_FOUND", 404, None)])
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 1


def test_poll_interval_follows_the_server(tmp_path: Path, clock: Clock) -> None:
    """Polls wait as long as the worker asks, carry its ETag, and accept 304 for an unchanged state."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.pending])
    fake_worker.polls = deque([fake_worker.pending, status(304), status(304)])
    assert buy(fake_worker, tmp_path, clock).transaction == TRANSACTION
    assert clock.slept == pytest.approx(12)
    polls = [got for got in fake_worker.got if got.path == "/tasks/task-1"]
    assert [got.headers.get("if-none-match") for got in polls] == [None, '"1"', '"1"', '"1"']
    assert all(got.headers["x-contract-id"] for got in polls)


def test_retry_after_is_honoured_for_unsure_answers(tmp_path: Path, clock: Clock) -> None:
    """Retry-After on a 503 is honoured, up to one minute."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, status(503, Retry_After="7"), status(503, Retry_After="9999")])
    buy(fake_worker, tmp_path, clock)
    assert clock.slept == pytest.approx(67)


def busy(code: str, message: str) -> HttpAnswer:
    document = {"status": "failed", "error": {"code": code, "message": message, "details": {}}}
    return HttpAnswer(503, {"retry-after": "15"}, json.dumps(document).encode())


def test_a_busy_worker_says_why(tmp_path: Path, clock: Clock) -> None:
    """Each retry reports the worker's reason, and so does the final time-out."""
    reasons: list[Any] = []
    fake_worker = FakeWorker()
    fake_worker.plan = deque([lambda got: busy("WORKER_BUSY", "the queue is full")] * 50)
    seeker = make(fake_worker, tmp_path, clock, patience_s=40)
    seeker.tell = lambda event, facts: reasons.append(facts["message"]) if event == "busy" else None
    with pytest.raises(WorkerUnreachable, match=r"still busy: the queue is full \(WORKER_BUSY\)"):
        seeker.hire(URL, ORDER, INPUT)
    assert set(reasons) == {"the queue is full"} and len(reasons) >= 3


def test_a_worker_that_signs_nothing_now_says_why(tmp_path: Path, clock: Clock) -> None:
    """The error contains the worker's reason for not signing the draft."""
    fake_worker = FakeWorker(countersigned=lambda contract: contract)
    serve = fake_worker.send

    def send(method: str, url: str, **options: Any) -> HttpAnswer:
        if method == "POST" and url.endswith("/contracts"):
            return busy("SIGNING_UNAVAILABLE", "no key to sign with")
        return serve(method, url, **options)

    fake_worker.send = send  # type: ignore[method-assign]
    with pytest.raises(WorkerUnreachable, match="no key to sign with"):
        buy(fake_worker, tmp_path, clock)


def test_patience_ends_and_keeps_the_payment(tmp_path: Path, clock: Clock) -> None:
    """After the time-out the payment is reported as unknown and stays on disk for the next run."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, *[drop] * 500])
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path, clock, patience_s=100)
    assert 100 < clock.slept < 130
    [left] = PurchaseStore(tmp_path / "purchases").unfinished()
    assert left.exposed(int(clock.at) + 10_000) == 500_000


def test_unreachable_worker_is_reported_soon(tmp_path: Path, clock: Clock) -> None:
    """If no payment has been sent, an unreachable worker ends the hire after a few tries."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([drop] * 50)
    with pytest.raises(WorkerUnreachable):
        buy(fake_worker, tmp_path, clock)
    assert len(fake_worker.executes) < 8


@pytest.mark.parametrize(
    ("lie", "field"),
    [
        ({"price": "0.51"}, "amount"),
        ({"price": "0.49"}, "amount"),
        ({"pay_to": SEEKER}, "payTo"),
        ({"network": BASE}, "network"),
        ({"network": replace(BASE_SEPOLIA, asset="0x" + "99" * 20)}, "asset"),
        ({"network": replace(BASE_SEPOLIA, asset_name="Other Coin")}, "extra.name"),
        ({"max_timeout_s": 86_400}, "maxTimeoutSeconds"),
        ({"max_timeout_s": 0}, "maxTimeoutSeconds"),
        ({"resource_url": "https://elsewhere.example/execute"}, "resource.url"),
    ],
)
def test_mismatched_offer_is_not_signed(
    tmp_path: Path, clock: Clock, lie: dict[str, Any], field: str
) -> None:
    """Whatever a hostile 402 changes, nothing is signed, saved or sent."""
    fake_worker = FakeWorker(offered=lambda offer: replace(offer, **lie))
    with pytest.raises(OfferRefused) as raised:
        buy(fake_worker, tmp_path, clock)
    assert raised.value.details["field"] == field
    assert fake_worker.payments == []
    assert list((tmp_path / "purchases").glob("*.json")) == []


def test_price_above_the_cap_is_refused_before_drafting(tmp_path: Path, clock: Clock) -> None:
    """The cap is compared with the manifest first, so the worker never gets our signature."""
    fake_worker = FakeWorker(price="1.01")
    with pytest.raises(SpendCapReached):
        buy(fake_worker, tmp_path, clock)
    assert [got.path for got in fake_worker.got] == ["/manifest"]


def _raise_price(contract: dict[str, Any]) -> dict[str, Any]:
    price = {**contract["terms"]["price"], "amount": "0.9"}
    return {**contract, "terms": {**contract["terms"], "price": price}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_raise_price, "terms.price.amount"),
        (lambda c: {**c, "hash": "sha256:" + "0" * 64}, "hash"),
        (lambda c: {**c, "signatures": {"worker": "0x" + "1" * 130}}, "signatures.worker"),
        (lambda c: {**c, "signatures": None}, "signatures"),
        (lambda c: {**c, "extra": "term"}, "extra"),
        (lambda c: [], "signatures"),
    ],
)
def test_mismatched_contract_is_not_signed(tmp_path: Path, clock: Clock, change: Any, field: str) -> None:
    """The worker may add a hash and its signature to a draft, and nothing else."""
    fake_worker = FakeWorker(countersigned=change)
    with pytest.raises(ContractRefused) as raised:
        buy(fake_worker, tmp_path, clock)
    assert raised.value.details["field"] == field
    assert fake_worker.contracts == {}


def test_contract_with_a_wrong_signature_is_not_executed(tmp_path: Path, clock: Clock) -> None:
    """An imported contract is checked like our own before its work is bought."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    contract = seeker.contract(seeker.listing(URL, "logo-design"), ORDER)
    swapped = {**contract["signatures"], "worker": contract["signatures"]["seeker"]}
    with pytest.raises(ContractRefused):
        seeker.execute(URL, {**contract, "signatures": swapped}, INPUT)
    assert fake_worker.executes == []


def test_contract_on_an_unknown_network_is_not_paid(tmp_path: Path, clock: Clock) -> None:
    """An unknown network name is not resolved to the network that the worker asks for."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    listed = seeker.listing(URL, "logo-design")
    elsewhere = replace(listed, network=replace(BASE_SEPOLIA, name="polygon"))
    contract = seeker.contract(elsewhere, ORDER)
    with pytest.raises(OfferRefused) as raised:
        seeker.execute(URL, contract, INPUT)
    assert raised.value.details["field"] == "terms.price.network"
    assert fake_worker.payments == []
    pinned = replace(seeker, limits=replace(seeker.limits, network=BASE_SEPOLIA))
    assert pinned.execute(URL, contract, INPUT).transaction == TRANSACTION


def test_contract_buys_one_input(tmp_path: Path, clock: Clock) -> None:
    """A used contract is not sent with another input."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    contract = seeker.contract(seeker.listing(URL, "logo-design"), ORDER)
    seeker.execute(URL, contract, INPUT)
    with pytest.raises(BadRequest):
        seeker.execute(URL, contract, {"brief": "Another"})
    assert {got.body for got in fake_worker.executes} == {b'{"brief":"A logo"}'}


def test_purchase_lock_excludes_a_second_process(tmp_path: Path, clock: Clock) -> None:
    """Only one process can hold a purchase."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    with seeker.purchases.hold(result.purchase.ref), pytest.raises(PurchaseBusy):
        seeker.resume(result.purchase.ref)


def test_contract_id_goes_only_to_the_worker(tmp_path: Path, clock: Clock) -> None:
    """A poll URL on another host is not followed, because the request would carry the contract id."""

    def away(got: ReceivedRequest) -> Any:
        answer = fake_worker.pending(got)
        document = {**json.loads(answer.body), "poll_url": "https://thief.example/tasks/task-1"}
        return replace(answer, body=json.dumps(document).encode())

    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, away])
    hosts: list[str] = []
    send = fake_worker.send

    def spy(method: str, url: str, **options: Any) -> Any:
        hosts.append(url.split("/")[2])
        return send(method, url, **options)

    fake_worker.send = spy  # type: ignore[method-assign]
    buy(fake_worker, tmp_path, clock)
    assert set(hosts) == {"worker.example"}


def test_malformed_answer_after_payment_is_unknown(tmp_path: Path, clock: Clock) -> None:
    """A pending answer without a task leaves the payment unknown."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque(
        [
            fake_worker.ask,
            lambda got: replace(fake_worker.pending(got), body=b'{"status":"pending","task_id":"../x"}'),
        ]
    )
    with pytest.raises(PaymentUnknown):
        buy(fake_worker, tmp_path, clock)


def test_resuming_an_unknown_purchase_fails(tmp_path: Path, clock: Clock) -> None:
    """An unknown reference is refused."""
    with pytest.raises(Problem):
        make(FakeWorker(), tmp_path, clock).resume("0" * 16)


def test_progress_comes_from_the_stream_and_the_result_from_polling(tmp_path: Path, clock: Clock) -> None:
    """Events are shown as they arrive, a state event triggers a poll, and a broken stream is reconnected."""

    def event(sequence: int, kind: str, **payload: Any) -> list[str]:
        data = json.dumps({"type": kind, "payload": payload})
        return [f"id: {sequence}", f"event: {kind}", f"data: {data}", ""]

    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.pending])
    fake_worker.polls = deque([fake_worker.pending])
    first = [*event(1, "execution.started"), ":heartbeat", *event(2, "progress.updated", fraction=0.5)]
    fake_worker.stream = [
        first,
        [*event(2, "progress.updated", fraction=0.5), *event(3, "execution.completed")],
    ]
    seen: list[Any] = []
    seeker = make(fake_worker, tmp_path, clock)
    seeker.live = True
    seeker.tell = lambda word, facts: seen.append(facts["kind"]) if word == "event" else None
    assert seeker.hire(URL, ORDER, INPUT).transaction == TRANSACTION
    assert seen == ["execution.started", "progress.updated", "execution.completed"]
    streams = [got for got in fake_worker.got if got.method == "STREAM"]
    assert [got.headers.get("last-event-id") for got in streams] == [None, "2"]
    assert fake_worker.executes[-1].headers["prefer"] == "wait=2"


def test_polling_works_without_a_stream(tmp_path: Path, clock: Clock) -> None:
    """A worker whose stream keeps breaking is polled at the interval it asks for."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, fake_worker.pending])
    fake_worker.polls = deque([fake_worker.pending] * 6)
    seeker = make(fake_worker, tmp_path, clock)
    seeker.live = True
    assert seeker.hire(URL, ORDER, INPUT).transaction == TRANSACTION
    assert len([got for got in fake_worker.got if got.method == "STREAM"]) == 3
    assert clock.slept == pytest.approx(12)


def test_abandoned_purchase_is_not_unfinished(tmp_path: Path, clock: Clock) -> None:
    """The outcome of a purchase is stored on disk."""
    fake_worker = FakeWorker()
    seeker = make(fake_worker, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    seeker.close(result.purchase)
    found = seeker.purchases.find(result.purchase.ref)
    assert found is not None
    assert found.ending is PurchaseEnding.DONE


def _killed(got: ReceivedRequest) -> Any:
    raise KeyboardInterrupt
