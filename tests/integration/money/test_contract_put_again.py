"""A seeker puts a contract again that the store has lost and whose payment has landed."""

from __future__ import annotations

import pytest

from tests.fakes.paid_door import PaidDoor
from worker.core.errors import Problem
from worker.hiring.conditions import MayBePaid
from worker.parts import Parts
from worker.x402.payment_keys import PaymentKey

BODY = {"do": "ok"}


@pytest.mark.parametrize("running_s", [0, 3_600], ids=["new store", "store that has run for long"])
def test_contract_put_again_is_bound_to_its_payment(paid_door: PaidDoor, running_s: int) -> None:
    """It gets no second 402: it waits for the ledger comparison, then runs."""
    paid_door.jump(running_s)
    assert running_s == 0 or paid_door.comparison.run()
    deal = paid_door.deal()
    deal.payment()
    contract = paid_door.hiring.book.find(deal.document["contract_id"])
    assert contract is not None
    keys = paid_door.parts.keys
    paid_door.parts.client.delete(keys.contract(contract.ref))
    paid_door.parts.client.zrem(keys.contracts, keys.contract(contract.ref))
    paid_door.chain.settle((deal.wallet, "0x" + "5a" * 32), paid_door.pay_to, deal.price)
    paid_door.jump(700)
    assert paid_door.comparison.run()
    assert [each.outcome for each in paid_door.parts.found.listed()] == ["listed"]

    paid_door.hiring.book.register(deal.document)
    with pytest.raises(MayBePaid):
        deal.execute(BODY)
    paid_door.jump(3)
    assert paid_door.comparison.run(), "somebody waits for it"
    task = deal.execute(BODY)
    assert task.money.paid and deal.moved() == deal.price
    network = paid_door.parts.network
    key = str(PaymentKey(network.caip2, network.asset, deal.wallet, "0x" + "5a" * 32))
    assert paid_door.parts.ledger.bound(key) == (task.execution.id, 1)


def test_a_contract_put_again_is_shown_as_it_is_stored(paid_door: PaidDoor) -> None:
    """Its hash leaves the signatures out, so another form of one makes another document of the same hash.

    Another process takes it.
    """
    deal, keys = paid_door.deal(), paid_door.parts.keys
    first = paid_door.contract(deal)
    paid_door.parts.client.delete(keys.contract(first.ref))
    signatures = deal.document["signatures"]
    other = {**signatures, "seeker": f"sig_{signatures['seeker'].removeprefix('sig_')}"}
    assert other != signatures
    Parts(paid_door.settings, "web").book.register({**deal.document, "signatures": other})
    with pytest.raises(Problem):
        deal.execute(BODY)
    again = paid_door.contract(deal)
    assert again.hash == first.hash and again.document["signatures"] == other
