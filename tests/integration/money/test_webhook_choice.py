"""Which webhook is called: that of the request whose payment was accepted before work began."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.paid_door import BALANCE, Deal, PaidDoor, asked
from worker.core.errors import Problem
from worker.delivery.outbound import TimedOut, Unreachable
from worker.delivery.webhooks import hooks_of

BODY, OTHER = {"do": "ok"}, {"do": "other"}
# Loopback addresses, which a test's worker may call without a DNS look-up.
FIRST, SECOND, THIRD = (f"http://127.0.0.1:9/{name}" for name in ("first", "second", "third"))


def notified(paid_door: PaidDoor, id: str) -> list[str]:
    return [hook.url for hook in hooks_of(paid_door.execution(id))]


def gone(url: str) -> None:
    """The address check of a host that is gone, temporarily or permanently."""
    raise Unreachable("name", "the host name does not resolve")


def refused(paid_door: PaidDoor, deal: Deal, webhook: str | None = FIRST) -> str:
    """An execution whose only payment so far was refused before any work."""
    paid_door.facilitator.planned["verify"].append("no")
    id = deal.execute(BODY, deal.payment(), webhook).execution.id
    paid_door.step()
    assert paid_door.execution(id).phase == "offered"
    return id


@pytest.mark.parametrize("body", [BODY, OTHER])
def test_next_payment_sets_the_webhook(paid_door: PaidDoor, body: dict[str, str]) -> None:
    """After a refused payment, the paying request sets the webhook, with the same input or another."""
    deal = paid_door.deal()
    id = refused(paid_door, deal)
    assert notified(paid_door, id) == [FIRST]
    assert deal.execute(body, deal.payment(), SECOND).execution.id == id
    paid_door.step()
    assert paid_door.execution(id).phase == "working" and notified(paid_door, id) == [SECOND]


def test_later_payment_can_add_a_webhook(paid_door: PaidDoor) -> None:
    """An address sent only with the second payment is called too."""
    deal = paid_door.deal()
    id = refused(paid_door, deal, None)
    assert notified(paid_door, id) == []
    deal.execute(BODY, deal.payment(), SECOND)
    paid_door.step()
    assert notified(paid_door, id) == [SECOND]


def test_payment_without_a_webhook_drops_the_refused_ones(paid_door: PaidDoor) -> None:
    """A paying request without an address wins: the address of a refused payment is dropped."""
    deal = paid_door.deal()
    id = refused(paid_door, deal)
    deal.execute(BODY, deal.payment())
    paid_door.step()
    assert notified(paid_door, id) == []


def test_contracts_webhook_is_always_called(paid_door: PaidDoor) -> None:
    """The webhook in the signed contract is called whatever the requests say."""
    deal = paid_door.deal(webhook={"url": THIRD, "token": "t"})
    id = refused(paid_door, deal)
    assert notified(paid_door, id) == [THIRD, FIRST]
    deal.execute(BODY, deal.payment(), SECOND)
    paid_door.step()
    assert notified(paid_door, id) == [THIRD, SECOND]
    assert hooks_of(paid_door.execution(id))[0].token == "t"


def test_found_payment_calls_the_contracts_webhooks(paid_door: PaidDoor) -> None:
    """The claim was lost and the money found: the webhooks of input sender and contract are called."""
    deal = paid_door.deal(webhook={"url": THIRD})
    paid_door.jump(60)
    paid_door.chain.settle((deal.wallet, "0x" + "5a" * 32), paid_door.pay_to, deal.price)
    paid_door.jump(700)
    paid_door.tick()
    task = deal.execute(BODY, None, FIRST)
    assert task.money.paid == 1 and notified(paid_door, task.execution.id) == [THIRD, FIRST]


@pytest.mark.parametrize(
    "webhook",
    [{"url": "http://10.0.0.1/x"}, {"url": THIRD, "authentication": {"scheme": "Bearer"}}],
    ids=["address", "authentication"],
)
def test_uncallable_webhook_does_not_block_paid_work(paid_door: PaidDoor, webhook: dict[str, Any]) -> None:
    """A signed webhook with a forbidden address is skipped, and the paid work runs."""
    deal = paid_door.deal(webhook=webhook)
    paid_door.jump(60)
    paid_door.chain.settle((deal.wallet, "0x" + "5a" * 32), paid_door.pay_to, deal.price)
    paid_door.jump(700)
    paid_door.tick()
    with pytest.raises(Problem):
        deal.execute(BODY, None, "ftp://127.0.0.1/y")
    task = deal.execute(BODY, None, FIRST)
    assert task.money.paid == 1 and notified(paid_door, task.execution.id) == [FIRST]


def test_found_money_keeps_an_unresolvable_webhook(paid_door: PaidDoor) -> None:
    """A webhook host that does not resolve now is kept: each call resolves it again."""
    deal = paid_door.deal(webhook={"url": THIRD})
    paid_door.jump(60)
    paid_door.chain.settle((deal.wallet, "0x" + "5a" * 32), paid_door.pay_to, deal.price)
    paid_door.jump(700)
    paid_door.tick()
    paid_door.change_conditions(check_url=gone)
    assert notified(paid_door, deal.execute(BODY, None).execution.id) == [THIRD]


def test_requests_without_a_valid_payment_keep_the_webhook(paid_door: PaidDoor) -> None:
    """No payment, a repeated refused one, another wallet's or another amount: the address stays."""
    deal, stranger = paid_door.deal(), paid_door.deal()
    id = refused(paid_door, deal)
    required = asked(lambda: deal.execute(BODY, None, SECOND))
    assert required.message == BALANCE
    for payment in (deal.payments[0], stranger.payment(), deal.payment(value=1)):
        with pytest.raises(Problem):
            deal.execute(BODY, payment, SECOND)
    assert notified(paid_door, id) == [FIRST]
    assert len(paid_door.money(id).payments) == 1


def test_unverified_payment_does_not_change_the_webhook(paid_door: PaidDoor) -> None:
    """A forged signature that only a facilitator can judge is claimed, but its webhook is never called."""
    deal = paid_door.deal()
    id = refused(paid_door, deal)
    paid_door.facilitator.planned["verify"].append("no")
    forged = deal.payment(signature="0x" + "ab" * 96)
    deal.execute(BODY, forged, SECOND)
    assert len(paid_door.money(id).payments) == 2 and notified(paid_door, id) == [FIRST]
    paid_door.step()
    assert paid_door.execution(id).phase == "offered" and notified(paid_door, id) == [FIRST]
    deal.execute(BODY, deal.payment(), THIRD)
    paid_door.step()
    assert notified(paid_door, id) == [THIRD]


def test_late_payment_calls_its_own_webhook(paid_door: PaidDoor) -> None:
    """A refused payment lands while a second is being verified: the first request's webhook is called."""
    deal = paid_door.deal("early")
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    paid_door.step()
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "offered"
    deal.execute(BODY, deal.payment(), SECOND)
    settled = paid_door.parts.ledger.settled(id, 1, "0x" + "1" * 64, "{}", "chain")
    assert (settled.answer, settled.lane) == ("working", "express")
    paid_door.step()
    assert notified(paid_door, id) == [FIRST]
    assert [payment.state for payment in paid_door.money(id).payments] == ["settled", "released"]


def test_webhook_urls_are_not_kept_in_the_ledger(paid_door: PaidDoor) -> None:
    """Addresses and their secrets are kept with the execution only; the permanent ledger omits them."""
    deal = paid_door.deal()
    id = refused(paid_door, deal)
    key = paid_door.parts.keys.money(id)
    for word in ("no", ""):
        paid_door.facilitator.planned["verify"].append(word)
        deal.execute(BODY, deal.payment(), SECOND)
        assert SECOND.encode() in b"".join(paid_door.parts.client.hvals(key))
        paid_door.step()
        assert SECOND.encode() not in b"".join(paid_door.parts.client.hvals(key))
    assert notified(paid_door, id) == [SECOND]


@pytest.mark.parametrize("stage", ["claimed", "verified", "running", "settled"])
def test_webhook_is_fixed_once_a_payment_is_claimed(paid_door: PaidDoor, stage: str) -> None:
    """After the claim, later requests with or without payments are answered from the record alone."""
    deal = paid_door.deal()
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    if stage != "claimed":
        paid_door.step()
    if stage in ("running", "settled"):
        taken = paid_door.take(id)
        assert taken is not None
        if stage == "settled":
            paid_door.seal(taken)
            paid_door.settle(id)
            assert paid_door.execution(id).state == "completed"
    for payment in (None, deal.payments[0], deal.payment()):
        deal.execute(BODY, payment, SECOND)
    assert notified(paid_door, id) == [FIRST]


def test_webhook_is_fixed_once_work_has_begun(paid_door: PaidDoor) -> None:
    """Work done for one address notifies that address, even if another payment pays for it."""
    deal = paid_door.deal()
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    paid_door.refuse(id)
    assert paid_door.execution(id).phase == "payment_due"
    deal.execute(BODY, deal.payment(), SECOND)
    paid_door.step()
    assert paid_door.execution(id).phase == "settling" and notified(paid_door, id) == [FIRST]


def test_sealed_work_is_paid_although_its_webhook_is_gone(paid_door: PaidDoor) -> None:
    """The contract's address was valid when the work began: its later loss blocks no payment."""
    deal = paid_door.deal(webhook={"url": THIRD})
    id = deal.execute(BODY, deal.payment()).execution.id
    paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None and paid_door.seal(taken) == "settling"
    paid_door.refuse(id)
    paid_door.change_conditions(check_url=gone)
    deal.execute(BODY, deal.payment())
    paid_door.step()
    assert paid_door.execution(id).phase == "settling" and notified(paid_door, id) == [THIRD]


def test_parked_task_keeps_its_webhook(paid_door: PaidDoor) -> None:
    """The failed attempt was already reported; a new payment for the next one changes no address."""
    deal = paid_door.deal()
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    paid_door.step()
    taken = paid_door.take(id)
    assert taken is not None and paid_door.park(taken, "input") == "parked"
    assert paid_door.parts.ledger.repay(id) == "payment_due"
    deal.execute(OTHER, deal.payment(), SECOND)
    paid_door.step()
    assert paid_door.execution(id).phase == "working" and notified(paid_door, id) == [FIRST]


def test_forbidden_webhook_claims_nothing(paid_door: PaidDoor) -> None:
    """A second payment with a forbidden address is not claimed, and the first address stays."""
    deal = paid_door.deal()
    id = refused(paid_door, deal)
    with pytest.raises(Problem):
        deal.execute(BODY, deal.payment(), "ftp://127.0.0.1/x")
    assert notified(paid_door, id) == [FIRST] and len(paid_door.money(id).payments) == 1


def test_names_are_looked_up_only_for_a_payment_that_was_checked(paid_door: PaidDoor) -> None:
    """A request without a payment, or with a mismatched one, causes no DNS look-up."""
    looked_up: list[str] = []
    paid_door.change_conditions(check_host=looked_up.append)
    deal, stranger = paid_door.deal(), paid_door.deal()
    asked(lambda: deal.execute(BODY, None, SECOND))
    for payment in (stranger.payment(), deal.payment(value=1)):
        asked(lambda payment=payment: deal.execute(BODY, payment, SECOND))
    assert looked_up == []
    deal.execute(BODY, deal.payment(), SECOND)
    assert looked_up == [SECOND]


def test_a_host_that_does_not_resolve_in_time_is_accepted(paid_door: PaidDoor) -> None:
    """Each call checks the address again; one that is private by its form is refused immediately."""

    def too_slow(url: str) -> None:
        raise TimedOut()

    paid_door.change_conditions(check_host=too_slow)
    deal = paid_door.deal()
    with pytest.raises(Problem) as refused:
        deal.execute(BODY, None, "https://10.0.0.1/hook")
    assert refused.value.code == "URL_REFUSED"
    assert notified(paid_door, deal.execute(BODY, deal.payment(), THIRD).execution.id) == [THIRD]
