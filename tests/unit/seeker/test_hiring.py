"""A seeker hires a worker in memory: what it signs, keeps, sends again, and never does."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.seller import SEEKER, SEEKER_KEY, TRANSACTION, URL, WORKER, Got, Seller, drop, failed, status
from worker.errors import BadRequest, Problem
from worker.payments.networks import BASE, BASE_SEPOLIA
from worker.payments.wire import decode_payment
from worker.seeker import Drawer, Limits, Order, Result, Seeker, Wallet
from worker.seeker.drawer import Ending, Fate
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

INPUT = {"brief": "A logo"}
ORDER = Order("logo-design")
STALE = "invalid_exact_evm_payload_authorization_valid_before"


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

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


def make(seller: Seller, directory: Path, clock: Clock, **limits: Any) -> Seeker:
    given = Limits(**{"most": 1_000_000, **limits})
    drawer = Drawer(directory / "drawer")
    return Seeker(Wallet(SEEKER_KEY), drawer, given, http=seller, now=clock.now, sleep=clock.sleep)


def buy(seller: Seller, directory: Path, clock: Clock, **limits: Any) -> Result:
    return make(seller, directory, clock, **limits).hire(URL, ORDER, INPUT)


def test_a_hire_pays_the_price_once_and_proves_it(tmp_path: Path, clock: Clock) -> None:
    """One payment of exactly the price to exactly the worker goes out; result and receipt are proven."""
    seller = Seller()
    result = buy(seller, tmp_path, clock)
    assert (result.doubt, result.transaction) == (None, TRANSACTION)
    [header] = seller.payments
    payment = decode_payment(header)
    paid = payment.authorization
    assert (paid.payer, paid.to, paid.value) == (SEEKER.lower(), WORKER.lower(), 500_000)
    assert paid.valid_before - int(clock.at) <= 600
    assert payment.identifier is not None
    assert seller.executes[0].body == b'{"brief":"A logo"}'


def test_the_payment_is_on_disk_before_it_is_sent(tmp_path: Path, clock: Clock) -> None:
    """When the payment arrives at the worker, a file for its owner only already holds it, whole."""
    found: list[tuple[str, int]] = []

    def look(got: Got) -> None:
        if got.payment:
            [path] = (tmp_path / "drawer").glob("*.json")
            kept = json.loads(path.read_text())["payments"][-1]["signed"]["value"]
            found.append((kept, path.stat().st_mode & 0o777))
            assert kept == got.payment

    buy(Seller(watch=look), tmp_path, clock)
    assert [mode for _, mode in found] == [0o600]
    assert (tmp_path / "drawer").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fault", [drop, status(500), status(502), status(503), status(429), status(200)])
def test_without_an_answer_the_identical_payment_goes_out_again(
    tmp_path: Path, clock: Clock, fault: Any
) -> None:
    """Lost connections, 5xx, 429 and empty answers are unknown: the same bytes are sent until one comes."""
    seller = Seller()
    seller.plan = deque([seller.ask, fault, fault, fault])
    assert buy(seller, tmp_path, clock).transaction == TRANSACTION
    assert len(seller.payments) == 4
    assert len(set(seller.payments)) == 1


def test_a_bare_402_after_a_lost_answer_signs_nothing(tmp_path: Path, clock: Clock) -> None:
    """A 402 silent about the payment that is out is answered with that payment, never with another."""
    seller = Seller()
    seller.plan = deque([seller.ask, drop, *[seller.ask] * 20])
    with pytest.raises(PaymentUnknown) as raised:
        buy(seller, tmp_path, clock)
    assert len(set(seller.payments)) == 1
    assert len(seller.payments) < 10
    [left] = Drawer(tmp_path / "drawer").unfinished()
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
def test_a_refusal_that_may_hide_a_transfer_is_not_believed(
    tmp_path: Path, clock: Clock, changes: dict[str, Any]
) -> None:
    """Unlisted codes, and refusals with a transaction, leave the payment open; nothing is signed."""
    seller = Seller()
    seller.plan = deque([seller.ask, *[seller.refuse("insufficient_funds", **changes)] * 20])
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path, clock)
    assert len(set(seller.payments)) == 1


def test_a_sure_refusal_ends_the_hire_without_another_payment(tmp_path: Path, clock: Clock) -> None:
    """Too little money is a person's matter: the refusal is told, and nothing else is signed."""
    seller = Seller()
    seller.plan = deque([seller.ask, seller.refuse("insufficient_funds")])
    with pytest.raises(PaymentRefused) as raised:
        buy(seller, tmp_path, clock)
    assert raised.value.details["reason"] == "insufficient_funds"
    assert len(seller.payments) == 1


def test_a_payment_that_came_too_late_is_replaced_once(tmp_path: Path, clock: Clock) -> None:
    """A window that was over is mended by a fresh signature; a second such refusal is told."""
    seller = Seller()
    seller.plan = deque([seller.ask, seller.refuse(STALE)])
    assert buy(seller, tmp_path, clock).transaction == TRANSACTION
    assert len(set(seller.payments)) == 2
    seller = Seller()
    seller.plan = deque([seller.ask, seller.refuse(STALE), seller.refuse(STALE)])
    with pytest.raises(PaymentRefused):
        buy(seller, tmp_path / "other", clock)
    assert len(set(seller.payments)) == 2


def test_refused_payments_count_until_nobody_can_take_them(tmp_path: Path, clock: Clock) -> None:
    """A refuser may keep what it refused, so the cap holds both payments until the first window ends."""
    seller = Seller()
    seller.plan = deque([seller.ask, seller.refuse(STALE)])
    seeker = make(seller, tmp_path, clock, most=500_000)
    with pytest.raises(SpendCapReached):
        seeker.hire(URL, ORDER, INPUT)
    assert len(set(seller.payments)) == 1
    clock.at += 601
    [left] = seeker.drawer.unfinished()
    assert seeker.resume(left.ref).transaction == TRANSACTION
    assert len(set(seller.payments)) == 2


def test_after_payment_due_only_a_person_pays_again(tmp_path: Path, clock: Clock) -> None:
    """Work that waits for another payment is paid when its seeker comes back, under the same contract."""
    seller = Seller()
    due = {"status": "pending", "task_id": "task-1", "phase": "payment_due"}
    seller.plan = deque([seller.ask, lambda got: replace(seller.pending(got), body=json.dumps(due).encode())])
    seller.plan.append(seller.refuse("insufficient_funds"))
    seeker = make(seller, tmp_path, clock)
    with pytest.raises(PaymentRefused):
        seeker.hire(URL, ORDER, INPUT)
    [left] = seeker.drawer.unfinished()
    assert seeker.resume(left.ref).transaction == TRANSACTION
    assert len(set(seller.payments)) == 2
    assert len({got.headers["x-contract-id"] for got in seller.executes}) == 1


def test_what_was_delivered_is_never_paid_again(tmp_path: Path, clock: Clock) -> None:
    """A worker that has settled and asks again gets nothing, not even from somebody who comes back."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    seller.plan = deque([seller.ask] * 9)
    with pytest.raises(PaymentUnknown):
        seeker.resume(result.purchase.ref)
    assert len(set(seller.payments)) == 1


def test_a_killed_client_goes_on_from_its_disk(tmp_path: Path, clock: Clock) -> None:
    """Another process that finds the kept payment sends it and gets the result; nothing is signed."""
    seller = Seller()
    seller.plan = deque([seller.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        buy(seller, tmp_path, clock)
    again = make(seller, tmp_path, clock)
    left = again.unfinished(URL, "logo-design", INPUT)
    assert left is not None
    assert again.unfinished(URL, "logo-design", {"brief": "Another"}) is None
    assert again.unfinished("https://other.example", "logo-design", INPUT) is None
    assert again.resume(left.ref).transaction == TRANSACTION
    assert len(seller.payments) == 2
    assert len(set(seller.payments)) == 1


def test_an_open_purchase_is_another_wallets_own(tmp_path: Path, clock: Clock) -> None:
    """What one wallet has begun is not found for another."""
    seller = Seller()
    seller.plan = deque([seller.ask, _killed])
    with pytest.raises(KeyboardInterrupt):
        buy(seller, tmp_path, clock)
    other = replace(make(seller, tmp_path, clock), wallet=Wallet("0x" + "33" * 32))
    assert other.unfinished(URL, "logo-design", INPUT) is None


def test_a_purchase_is_over_when_its_files_are_in_hand(tmp_path: Path, clock: Clock) -> None:
    """Until the deliverables are proven the same order goes on for free; after that it is a new one."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    left = seeker.unfinished(URL, "logo-design", INPUT)
    assert left is not None
    assert left.payments[0].fate is Fate.SETTLED
    [saved] = seeker.collect(result, tmp_path / "out")
    assert saved.path.read_bytes() == b"<svg/>"
    assert seeker.unfinished(URL, "logo-design", INPUT) is None


def test_a_receipt_that_proves_nothing_is_told_with_the_result(tmp_path: Path, clock: Clock) -> None:
    """A result whose receipt somebody else signed is handed over with the doubt, and stays open."""

    def tamper(got: Got) -> Any:
        answer = seller.done(got)
        document = json.loads(answer.body)
        document["receipt"]["payload"]["payer"] = WORKER
        return replace(answer, body=json.dumps(document).encode())

    seller = Seller()
    seller.plan = deque([seller.ask, tamper])
    seeker = make(seller, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    assert result.doubt is not None
    seeker.collect(result, tmp_path / "out")
    assert seeker.unfinished(URL, "logo-design", INPUT) is not None


def test_free_attempts_carry_the_same_payment(tmp_path: Path, clock: Clock) -> None:
    """A passing failure is answered with the same request until the worker says that it is over."""
    seller = Seller()
    again = failed("TRANSIENT_FAILURE", 503, retryable=True, retries_left=1)
    seller.plan = deque([seller.ask, again, again])
    assert buy(seller, tmp_path, clock).transaction == TRANSACTION
    assert len(seller.payments) == 3
    assert len(set(seller.payments)) == 1


def test_a_worker_that_fails_for_ever_is_left(tmp_path: Path, clock: Clock) -> None:
    """Free attempts without an end are not followed without an end."""
    seller = Seller()
    seller.plan = deque([seller.ask, *[failed("TRANSIENT_FAILURE", 503, retryable=True)] * 50])
    with pytest.raises(TaskFailed):
        buy(seller, tmp_path, clock)
    assert len(seller.payments) < 20


def test_failed_work_ends_the_purchase_with_the_workers_code(tmp_path: Path, clock: Clock) -> None:
    """A final failure keeps its code and details, and is not sent again."""
    seller = Seller()
    final = failed("OUTPUT_SCHEMA_INVALID", retryable=False, charged=False, message="x", status=5)
    seller.plan = deque([seller.ask, final])
    seeker = make(seller, tmp_path, clock)
    with pytest.raises(TaskFailed) as raised:
        seeker.hire(URL, ORDER, INPUT)
    assert raised.value.code == "OUTPUT_SCHEMA_INVALID"
    assert raised.value.details["charged"] is False
    assert seeker.drawer.unfinished() == []


def test_invalid_input_is_not_sent_again_as_it_is(tmp_path: Path, clock: Clock) -> None:
    """The agent's refusal of the input is retryable with another input only, so the same is not repeated."""
    seller = Seller()
    seller.plan = deque([seller.ask, failed("INVALID_INPUT", 422, retryable=True, field="brief")])
    with pytest.raises(TaskFailed) as raised:
        buy(seller, tmp_path, clock)
    assert raised.value.details["field"] == "brief"
    assert len(seller.payments) == 1


def test_a_refusal_before_payment_costs_nothing(tmp_path: Path, clock: Clock) -> None:
    """What the worker refuses before it asks for money ends the hire unsigned, with the worker's words."""
    seller = Seller()
    seller.plan = deque([failed("INVALID_INPUT", 422, None, field="brief", advice="say more")])
    with pytest.raises(WorkerRefused) as raised:
        buy(seller, tmp_path, clock)
    assert (raised.value.code, raised.value.advice) == ("INVALID_INPUT", "say more")
    assert not (tmp_path / "drawer").exists() or not list((tmp_path / "drawer").glob("*.json"))


def test_a_refusal_after_payment_leaves_it_open(tmp_path: Path, clock: Clock) -> None:
    """A worker that does not know its contract any more is told once; then a person must look."""
    seller = Seller()
    gone = failed("CONTRACT_NOT_FOUND", 404, None)
    seller.plan = deque([seller.ask, gone, gone])
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path, clock)
    assert [got.method for got in seller.got if got.path == "/contracts"] == ["POST", "PUT", "PUT"]
    assert len(set(seller.payments)) == 1


def test_a_forgotten_contract_is_handed_in_again(tmp_path: Path, clock: Clock) -> None:
    """A worker that lost its store gets the signed contract once more, then the same payment."""
    seller = Seller()
    seller.plan = deque([seller.ask, failed("CONTRACT_NOT_FOUND", 404, None)])
    assert buy(seller, tmp_path, clock).transaction == TRANSACTION
    assert len(set(seller.payments)) == 1


def test_the_servers_pace_is_kept(tmp_path: Path, clock: Clock) -> None:
    """Polls wait as long as the worker says, carry its ETag, and take 304 for the same state."""
    seller = Seller()
    seller.plan = deque([seller.ask, seller.pending])
    seller.polls = deque([seller.pending, status(304), status(304)])
    assert buy(seller, tmp_path, clock).transaction == TRANSACTION
    assert clock.slept == pytest.approx(12)
    polls = [got for got in seller.got if got.path == "/tasks/task-1"]
    assert [got.headers.get("if-none-match") for got in polls] == [None, '"1"', '"1"', '"1"']
    assert all(got.headers["x-contract-id"] for got in polls)


def test_retry_after_is_honoured_for_unsure_answers(tmp_path: Path, clock: Clock) -> None:
    """A 503 that says when to come back is believed, up to a minute."""
    seller = Seller()
    seller.plan = deque([seller.ask, status(503, Retry_After="7"), status(503, Retry_After="9999")])
    buy(seller, tmp_path, clock)
    assert clock.slept == pytest.approx(67)


def test_patience_ends_and_the_payment_stays_kept(tmp_path: Path, clock: Clock) -> None:
    """After the patience is over the payment is reported as unknown and stays on disk for the next run."""
    seller = Seller()
    seller.plan = deque([seller.ask, *[drop] * 500])
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path, clock, patience_s=100)
    assert 100 < clock.slept < 130
    [left] = Drawer(tmp_path / "drawer").unfinished()
    assert left.exposed(int(clock.at) + 10_000) == 500_000


def test_nobody_there_is_told_soon(tmp_path: Path, clock: Clock) -> None:
    """Without a payment out, silence ends the hire after a few tries."""
    seller = Seller()
    seller.plan = deque([drop] * 50)
    with pytest.raises(WorkerUnreachable):
        buy(seller, tmp_path, clock)
    assert len(seller.executes) < 8


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
def test_an_offer_that_differs_from_the_contract_is_not_signed(
    tmp_path: Path, clock: Clock, lie: dict[str, Any], field: str
) -> None:
    """Whatever a hostile 402 changes, nothing is signed, kept or sent."""
    seller = Seller(offered=lambda offer: replace(offer, **lie))
    with pytest.raises(OfferRefused) as raised:
        buy(seller, tmp_path, clock)
    assert raised.value.details["field"] == field
    assert seller.payments == []
    assert list((tmp_path / "drawer").glob("*.json")) == []


def test_a_price_above_the_cap_is_refused_before_anything_is_drafted(tmp_path: Path, clock: Clock) -> None:
    """The cap is compared with the manifest already, so the worker never holds our signature."""
    seller = Seller(price="1.01")
    with pytest.raises(SpendCapReached):
        buy(seller, tmp_path, clock)
    assert [got.path for got in seller.got] == ["/manifest"]


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
def test_a_contract_that_is_not_ours_is_not_signed(
    tmp_path: Path, clock: Clock, change: Any, field: str
) -> None:
    """The worker may add a hash and its signature to a draft, and nothing else."""
    seller = Seller(countersigned=change)
    with pytest.raises(ContractRefused) as raised:
        buy(seller, tmp_path, clock)
    assert raised.value.details["field"] == field
    assert seller.contracts == {}


def test_a_contract_with_a_wrong_signature_is_not_executed(tmp_path: Path, clock: Clock) -> None:
    """A contract from elsewhere is checked like our own before its work is bought."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    contract = seeker.contract(seeker.listing(URL, "logo-design"), ORDER)
    swapped = {**contract["signatures"], "worker": contract["signatures"]["seeker"]}
    with pytest.raises(ContractRefused):
        seeker.execute(URL, {**contract, "signatures": swapped}, INPUT)
    assert seller.executes == []


def test_a_contract_on_an_unknown_network_is_not_paid(tmp_path: Path, clock: Clock) -> None:
    """A word that names no network of ours does not mean whichever the worker asks for."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    listed = seeker.listing(URL, "logo-design")
    elsewhere = replace(listed, network=replace(BASE_SEPOLIA, name="polygon"))
    contract = seeker.contract(elsewhere, ORDER)
    with pytest.raises(OfferRefused) as raised:
        seeker.execute(URL, contract, INPUT)
    assert raised.value.details["field"] == "terms.price.network"
    assert seller.payments == []
    pinned = replace(seeker, limits=replace(seeker.limits, network=BASE_SEPOLIA))
    assert pinned.execute(URL, contract, INPUT).transaction == TRANSACTION


def test_one_contract_buys_one_input(tmp_path: Path, clock: Clock) -> None:
    """A contract that was used is not sent with another input."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    contract = seeker.contract(seeker.listing(URL, "logo-design"), ORDER)
    seeker.execute(URL, contract, INPUT)
    with pytest.raises(BadRequest):
        seeker.execute(URL, contract, {"brief": "Another"})
    assert {got.body for got in seller.executes} == {b'{"brief":"A logo"}'}


def test_two_processes_do_not_work_at_one_purchase(tmp_path: Path, clock: Clock) -> None:
    """Whoever holds a purchase holds it alone."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    with seeker.drawer.hold(result.purchase.ref), pytest.raises(PurchaseBusy):
        seeker.resume(result.purchase.ref)


def test_the_contract_id_goes_to_the_worker_alone(tmp_path: Path, clock: Clock) -> None:
    """A poll address elsewhere is not followed, because the request would carry the contract's id."""

    def away(got: Got) -> Any:
        answer = seller.pending(got)
        document = {**json.loads(answer.body), "poll_url": "https://thief.example/tasks/task-1"}
        return replace(answer, body=json.dumps(document).encode())

    seller = Seller()
    seller.plan = deque([seller.ask, away])
    hosts: list[str] = []
    send = seller.send

    def spy(method: str, url: str, **given: Any) -> Any:
        hosts.append(url.split("/")[2])
        return send(method, url, **given)

    seller.send = spy  # type: ignore[method-assign]
    buy(seller, tmp_path, clock)
    assert set(hosts) == {"worker.example"}


def test_an_unreadable_answer_while_a_payment_is_out_is_unknown(tmp_path: Path, clock: Clock) -> None:
    """A pending answer without a task is no answer about the payment either."""
    seller = Seller()
    seller.plan = deque(
        [seller.ask, lambda got: replace(seller.pending(got), body=b'{"status":"pending","task_id":"../x"}')]
    )
    with pytest.raises(PaymentUnknown):
        buy(seller, tmp_path, clock)


def test_a_resumed_purchase_must_exist(tmp_path: Path, clock: Clock) -> None:
    """An unknown reference is a plain refusal."""
    with pytest.raises(Problem):
        make(Seller(), tmp_path, clock).resume("0" * 16)


def test_the_stream_shows_progress_and_a_poll_decides(tmp_path: Path, clock: Clock) -> None:
    """Events are shown as they come, a turn in them brings a poll, and a broken stream is taken up again."""

    def event(sequence: int, kind: str, **payload: Any) -> list[str]:
        data = json.dumps({"type": kind, "payload": payload})
        return [f"id: {sequence}", f"event: {kind}", f"data: {data}", ""]

    seller = Seller()
    seller.plan = deque([seller.ask, seller.pending])
    seller.polls = deque([seller.pending])
    first = [*event(1, "execution.started"), ":heartbeat", *event(2, "progress.updated", fraction=0.5)]
    seller.stream = [first, [*event(2, "progress.updated", fraction=0.5), *event(3, "execution.completed")]]
    seen: list[Any] = []
    seeker = make(seller, tmp_path, clock)
    seeker.live = True
    seeker.tell = lambda word, facts: seen.append(facts["kind"]) if word == "event" else None
    assert seeker.hire(URL, ORDER, INPUT).transaction == TRANSACTION
    assert seen == ["execution.started", "progress.updated", "execution.completed"]
    streams = [got for got in seller.got if got.method == "STREAM"]
    assert [got.headers.get("last-event-id") for got in streams] == [None, "2"]
    assert seller.executes[-1].headers["prefer"] == "wait=2"


def test_without_a_stream_polls_do(tmp_path: Path, clock: Clock) -> None:
    """A worker whose stream breaks off again and again is polled at its own pace."""
    seller = Seller()
    seller.plan = deque([seller.ask, seller.pending])
    seller.polls = deque([seller.pending] * 6)
    seeker = make(seller, tmp_path, clock)
    seeker.live = True
    assert seeker.hire(URL, ORDER, INPUT).transaction == TRANSACTION
    assert len([got for got in seller.got if got.method == "STREAM"]) == 3
    assert clock.slept == pytest.approx(12)


def test_a_given_up_purchase_is_not_unfinished(tmp_path: Path, clock: Clock) -> None:
    """Endings survive on disk."""
    seller = Seller()
    seeker = make(seller, tmp_path, clock)
    result = seeker.hire(URL, ORDER, INPUT)
    seeker.close(result.purchase)
    found = seeker.drawer.find(result.purchase.ref)
    assert found is not None
    assert found.ending is Ending.DONE


def _killed(got: Got) -> Any:
    raise KeyboardInterrupt
