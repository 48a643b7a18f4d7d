"""The budget of uncharged work per wallet, and how it is reported before payment."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.fakes.paid_door import Deal, PaidDoor, asked
from tests.fakes.paid_worker import SECOND
from worker.core.errors import Unavailable
from worker.parts import Parts
from worker.payments.budget import Allowance
from worker.queue.runner import failure
from worker.remote.outcomes import OUTPUT_UNFIT

BODY = {"do": "ok"}
HOUR = 3600


def begun(paid_door: PaidDoor, deal: Deal) -> str:
    """A running execution whose payment is verified."""
    id = deal.execute(BODY, deal.payment()).execution.id
    paid_door.step()
    if paid_door.execution(id).phase == "settling":
        paid_door.settle(id)
    assert paid_door.take(id) is not None
    return id


def unfit(paid_door: PaidDoor, deal: Deal) -> None:
    id = begun(paid_door, deal)
    error = failure("OUTPUT_SCHEMA_INVALID", OUTPUT_UNFIT)
    sealed = paid_door.parts.store.seal(id, 1, "failed", output=b"", result=b"", error=error, payload=error)
    assert sealed == "ok" and paid_door.execution(id).state == "failed"


def cancelled(paid_door: PaidDoor, deal: Deal) -> None:
    id = begun(paid_door, deal)
    deal.cancel(id)


def cancelled_by_the_operator(paid_door: PaidDoor, deal: Deal) -> None:
    paid_door.parts.executions.cancel(begun(paid_door, deal))


def parked(paid_door: PaidDoor, deal: Deal) -> None:
    assert paid_door.park(paid_door.execution(begun(paid_door, deal)), "input") == "parked"


def refused_at_settlement(paid_door: PaidDoor, deal: Deal) -> None:
    id = begun(paid_door, deal)
    assert paid_door.seal(paid_door.execution(id)) == "settling"
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "payment_due"


def crashed(paid_door: PaidDoor, deal: Deal) -> None:
    id = begun(paid_door, deal)
    for _ in range(2):
        paid_door.lose(paid_door.execution(id))
        assert paid_door.take(id) is not None
    paid_door.lose(paid_door.execution(id))
    assert paid_door.execution(id).state == "failed"


def paid(paid_door: PaidDoor, deal: Deal) -> None:
    id = begun(paid_door, deal)
    if paid_door.seal(paid_door.execution(id)) == "settling":
        paid_door.settle(id)
    assert paid_door.execution(id).state == "completed"


def refusal(deal: Deal) -> Unavailable:
    """The refusal of a request without a payment; never a 402."""
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY)
    assert caught.value.code == "UNPAID_WORK_LIMIT" and not caught.value.charged
    return caught.value


@pytest.mark.parametrize(
    "run", [unfit, cancelled, cancelled_by_the_operator, parked, refused_at_settlement, crashed]
)
def test_a_new_wallet_has_three_uncharged_runs_an_hour(
    paid_door: PaidDoor, run: Callable[[PaidDoor, Deal], None]
) -> None:
    """Runs count whatever ended them; the next contract is refused before payment, with the true wait."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(3):
        run(paid_door, paid_door.deal(key=key))
        paid_door.jump(600)
    deal = paid_door.deal(key=key)
    message = refusal(deal)
    assert message.details["limit"] == "uncharged"
    assert message.retry_after is not None and HOUR - 1810 <= message.retry_after <= HOUR - 1800
    paid_door.jump(message.retry_after - 20)
    refusal(deal)
    paid_door.jump(20)
    assert asked(lambda: deal.execute(BODY)).status == 402


def test_refunded_prepaid_work_counts_as_uncharged(paid_door: PaidDoor) -> None:
    """A refunded prepaid run counts as uncharged, and the wallet has paid nothing."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(3):
        unfit(paid_door, paid_door.deal("early", key=key))
    assert refusal(paid_door.deal(key=key)).details["limit"] == "uncharged"


def test_budget_is_checked_again_at_the_claim(paid_door: PaidDoor) -> None:
    """A payment signed before the budget ran out is refused at the claim, with the same message."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(3):
        cancelled(paid_door, paid_door.deal(key=key))
    # As if the check had run just before.
    paid_door.parts.budget.allowance = Allowance(free_runs=9)
    deal = paid_door.deal(key=key)
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY, deal.payment())
    assert caught.value.code == "UNPAID_WORK_LIMIT" and deal.moved() == 0
    assert caught.value.retry_after is not None and HOUR - 10 <= caught.value.retry_after <= HOUR


def test_work_that_never_started_costs_no_budget(paid_door: PaidDoor) -> None:
    """Refused at verification or cancelled before the start: no work was done."""
    key = "0x" + secrets.token_hex(32)
    for n in range(8):
        deal = paid_door.deal(key=key)
        paid_door.facilitator.planned["verify"].append("no" if n % 2 else "")
        id = deal.execute(BODY, deal.payment()).execution.id
        paid_door.step()
        if not n % 2:
            deal.cancel(id)
    assert asked(lambda: paid_door.deal(key=key).execute(BODY)).status == 402


def test_budget_grows_with_what_a_wallet_has_paid(paid_door: PaidDoor) -> None:
    """Each price paid adds one uncharged run an hour; more expensive work gets fewer runs."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(2):
        paid(paid_door, paid_door.deal(key=key))
    for _ in range(4):
        cancelled(paid_door, paid_door.deal(key=key))
    assert refusal(paid_door.deal("early", key=key)).details["limit"] == "uncharged"
    cancelled(paid_door, paid_door.deal(key=key))
    assert refusal(paid_door.deal(key=key)).details["limit"] == "uncharged"


def test_wallets_that_never_paid_share_a_limit(paid_door: PaidDoor) -> None:
    """The limit is shared by any number of wallets; a wallet that has paid is exempt."""
    paid_door.parts.budget.allowance = Allowance(unproven_runs=4)
    known = paid_door.deal()
    paid(paid_door, known)
    for _ in range(4):
        cancelled(paid_door, paid_door.deal())
        paid_door.jump(60)
    message = refusal(paid_door.deal())
    assert message.details["limit"] == "unproven"
    assert message.retry_after is not None and HOUR - 250 <= message.retry_after <= HOUR - 240
    assert asked(lambda: paid_door.deal(key=known.key).execute(BODY)).status == 402


def test_budget_entries_expire(paid_door: PaidDoor) -> None:
    """After an hour a wallet that paid nothing leaves only the entries of its newest run."""
    for _ in range(5):
        cancelled(paid_door, paid_door.deal())
    paid_door.jump(HOUR + 1)
    cancelled(paid_door, paid_door.deal())
    stored = paid_door.parts.client.hgetall(paid_door.parts.keys.wallets)
    assert len([name for name in stored if name.startswith(b"runs ")]) == 1  # type: ignore[union-attr]
    assert len(stored[b"unproven"].split()) == 1  # type: ignore[index]


def test_parked_task_keeps_its_free_retry(paid_door: PaidDoor) -> None:
    """The budget does not block a free retry that the contract grants."""
    key = "0x" + secrets.token_hex(32)
    deal = paid_door.deal(key=key)
    id = begun(paid_door, deal)
    paid_door.park(paid_door.execution(id), "retry")
    for _ in range(2):
        cancelled(paid_door, paid_door.deal(key=key))
    refusal(paid_door.deal(key=key))
    assert deal.execute(BODY).execution.id == id
    assert paid_door.take(id) is not None


def test_stored_times_come_from_the_stores_clock(paid_door: PaidDoor) -> None:
    """No budget entry is ahead of the store's clock."""
    cancelled(paid_door, paid_door.deal())
    entry = paid_door.parts.client.hget(paid_door.parts.keys.wallets, "unproven")
    assert isinstance(entry, bytes)
    assert abs(int(entry.split(b":")[0]) - paid_door.now()) < 60 * SECOND


def test_open_runs_count_against_a_new_wallets_budget(paid_door: PaidDoor) -> None:
    """Each open run counts until its payment is settled or released, since it may end uncharged."""
    key = "0x" + secrets.token_hex(32)
    cancelled(paid_door, paid_door.deal(key=key))
    deals = [paid_door.deal(key=key) for _ in range(3)]
    offers = [deal.payment() for deal in deals]
    for deal, payment in zip(deals[:2], offers[:2], strict=True):
        assert deal.execute(BODY, payment).first
    with pytest.raises(Unavailable) as caught:
        deals[2].execute(BODY, offers[2])
    assert caught.value.details["limit"] == "open" and deals[2].moved() == 0
    id = deals[0].execute(BODY).execution.id
    paid_door.step()
    assert paid_door.take(id) is not None
    if paid_door.seal(paid_door.execution(id)) == "settling":
        paid_door.settle(id)
    assert deals[2].execute(BODY, offers[2]).first, "it has paid: the same payment is welcome now"


@pytest.mark.parametrize("end", ["retry", "cancel", "too late"])
def test_parked_work_is_counted_once(paid_door: PaidDoor, end: str) -> None:
    """It counts as an ended run, not as an open one; both counters return to 0, whatever its outcome."""
    key = "0x" + secrets.token_hex(32)
    deal = paid_door.deal(key=key)
    id = begun(paid_door, deal)
    paid_door.park(paid_door.execution(id), "retry")
    wallets, payer = paid_door.parts.keys.wallets, paid_door.money(id).payments[0].payer
    cancelled(paid_door, paid_door.deal(key=key))
    assert asked(lambda: paid_door.deal(key=key).execute(BODY)).status == 402
    if end == "retry":
        deal.execute(BODY)
        assert paid_door.parts.client.hget(wallets, f"parked {payer}") == b"0"
        refusal(paid_door.deal(key=key))
    elif end == "too late":
        assert paid_door.parts.ledger.repay(id) == "payment_due"
    if end != "too late":
        deal.cancel(id)
    for counted in ("open", "parked"):
        assert paid_door.parts.client.hget(wallets, f"{counted} {payer}") == b"0"


def test_an_author_may_fail_often_on_a_laptop(paid_door: PaidDoor) -> None:
    """`worker local` and `worker dev` do not block an author after a few failed runs."""
    settings = paid_door.parts.settings
    laptop = Parts(replace(settings, worker_env="local"), "cli").budget.allowance
    assert laptop.free_runs >= 1_000 and laptop.unproven_runs >= 1_000
    deployed = Parts(replace(settings, worker_env="staging"), "cli").budget.allowance
    assert deployed == Allowance()
