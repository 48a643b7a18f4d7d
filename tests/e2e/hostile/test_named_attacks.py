"""The attacks named in papers of 2026, each against the real scripts on a real store.

docs/security.md names the tests of attacks covered elsewhere; these are the others.
"""

from __future__ import annotations

import json
import secrets

import pytest

from tests.fakes.paid_door import PaidDoor, asked
from worker.core.errors import Problem, Unavailable

BODY = {"do": "ok"}
SECRET = "ada@example.com 4111-1111"


@pytest.mark.parametrize("seconds", [1, 8, 30, 60])
def test_free_shopping_with_a_short_authorization(door: PaidDoor, seconds: int) -> None:
    """An authorization that verifies now but expires before settlement starts no work."""
    deal = door.deal()
    short = deal.payment(valid_before=door.now() // 1_000_000 + seconds)
    assert asked(lambda: deal.execute(BODY, short)).code == "PAYMENT_INVALID"
    assert deal.id is None and not door.beside


def test_a_payment_is_for_one_contract(door: PaidDoor) -> None:
    """Cross-resource substitution: a wallet's payment for one contract buys no other."""
    cheap = door.deal()
    other = door.deal(key=cheap.key)
    payment = cheap.payment()
    cheap.execute(BODY, payment)
    with pytest.raises(Problem) as refused:
        other.execute(BODY, payment)
    assert refused.value.code == "PAYMENT_USED" and other.id is None


def test_the_price_of_a_cheaper_capability_buys_no_dearer_one(door: PaidDoor) -> None:
    """The amount is the contract's, whatever was signed for another."""
    cheap = door.deal()
    dear = door.deal("early", key=cheap.key)
    assert asked(lambda: dear.execute(BODY, cheap.payment())).code == "PAYMENT_INVALID"


def test_a_result_is_shown_only_after_the_settlement(door: PaidDoor) -> None:
    """Denial of settlement: a wallet that verifies but does not settle gets no part of the result."""
    deal = door.deal()
    id = deal.execute(BODY, deal.payment()).execution.id
    door.step()
    taken = door.take(id)
    assert taken is not None and door.seal(taken) == "settling"
    door.refuse(id)
    task = door.parts.tasks.find(deal.document["contract_id"], id)
    assert task.sealed and task.unpaid and deal.moved() == 0
    kinds = [event.kind for batch in [door.parts.executions.events(id)] for event in batch]
    assert "execution.completed" not in kinds
    assert asked(lambda: deal.execute(BODY)).status == 402


def test_a_smart_wallet_that_changes_its_mind_gets_three_runs_and_no_result(door: PaidDoor) -> None:
    """ERC-1271: a signature of its own form verifies, then the wallet denies it at the settlement."""
    key = "0x" + secrets.token_hex(32)
    for _ in range(3):
        deal = door.deal(key=key)
        id = deal.execute(BODY, deal.payment(signature="0x" + "62" * 200)).execution.id
        door.step()
        taken = door.take(id)
        assert taken is not None and door.seal(taken) == "settling"
        door.refuse(id, "flips")
        task = door.parts.tasks.find(deal.document["contract_id"], id)
        assert task.sealed and task.unpaid and deal.moved() == 0
        assert asked(lambda deal=deal: deal.execute(BODY)).status == 402
    with pytest.raises(Unavailable) as refused:
        door.deal(key=key).execute(BODY)
    assert refused.value.details["limit"] == "uncharged"


def test_an_observer_that_settles_first_pays_for_the_seeker(door: PaidDoor) -> None:
    """Settlement pre-emption: a third party submits the authorization, which the chain shows."""
    deal = door.deal()
    payment = deal.payment()
    id = deal.execute(BODY, payment).execution.id
    door.step()
    taken = door.take(id)
    assert taken is not None and door.seal(taken) == "settling"
    signed = json.loads(door.parts.ledger.payload(id, 1)[0])["payload"]["authorization"]
    door.chain.settle((deal.wallet, signed["nonce"]), door.pay_to, deal.price)
    door.hiring.settler.settle(id)
    for _ in range(3):
        door.jump(10)
        door.tick()
    assert door.execution(id).state == "completed" and deal.moved() == deal.price


def test_what_a_seeker_writes_does_not_reach_facilitator_or_chain(door: PaidDoor) -> None:
    """Payment metadata holds only the worker's own words: no task description, no input, no contract id."""
    deal = door.deal(terms={"note": SECRET}, task={"description": SECRET})
    offer = str(deal.offer({"do": SECRET}))
    assert SECRET not in offer and deal.document["contract_id"] not in offer
    id = deal.execute({"do": SECRET}, deal.payment()).execution.id
    payload, requirements = door.parts.ledger.payload(id, 1)
    assert SECRET not in payload + requirements
    assert deal.document["contract_id"] not in payload + requirements
