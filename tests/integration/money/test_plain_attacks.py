"""Attacks on the plain door: a stranger's names, bodies and payments cost nobody else anything."""

from __future__ import annotations

import pytest

from tests.fakes import facilitator_faults as faults
from tests.fakes.paid_door import PaidDoor, asked
from tests.fakes.paid_worker import SECOND, PaidWorker
from tests.fakes.plain_buyer import PlainBuyer
from tests.fakes.seeker import decoded, encoded, signed_payment
from worker.hiring.task import TaskInput
from worker.payments.budget import UnpaidWork

BODY = {"do": "ok"}


def buyer(paid_worker: PaidWorker, capability: str = "echo") -> PlainBuyer:
    return PlainBuyer(paid_worker.seeker(), capability)


@pytest.mark.parametrize("valid_before", [2**256 - 1, 10**12, 10**15, 0])
def test_an_absurd_end_of_a_payment_is_answered_with_the_offer(
    paid_worker: PaidWorker, valid_before: int
) -> None:
    """Many clients sign payments without a valid end: the response states the right one."""
    plain = buyer(paid_worker)
    document = decoded(plain.sign(BODY))
    document["payload"]["authorization"]["validBefore"] = str(valid_before)
    answer = plain.send(BODY, encoded(document))
    assert answer.status == 402, answer.content
    assert answer.json["details"]["field"] == "payload.authorization.validBefore"


def claim_in_the_name_of(paid_worker: PaidWorker, victim: PlainBuyer, identifier: str) -> None:
    """A refused payment in the victim's name, with a signature that we cannot check ourselves."""
    paid_worker.fault("verify", victim.wallet, faults.refuse("invalid_exact_evm_payload_signature"))
    document = decoded(victim.sign(BODY, identifier=identifier))
    document["payload"]["signature"] = "0x" + "11" * 66
    answer = victim.send(BODY, encoded(document), Prefer="wait=10")
    assert (answer.status, answer.code) == (402, "PAYMENT_INVALID"), answer.content


def test_a_stranger_blocks_no_identifier(paid_worker: PaidWorker) -> None:
    """An identifier belongs to the payer whose key proves it, whatever others sent under that name."""
    victim = buyer(paid_worker)
    payment = victim.sign(BODY, identifier="order-number-00000001")
    claim_in_the_name_of(paid_worker, victim, "order-number-00000001")
    answer = victim.send(BODY, payment)
    assert answer.status == 200, answer.content


def test_a_stranger_adds_nothing_to_a_payers_list(paid_worker: PaidWorker) -> None:
    """GET /tasks lists the wallet's purchases, not payments refused in its name."""
    victim = buyer(paid_worker)
    claim_in_the_name_of(paid_worker, victim, "order-number-00000002")
    bought = victim.buy(BODY).json
    listed = victim.seeker.door("GET", "/tasks", None, {"SIGN-IN-WITH-X": victim.proof()}).json["tasks"]
    assert [each["task_id"] for each in listed] == [bought["task_id"]]


def test_refusals_are_not_cacheable(paid_worker: PaidWorker) -> None:
    """Every refusal of the plain door has `no-store`: a shared cache would show it to other payers."""
    door = buyer(paid_worker).seeker.door
    for method, path, headers in (
        ("GET", "/buy/nothing", {}),
        ("GET", "/tasks", {"SIGN-IN-WITH-X": "e30="}),
        ("POST", "/buy/echo", {"Content-Type": "text/plain", "X-PAYMENT": "e30="}),
    ):
        answer = door(method, path, None, headers)
        assert answer.status >= 400
        assert "no-store" in (answer.header("Cache-Control") or ""), (method, path, answer.status)


def test_no_facilitator_learns_what_opens_the_result(paid_worker: PaidWorker) -> None:
    """The secret identifier behind the token is neither stored nor sent on; only its digest is."""
    plain = buyer(paid_worker)
    identifier = "pay_7d5d747be160e280504c099d984bcfe0"
    payment = plain.sign(BODY, identifier=identifier)
    bought = plain.send(BODY, payment)
    stored, _ = paid_worker.parts.ledger.payload(bought.json["task_id"], 1)
    assert identifier not in stored
    assert "payment-identifier" in stored
    assert plain.send(BODY, payment).content == bought.content


def test_found_money_pays_no_purchase_of_a_stranger(paid_door: PaidDoor) -> None:
    """A refused purchase in a wallet's name takes no money that the wallet sent for another purpose."""
    deal = paid_door.deal()
    buying = paid_door.parts.buying
    quote = asked(lambda: buying.buy("echo", TaskInput.of(BODY), {}))
    payment = signed_payment(quote.offer.payment_required(""), deal.key, paid_door.now() / SECOND)
    document = decoded(payment)
    document["payload"]["signature"] = "0x" + "11" * 66
    paid_door.facilitator.planned["verify"].append("no")
    task = buying.buy("echo", TaskInput.of(BODY), {"PAYMENT-SIGNATURE": encoded(document)})
    while paid_door.beside:
        paid_door.step()
    assert paid_door.execution(task.execution.id).phase == "offered"
    paid_door.jump(3)
    paid_door.chain.settle((deal.wallet, "0x" + "5a" * 32), paid_door.pay_to, deal.price)
    paid_door.jump(3)
    transfers = paid_door.chain.transfers_to(paid_door.pay_to, 0, paid_door.chain.head().block)
    assert len(transfers) == 1
    assert paid_door.parts.found.bind(transfers) == []
    assert paid_door.parts.found.waiting_for(paid_door.contract(deal).ref) is not None


def test_claims_in_a_wallets_name_do_not_shut_it_out(paid_door: PaidDoor) -> None:
    """While strangers' payments in its name await refusal by the facilitator, the wallet can still buy."""
    deal, buying = paid_door.deal(), paid_door.parts.buying

    def buy(number: int, *, forged: bool) -> str:
        body = TaskInput.of({"number": number})
        quote = asked(lambda: buying.buy("echo", body, {}))
        payment = decoded(
            signed_payment(quote.offer.payment_required(""), deal.key, paid_door.now() / SECOND)
        )
        if forged:
            payment["payload"]["signature"] = "0x" + "11" * 66
        return buying.buy("echo", body, {"PAYMENT-SIGNATURE": encoded(payment)}).execution.phase

    with pytest.raises(UnpaidWork):
        for number in range(10):
            buy(number, forged=True)
    assert buy(10, forged=False) == "verifying"
