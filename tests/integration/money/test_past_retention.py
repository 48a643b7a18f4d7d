"""After retention a contract's payment still gets its outcome; other requests learn nothing of money."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.fakes.paid_door import Deal, PaidDoor, asked
from tests.fakes.paid_worker import SECOND
from tests.fakes.seeker import signed_payment
from worker.capabilities.declare import Capability
from worker.core.errors import NotFound, Problem
from worker.engine.events import iso
from worker.hiring.task import TaskInput
from worker.local.valkey import EmbeddedStore
from worker.payments.payment import PaymentState

BODY = {"do": "ok"}
DAY = 86_400
KEPT_DAYS = 30


@pytest.fixture(name="paid_door")
def _paid_door(valkey: EmbeddedStore, client: redis.Redis, tmp_path: Path) -> PaidDoor:
    """A worker whose ledger is not balanced at the end, since records are removed."""
    return PaidDoor(tmp_path, client, valkey.url)


def worked(paid_door: PaidDoor, deal: Deal, header: str, outcome: str = "completed") -> str:
    """The execution that this payment bought, sealed with this outcome."""
    id = deal.execute(BODY, header).execution.id
    run(paid_door, id, outcome)
    return id


def run(paid_door: PaidDoor, id: str, outcome: str = "completed") -> None:
    """Verifies the payment, and seals the execution with this outcome."""
    while paid_door.beside:
        paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None
    paid_door.seal(taken, outcome)


def finish(paid_door: PaidDoor, id: str) -> None:
    """Runs a purchase and settles its payment."""
    run(paid_door, id)
    paid_door.settle(id)
    assert paid_door.execution(id).state == "completed"


def sold(paid_door: PaidDoor, capability: str = "echo") -> tuple[Deal, str, str]:
    """A paid and delivered contract, its payment and its execution."""
    deal = paid_door.deal(capability)
    header = deal.payment()
    id = deal.execute(BODY, header).execution.id
    finish(paid_door, id)
    return deal, header, id


def later(paid_door: PaidDoor) -> None:
    """After the retention period the clock has removed what ended before it."""
    paid_door.jump(KEPT_DAYS * DAY + 60)
    for _ in range(40):
        paid_door.clock.tick()
        if not paid_door.parts.client.zcard(paid_door.parts.keys.ended):
            return
    raise AssertionError("nothing was removed")


def refusal(deal: Deal, header: str | None) -> Problem:
    with pytest.raises(Problem) as caught:
        deal.execute(BODY, header)
    return caught.value


def test_payment_of_an_expired_record_learns_its_outcome(paid_door: PaidDoor) -> None:
    """410 with both times and the transaction; `charged` is true, since the payment settled."""
    deal, header, id = sold(paid_door)
    payment, execution = paid_door.money(id).payments[0], paid_door.execution(id)
    later(paid_door)
    assert paid_door.parts.ledger.money(id) is None
    refused = refusal(deal, header)
    assert (refused.status, refused.code, refused.charged) == (410, "RESULT_EXPIRED", True)
    assert refused.details["delivered_at"] == iso(execution.ended)
    assert refused.details["transaction"] == payment.transaction
    assert refused.details["settled_at"] <= refused.details["delivered_at"]
    assert refused.details["refunded"] is False


def test_request_without_the_payment_learns_nothing_of_money(paid_door: PaidDoor) -> None:
    """Without the payment the response neither affirms nor denies a charge."""
    deal, _, id = sold(paid_door)
    later(paid_door)
    for refused in (refusal(deal, None), refusal(deal, paid_door.deal().payment()), refusal(deal, "%%%")):
        assert isinstance(refused, NotFound)
        assert refused.charged is None and "charged" not in refused.advice
    with pytest.raises(NotFound) as caught:
        paid_door.parts.tasks.find(deal.document["contract_id"], id)
    assert caught.value.charged is None


def test_another_contracts_payment_reveals_nothing(paid_door: PaidDoor) -> None:
    """A settled payment is public: its outcome is shown only with its own contract id."""
    one, other = sold(paid_door), sold(paid_door)
    later(paid_door)
    assert isinstance(refusal(one[0], other[1]), NotFound)


def test_reimported_contract_is_not_sold_again(paid_door: PaidDoor) -> None:
    """The contract is known again, but its payment bought the first run: 410 and no 402."""
    deal, header, id = sold(paid_door)
    later(paid_door)
    fresh = paid_door.deal()
    keys, refs = (
        paid_door.parts.keys,
        [paid_door.parts.book.ref(each.document["contract_id"]) for each in (deal, fresh)],
    )
    paid_door.parts.client.rename(keys.contract(refs[1]), keys.contract(refs[0]))
    refused = refusal(deal, header)
    assert (refused.code, paid_door.parts.ledger.money(id)) == ("RESULT_EXPIRED", None)


def test_uncharged_old_payment_is_reported_uncharged(paid_door: PaidDoor) -> None:
    """Failed work was not charged: the payment's holder learns that, and when the work ended."""
    deal = paid_door.deal()
    header = deal.payment()
    id = worked(paid_door, deal, header, "failed")
    assert paid_door.money(id).payments[0].state is PaymentState.RELEASED
    later(paid_door)
    refused = refusal(deal, header)
    assert (refused.status, refused.charged) == (410, False)
    assert (refused.details["outcome"], "settled_at" in refused.details) == ("failed", False)


def test_untaken_second_payment_does_not_claim_uncharged(paid_door: PaidDoor) -> None:
    """The contract was charged through another payment, which its record no longer shows."""
    deal = paid_door.deal()
    refused_first, second = deal.payment(), deal.payment()
    paid_door.facilitator.planned["verify"].append("no")
    id = deal.execute(BODY, refused_first).execution.id
    paid_door.step()
    deal.execute(BODY, second)
    while paid_door.beside:
        paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None
    paid_door.seal(taken)
    paid_door.settle(id)
    later(paid_door)
    assert refusal(deal, second).charged is True
    refused = refusal(deal, refused_first)
    assert (refused.code, refused.charged) == ("RESULT_EXPIRED", None)


def test_purchase_without_contract_learns_its_outcome(paid_door: PaidDoor) -> None:
    """410 with the charge for the same payment, also when the capability is no longer sold."""
    buying, key, body = paid_door.parts.buying, paid_door.deal().key, TaskInput.of(BODY)
    offered = asked(lambda: buying.buy("echo", body, {})).offer.payment_required("")
    paid = {"PAYMENT-SIGNATURE": signed_payment(offered, key, paid_door.now() / SECOND)}
    finish(paid_door, buying.buy("echo", body, paid).execution.id)
    later(paid_door)
    for withdrawn in (False, True):
        if withdrawn:
            paid_door.parts.catalog.publish([Capability("other", description="o", price="0.01")])
            assert set(paid_door.parts.catalog.runnable(fresh=True)) == {"other"}
        with pytest.raises(Problem) as caught:
            buying.buy("echo", body, paid)
        refused = caught.value
        assert (refused.status, refused.code, refused.charged) == (410, "RESULT_EXPIRED", True), withdrawn
