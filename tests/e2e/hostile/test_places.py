"""Wallets that never settled share a fixed part of the places; those that paid come first.

The real scripts on a real store, one step at a time: the tests check who gets a place and in which
order work is taken, not how long it takes on this machine.
"""

from __future__ import annotations

import secrets

import pytest

from tests.fakes.paid_door import BALANCE, RICH, Deal, PaidDoor, asked
from worker.core.errors import Unavailable
from worker.payments.budget import Allowance
from worker.payments.ordered_queue import OrderedQueue

BODY = {"do": "ok"}
PLACES = 6


@pytest.fixture(autouse=True)
def _few_places(door: PaidDoor) -> None:
    door.parts.budget.allowance = Allowance(newcomers=PLACES)


def hired(door: PaidDoor, deal: Deal) -> str:
    """Hires and pays; the work waits for a process."""
    id = deal.execute(BODY, deal.payment()).execution.id
    door.step()
    return id


def settle(door: PaidDoor, id: str) -> None:
    """Completes the work and settles its payment."""
    taken = door.take(id)
    assert taken is not None and door.seal(taken) == "settling"
    door.hiring.settler.settle(id)
    assert door.execution(id).state == "completed"
    door.parts.client.lrem(door.parts.keys.express, 0, id)


def customer(door: PaidDoor, times: int = 3) -> str:
    """The key of a wallet with settled payments."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(times):
        settle(door, hired(door, door.deal(key=key)))
    return key


def line(door: PaidDoor) -> list[str]:
    """The express lane, oldest first."""
    ids = door.parts.client.lrange(door.parts.keys.express, 0, -1)
    return [id.decode() for id in ids]  # type: ignore[union-attr]


def refusal(deal: Deal) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        deal.execute(BODY)
    assert caught.value.charged is False and caught.value.retry_after
    return caught.value


def test_new_wallets_share_a_fixed_number_of_places(door: PaidDoor) -> None:
    """However many wallets are made, the next new one is refused before payment, and a customer is served."""
    known = customer(door)
    waiting = [hired(door, door.deal()) for _ in range(PLACES)]
    assert refusal(door.deal()).details["limit"] == "newcomers"
    assert asked(lambda: door.deal(key=known).execute(BODY)).status == 402
    settle(door, waiting[0])
    assert asked(lambda: door.deal().execute(BODY)).status == 402


def test_a_payment_signed_before_the_places_were_taken_is_refused_too(door: PaidDoor) -> None:
    """The claim counts places again, so a burst of signed payments gets no more places than there are."""
    late = door.deal()
    payment = late.payment()
    for _ in range(PLACES):
        hired(door, door.deal())
    with pytest.raises(Unavailable) as caught:
        late.execute(BODY, payment)
    assert caught.value.code == "UNPAID_WORK_LIMIT" and late.moved() == 0


def test_a_wallet_that_paid_once_is_no_pass_for_twenty_places(door: PaidDoor) -> None:
    """One settled cent covers one open payment; further ones take newcomers' places."""
    key = customer(door, times=1)
    for _ in range(PLACES + 1):
        hired(door, door.deal(key=key))
    assert refusal(door.deal(key=key)).details["limit"] == "newcomers"


def test_places_come_back_however_the_work_ends(door: PaidDoor) -> None:
    """Cancelled, refused by the facilitator, or not finished within the authorization's time."""
    deals = [door.deal() for _ in range(PLACES)]
    ids = [hired(door, deal) for deal in deals[:-1]]
    door.facilitator.planned["verify"].append("no")
    hired(door, deals[-1])
    assert asked(lambda: door.deal().execute(BODY)).status == 402
    hired(door, door.deal())
    refusal(door.deal())
    door.parts.tasks.cancel(door.parts.tasks.find(deals[0].document["contract_id"], ids[0]))
    assert asked(lambda: door.deal().execute(BODY)).status == 402


def test_work_of_customers_is_taken_before_newcomers_work(door: PaidDoor) -> None:
    """A customer who arrives last waits behind one newcomer, not behind all of them."""
    known = customer(door, times=6)
    new = [hired(door, door.deal()) for _ in range(PLACES)]
    paid = [hired(door, door.deal(key=known)) for _ in range(4)]
    assert line(door)[:6] == [new[0], *paid[:3], new[1], paid[3]]
    assert sorted(line(door)) == sorted([*new, *paid])


def test_newcomers_keep_every_fourth_place(door: PaidDoor) -> None:
    """Newcomers wait longer, but a steady flow of customers does not shut them out."""
    known = customer(door, times=12)
    first, second = hired(door, door.deal()), hired(door, door.deal())
    served = []
    for _ in range(8):
        hired(door, door.deal(key=known))
        served.append(line(door)[0])
        settle(door, served[-1])
    assert first in served and second in served


def test_one_coin_does_not_buy_work_through_many_wallets(door: PaidDoor) -> None:
    """The payer's balance is checked again before the run starts: with the money moved, no run starts."""
    coin_moves_on = []
    for _ in range(PLACES - 1):
        deal = door.deal()
        coin_moves_on.append((deal, hired(door, deal)))
        door.chain.mint(deal.wallet, -RICH)
    honest = door.deal()
    own = hired(door, honest)
    door.jump(10)
    started = []
    for id in line(door):
        if door.take_once(id) is not None:
            started.append(id)
        door.parts.client.lrem(door.parts.keys.express, 1, id)
    assert started == []
    door.tick()
    assert line(door) == [own]
    settle(door, own)
    for deal, id in coin_moves_on:
        assert door.execution(id).phase == "offered" and deal.moved() == 0
        task = door.parts.tasks.find(deal.document["contract_id"], id)
        payment = task.money.payment()
        assert payment is not None and payment.code == BALANCE
    assert honest.moved() == honest.price


def test_a_place_taken_with_money_that_went_away_counts_as_a_run(door: PaidDoor) -> None:
    """After three of them the wallet waits an hour, like one whose runs were not paid for."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(3):
        deal = door.deal(key=key)
        id = hired(door, deal)
        door.chain.mint(deal.wallet, -door.chain.balance(deal.wallet))
        door.jump(10)
        assert door.take(id) is None
    assert refusal(door.deal(key=key)).details["limit"] == "uncharged"


def test_a_customer_is_not_asked_twice(door: PaidDoor) -> None:
    """Work covered by the wallet's settled payments starts without another facilitator call."""
    key = customer(door)
    id = hired(door, door.deal(key=key))
    door.jump(10)
    assert door.take_once(id) is not None


def test_long_work_of_customers_goes_first_too(door: PaidDoor) -> None:
    """RQ's queue of long work has the same order."""
    known = customer(door, times=6)
    new = [hired(door, door.deal()) for _ in range(4)]
    paid = [hired(door, door.deal(key=known)) for _ in range(3)]
    for id in [*new, *paid]:
        OrderedQueue(door.parts.queue, door.parts.ledger).push(id)
    ids = door.parts.client.lrange(door.parts.queue.key, 0, -1)
    assert [id.decode() for id in ids] == [new[0], *paid, *new[1:]]  # type: ignore[union-attr]
