"""An input that the worker refuses after it was paid: the next one goes out under the same contract."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.seller import SEEKER_KEY, TRANSACTION, URL, Got, Seller, drop, failed
from worker.errors import BadRequest
from worker.payments.networks import BASE, BASE_SEPOLIA
from worker.seeker import Drawer, Limits, Order, Seeker, Wallet
from worker.seeker.drawer import Ending, Purchase
from worker.seeker.problems import PaymentUnknown, TaskFailed, WorkerRefused

WRONG, RIGHT = {"brief": ""}, {"brief": "A logo"}
ORDER = Order("logo-design")
NOW = 1_700_000_000.0
REFUSED = failed("INVALID_INPUT", 422, retryable=True, retries_left=3, field="brief", advice="be nice")


def make(
    seller: Seller, directory: Path, *, now: float = NOW, key: str = SEEKER_KEY, **limits: Any
) -> Seeker:
    given = Limits(**{"most": 1_000_000, **limits})
    drawer = Drawer(directory / "drawer")
    return Seeker(Wallet(key), drawer, given, http=seller, now=lambda: now, sleep=lambda seconds: None)


def waiting(directory: Path) -> tuple[Seller, Purchase]:
    """A seller that has refused the input of a paid task, and the purchase that is kept."""
    seller = Seller()
    seller.plan = deque([seller.ask, REFUSED])
    with pytest.raises(TaskFailed):
        make(seller, directory).hire(URL, ORDER, WRONG)
    [kept] = Drawer(directory / "drawer").unfinished()
    return seller, kept


def contracts(seller: Seller) -> int:
    return len([got for got in seller.got if (got.method, got.path) == ("POST", "/contracts")])


def test_the_refusal_says_that_contract_and_payment_stay_good(tmp_path: Path) -> None:
    """The advice is to correct the input and run again, and the purchase stays open for that."""
    seller = Seller()
    seller.plan = deque([seller.ask, REFUSED])
    seeker = make(seller, tmp_path)
    with pytest.raises(TaskFailed) as raised:
        seeker.hire(URL, ORDER, WRONG)
    assert (raised.value.code, raised.value.details["field"]) == ("INVALID_INPUT", "brief")
    assert "the same contract and payment" in raised.value.advice
    [kept] = seeker.drawer.unfinished()
    assert raised.value.details["ref"] == kept.ref
    assert kept.wants_input and kept.unsettled is not None
    assert seeker.correctable(URL, "logo-design") == kept


def test_a_corrected_input_costs_nothing_more(tmp_path: Path) -> None:
    """It goes out under the same contract with the identical payment, and ends the purchase well."""
    seller, kept = waiting(tmp_path)
    seeker = make(seller, tmp_path)
    result = seeker.correct(kept.ref, RIGHT)
    assert (result.transaction, contracts(seller)) == (TRANSACTION, 1)
    assert [got.body for got in seller.executes] == [b'{"brief":""}'] * 2 + [b'{"brief":"A logo"}']
    assert len(seller.payments) == 2 and len(set(seller.payments)) == 1
    assert len({got.headers["x-contract-id"] for got in seller.executes}) == 1
    assert seeker.correctable(URL, "logo-design") is None


def test_whoever_has_the_contract_sends_the_corrected_input_with_it(tmp_path: Path) -> None:
    """`execute` takes another input under a contract whose input was refused, and else does not."""
    seller, kept = waiting(tmp_path)
    assert kept.contract is not None
    seeker = make(seller, tmp_path)
    assert seeker.execute(URL, kept.contract, RIGHT).transaction == TRANSACTION
    with pytest.raises(BadRequest) as raised:
        seeker.execute(URL, kept.contract, {"brief": "Another"})
    assert raised.value.code == "IDEMPOTENCY_CONFLICT"
    assert len(set(seller.payments)) == 1


def test_the_corrected_input_is_on_disk_before_it_is_sent(tmp_path: Path) -> None:
    """Whoever dies while it is out comes back with the corrected input, not with the refused one."""
    seller, kept = waiting(tmp_path)
    found: list[tuple[str, bool]] = []

    def look(got: Got) -> None:
        if got.path == "/execute":
            [path] = (tmp_path / "drawer").glob("*.json")
            raw = json.loads(path.read_text())
            found.append((raw["body"], raw["wants_input"]))

    seller.watch = look
    seller.plan = deque([drop])
    make(seller, tmp_path).correct(kept.ref, RIGHT)
    assert found == [('{"brief":"A logo"}', False)] * 2


def test_a_wrong_correction_may_be_corrected_in_turn(tmp_path: Path) -> None:
    """Also when it is refused before any work, which with a payment out is not the end of it."""
    seller, kept = waiting(tmp_path)
    before_work = failed("INVALID_INPUT", 422, None, field="brief")
    for refusal in (REFUSED, before_work):
        seller.plan = deque([refusal])
        with pytest.raises(TaskFailed) as raised:
            make(seller, tmp_path).correct(kept.ref, {"brief": 7})
        assert (raised.value.code, raised.value.details["ref"]) == ("INVALID_INPUT", kept.ref)
    result = make(seller, tmp_path).correct(kept.ref, RIGHT)
    assert result.transaction == TRANSACTION
    assert len(set(seller.payments)) == 1 and contracts(seller) == 1


def test_when_no_correction_is_left_it_is_over(tmp_path: Path) -> None:
    """A refusal that the worker does not call retryable ends the purchase."""
    seller, kept = waiting(tmp_path)
    seller.plan = deque([failed("INVALID_INPUT", 422, retryable=False, charged=False)])
    seeker = make(seller, tmp_path)
    with pytest.raises(TaskFailed) as raised:
        seeker.correct(kept.ref, RIGHT)
    assert "same contract" not in raised.value.advice
    assert seeker.correctable(URL, "logo-design") is None and seeker.drawer.unfinished() == []


def test_a_refusal_before_anything_was_signed_keeps_nothing(tmp_path: Path) -> None:
    """Without a payment there is nothing to go on with, and the worker's own advice stands."""
    seller = Seller()
    seller.plan = deque([failed("INVALID_INPUT", 422, None, field="brief", advice="say more")])
    seeker = make(seller, tmp_path)
    with pytest.raises(WorkerRefused) as raised:
        seeker.hire(URL, ORDER, WRONG)
    assert raised.value.advice == "say more"
    assert seeker.correctable(URL, "logo-design") is None


def test_a_worker_that_goes_back_on_it_is_not_paid_twice(tmp_path: Path) -> None:
    """If the corrected input is a conflict all of a sudden the payment is unknown, and no other is signed."""
    seller, kept = waiting(tmp_path)
    seller.plan = deque([failed("IDEMPOTENCY_CONFLICT", 409, None)])
    seeker = make(seller, tmp_path)
    with pytest.raises(PaymentUnknown):
        seeker.correct(kept.ref, RIGHT)
    assert len(set(seller.payments)) == 1
    [left] = seeker.drawer.unfinished()
    assert left.ending is Ending.OPEN and not left.wants_input


@pytest.mark.parametrize(
    "changes",
    [
        {"now": NOW + 7 * 86_400},
        {"key": "0x" + "33" * 32},
        {"most": 499_999},
        {"network": BASE},
    ],
)
def test_only_what_may_go_on_is_gone_on_with(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A contract that is over, another wallet's, beyond the cap or on another network is left alone."""
    seller, _ = waiting(tmp_path)
    assert make(seller, tmp_path, network=BASE_SEPOLIA).correctable(URL, "logo-design") is not None
    assert make(seller, tmp_path, **changes).correctable(URL, "logo-design") is None
    same = make(seller, tmp_path)
    assert same.correctable("https://other.example", "logo-design") is None
    assert same.correctable(URL, "chat") is None


def test_a_drawer_of_an_older_version_is_read(tmp_path: Path) -> None:
    """A purchase that was kept before corrections were known waits for none."""
    seller, kept = waiting(tmp_path)
    [path] = (tmp_path / "drawer").glob("*.json")
    raw = json.loads(path.read_text())
    del raw["wants_input"]
    path.write_text(json.dumps(raw))
    seeker = make(seller, tmp_path)
    assert seeker.drawer.find(kept.ref) == replace(kept, wants_input=False)
    assert seeker.correctable(URL, "logo-design") is None
