"""Correcting an input that the worker refused after payment, under the same contract."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.fake_worker import SEEKER_KEY, TRANSACTION, URL, FakeWorker, ReceivedRequest, drop, failed
from worker.core.errors import BadRequest
from worker.seeker import Order, PurchaseStore, Seeker, SpendLimits, Wallet
from worker.seeker.problems import PaymentUnknown, TaskFailed, WorkerRefused
from worker.seeker.purchases import Purchase, PurchaseEnding
from worker.x402.networks import BASE, BASE_SEPOLIA

WRONG, RIGHT = {"brief": ""}, {"brief": "A logo"}
ORDER = Order("logo-design")
NOW = 1_700_000_000.0
REFUSED = failed("INVALID_INPUT", 422, retryable=True, retries_left=3, field="brief", advice="be nice")


def make(
    fake_worker: FakeWorker, directory: Path, *, now: float = NOW, key: str = SEEKER_KEY, **limits: Any
) -> Seeker:
    spend_limits = SpendLimits(**{"most": 1_000_000, **limits})
    purchases = PurchaseStore(directory / "purchases")
    return Seeker(
        Wallet(key), purchases, spend_limits, http=fake_worker, now=lambda: now, sleep=lambda seconds: None
    )


def waiting(directory: Path) -> tuple[FakeWorker, Purchase]:
    """A worker that refused the input of a paid task, and the saved purchase."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, REFUSED])
    with pytest.raises(TaskFailed):
        make(fake_worker, directory).hire(URL, ORDER, WRONG)
    [purchase] = PurchaseStore(directory / "purchases").unfinished()
    return fake_worker, purchase


def contracts(fake_worker: FakeWorker) -> int:
    return len([got for got in fake_worker.got if (got.method, got.path) == ("POST", "/contracts")])


def test_refusal_says_contract_and_payment_stay_valid(tmp_path: Path) -> None:
    """The advice is to correct the input and run again; the purchase stays open."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([fake_worker.ask, REFUSED])
    seeker = make(fake_worker, tmp_path)
    with pytest.raises(TaskFailed) as raised:
        seeker.hire(URL, ORDER, WRONG)
    assert (raised.value.code, raised.value.details["field"]) == ("INVALID_INPUT", "brief")
    assert "the same contract and payment" in raised.value.advice
    [purchase] = seeker.purchases.unfinished()
    assert raised.value.details["ref"] == purchase.ref
    assert purchase.wants_input and purchase.unsettled is not None
    assert seeker.correctable(URL, "logo-design") == purchase


def test_corrected_input_costs_nothing_more(tmp_path: Path) -> None:
    """The corrected input uses the same contract and the identical payment, and completes the purchase."""
    fake_worker, purchase = waiting(tmp_path)
    seeker = make(fake_worker, tmp_path)
    result = seeker.correct(purchase.ref, RIGHT)
    assert (result.transaction, contracts(fake_worker)) == (TRANSACTION, 1)
    assert [got.body for got in fake_worker.executes] == [b'{"brief":""}'] * 2 + [b'{"brief":"A logo"}']
    assert len(fake_worker.payments) == 2 and len(set(fake_worker.payments)) == 1
    assert len({got.headers["x-contract-id"] for got in fake_worker.executes}) == 1
    assert seeker.correctable(URL, "logo-design") is None


def test_correction_by_contract_id(tmp_path: Path) -> None:
    """`execute` accepts a different input only under a contract whose input was refused."""
    fake_worker, purchase = waiting(tmp_path)
    assert purchase.contract is not None
    seeker = make(fake_worker, tmp_path)
    assert seeker.execute(URL, purchase.contract, RIGHT).transaction == TRANSACTION
    with pytest.raises(BadRequest) as raised:
        seeker.execute(URL, purchase.contract, {"brief": "Another"})
    assert raised.value.code == "IDEMPOTENCY_CONFLICT"
    assert len(set(fake_worker.payments)) == 1


def test_corrected_input_is_saved_before_it_is_sent(tmp_path: Path) -> None:
    """After a crash during sending, the client resumes with the corrected input, not the refused one."""
    fake_worker, purchase = waiting(tmp_path)
    found: list[tuple[str, bool]] = []

    def look(got: ReceivedRequest) -> None:
        if got.path == "/execute":
            [path] = (tmp_path / "purchases").glob("*.json")
            raw = json.loads(path.read_text())
            found.append((raw["body"], raw["wants_input"]))

    fake_worker.watch = look
    fake_worker.plan = deque([drop])
    make(fake_worker, tmp_path).correct(purchase.ref, RIGHT)
    assert found == [('{"brief":"A logo"}', False)] * 2


def test_second_correction_is_possible(tmp_path: Path) -> None:
    """A correction refused before any work can be corrected again, because the payment is already sent."""
    fake_worker, purchase = waiting(tmp_path)
    before_work = failed("INVALID_INPUT", 422, None, field="brief")
    for refusal in (REFUSED, before_work):
        fake_worker.plan = deque([refusal])
        with pytest.raises(TaskFailed) as raised:
            make(fake_worker, tmp_path).correct(purchase.ref, {"brief": 7})
        assert (raised.value.code, raised.value.details["ref"]) == ("INVALID_INPUT", purchase.ref)
    result = make(fake_worker, tmp_path).correct(purchase.ref, RIGHT)
    assert result.transaction == TRANSACTION
    assert len(set(fake_worker.payments)) == 1 and contracts(fake_worker) == 1


def test_exhausted_corrections_end_the_purchase(tmp_path: Path) -> None:
    """A refusal that the worker does not mark retryable ends the purchase."""
    fake_worker, purchase = waiting(tmp_path)
    fake_worker.plan = deque([failed("INVALID_INPUT", 422, retryable=False, charged=False)])
    seeker = make(fake_worker, tmp_path)
    with pytest.raises(TaskFailed) as raised:
        seeker.correct(purchase.ref, RIGHT)
    assert "same contract" not in raised.value.advice
    assert seeker.correctable(URL, "logo-design") is None and seeker.purchases.unfinished() == []


def test_refusal_before_signing_saves_nothing(tmp_path: Path) -> None:
    """Without a payment there is nothing to resume; the worker's own advice is shown."""
    fake_worker = FakeWorker()
    fake_worker.plan = deque([failed("INVALID_INPUT", 422, None, field="brief", advice="say more")])
    seeker = make(fake_worker, tmp_path)
    with pytest.raises(WorkerRefused) as raised:
        seeker.hire(URL, ORDER, WRONG)
    assert raised.value.advice == "say more"
    assert seeker.correctable(URL, "logo-design") is None


def test_worker_that_refuses_after_all_is_not_paid_twice(tmp_path: Path) -> None:
    """If the corrected input gets a conflict, the payment is unknown and no other is signed."""
    fake_worker, purchase = waiting(tmp_path)
    fake_worker.plan = deque([failed("IDEMPOTENCY_CONFLICT", 409, None)])
    seeker = make(fake_worker, tmp_path)
    with pytest.raises(PaymentUnknown):
        seeker.correct(purchase.ref, RIGHT)
    assert len(set(fake_worker.payments)) == 1
    [left] = seeker.purchases.unfinished()
    assert left.ending is PurchaseEnding.OPEN and not left.wants_input


@pytest.mark.parametrize(
    "changes",
    [
        {"now": NOW + 7 * 86_400},
        {"key": "0x" + "33" * 32},
        {"most": 499_999},
        {"network": BASE},
    ],
)
def test_only_correctable_purchases_are_corrected(tmp_path: Path, changes: dict[str, Any]) -> None:
    """An expired contract, another wallet, a lower cap or another network rules out a correction."""
    fake_worker, _ = waiting(tmp_path)
    assert make(fake_worker, tmp_path, network=BASE_SEPOLIA).correctable(URL, "logo-design") is not None
    assert make(fake_worker, tmp_path, **changes).correctable(URL, "logo-design") is None
    same = make(fake_worker, tmp_path)
    assert same.correctable("https://other.example", "logo-design") is None
    assert same.correctable(URL, "chat") is None


def test_purchase_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    """A purchase saved before corrections existed does not wait for one."""
    fake_worker, purchase = waiting(tmp_path)
    [path] = (tmp_path / "purchases").glob("*.json")
    raw = json.loads(path.read_text())
    del raw["wants_input"]
    path.write_text(json.dumps(raw))
    seeker = make(fake_worker, tmp_path)
    assert seeker.purchases.find(purchase.ref) == replace(purchase, wants_input=False)
    assert seeker.correctable(URL, "logo-design") is None
