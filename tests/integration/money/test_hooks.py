"""Who is told of the end: whom the request named whose payment was accepted before any work began."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.till import BALANCE, Deal, Till, asked
from worker.delivery.outbound import Unreachable
from worker.delivery.webhooks import hooks_of
from worker.errors import Problem

BODY, OTHER = {"do": "ok"}, {"do": "other"}
# Addresses of this machine, which a test's worker may call: nothing is looked up.
FIRST, SECOND, THIRD = (f"http://127.0.0.1:9/{name}" for name in ("first", "second", "third"))


def told(till: Till, id: str) -> list[str]:
    return [hook.url for hook in hooks_of(till.execution(id))]


def gone(url: str) -> None:
    """The check of an address whose host is away, for a moment or for good."""
    raise Unreachable("name", "the host name stands for no address")


def refused(till: Till, deal: Deal, webhook: str | None = FIRST) -> str:
    """An execution whose only payment so far was refused before any work."""
    till.facilitator.planned["verify"].append("no")
    id = deal.execute(BODY, deal.payment(), webhook).execution.id
    till.step()
    assert till.execution(id).phase == "offered"
    return id


@pytest.mark.parametrize("body", [BODY, OTHER])
def test_the_next_payment_names_who_is_told(till: Till, body: dict[str, str]) -> None:
    """After a refused payment the request that pays says who is called, with the same input or another."""
    deal = till.deal()
    id = refused(till, deal)
    assert told(till, id) == [FIRST]
    assert deal.execute(body, deal.payment(), SECOND).execution.id == id
    till.step()
    assert till.execution(id).phase == "working" and told(till, id) == [SECOND]


def test_a_first_payment_without_a_webhook_does_not_keep_it_out(till: Till) -> None:
    """An address that comes with the second payment only is called too."""
    deal = till.deal()
    id = refused(till, deal, None)
    assert told(till, id) == []
    deal.execute(BODY, deal.payment(), SECOND)
    till.step()
    assert told(till, id) == [SECOND]


def test_a_payment_without_a_webhook_leaves_nobody_of_the_refused_one(till: Till) -> None:
    """Whoever pays without an address is the one who counts: the address of a refused payment is dropped."""
    deal = till.deal()
    id = refused(till, deal)
    deal.execute(BODY, deal.payment())
    till.step()
    assert told(till, id) == []


def test_the_contracts_own_webhook_stays(till: Till) -> None:
    """What both have signed is called whatever the requests say."""
    deal = till.deal(webhook={"url": THIRD, "token": "t"})
    id = refused(till, deal)
    assert told(till, id) == [THIRD, FIRST]
    deal.execute(BODY, deal.payment(), SECOND)
    till.step()
    assert told(till, id) == [THIRD, SECOND]
    assert hooks_of(till.execution(id))[0].token == "t"


def test_a_contract_that_the_chain_shows_paid_calls_its_webhooks(till: Till) -> None:
    """The claim was forgotten, the money found: who brings the input is told, as the contract says too."""
    deal = till.deal(webhook={"url": THIRD})
    till.jump(60)
    till.chain.settle((deal.wallet, "0x" + "5a" * 32), till.pay_to, deal.price)
    till.jump(700)
    till.tick()
    task = deal.execute(BODY, None, FIRST)
    assert task.money.paid == 1 and told(till, task.execution.id) == [THIRD, FIRST]


@pytest.mark.parametrize(
    "webhook",
    [{"url": "http://10.0.0.1/x"}, {"url": THIRD, "authentication": {"scheme": "Bearer"}}],
    ids=["address", "authentication"],
)
def test_money_that_is_in_buys_its_work_though_nobody_can_be_told(
    till: Till, webhook: dict[str, Any]
) -> None:
    """What is signed cannot be mended: an address that is not called is left out, and keeps no work back."""
    deal = till.deal(webhook=webhook)
    till.jump(60)
    till.chain.settle((deal.wallet, "0x" + "5a" * 32), till.pay_to, deal.price)
    till.jump(700)
    till.tick()
    with pytest.raises(Problem):
        deal.execute(BODY, None, "ftp://127.0.0.1/y")
    task = deal.execute(BODY, None, FIRST)
    assert task.money.paid == 1 and told(till, task.execution.id) == [FIRST]


def test_found_money_keeps_an_address_that_may_be_back(till: Till) -> None:
    """A host that is away when the input comes may be there at the end: each call looks again."""
    deal = till.deal(webhook={"url": THIRD})
    till.jump(60)
    till.chain.settle((deal.wallet, "0x" + "5a" * 32), till.pay_to, deal.price)
    till.jump(700)
    till.tick()
    till.hiring.asking = replace(till.hiring.asking, check_url=gone)
    assert told(till, deal.execute(BODY, None).execution.id) == [THIRD]


def test_requests_that_bring_no_good_payment_change_nobody(till: Till) -> None:
    """No payment, a refused one again, one of another wallet or of another amount: the address stays."""
    deal, stranger = till.deal(), till.deal()
    id = refused(till, deal)
    required = asked(lambda: deal.execute(BODY, None, SECOND))
    assert required.message == BALANCE
    for payment in (deal.payments[0], stranger.payment(), deal.payment(value=1)):
        with pytest.raises(Problem):
            deal.execute(BODY, payment, SECOND)
    assert told(till, id) == [FIRST]
    assert len(till.money(id).payments) == 1


def test_a_payment_that_is_refused_again_changes_nobody(till: Till) -> None:
    """A forged signature that only a facilitator can judge is claimed, but who it names is never told."""
    deal = till.deal()
    id = refused(till, deal)
    till.facilitator.planned["verify"].append("no")
    forged = deal.payment(signature="0x" + "ab" * 96)
    deal.execute(BODY, forged, SECOND)
    assert len(till.money(id).payments) == 2 and told(till, id) == [FIRST]
    till.step()
    assert till.execution(id).phase == "offered" and told(till, id) == [FIRST]
    deal.execute(BODY, deal.payment(), THIRD)
    till.step()
    assert told(till, id) == [THIRD]


def test_a_refused_payment_that_lands_late_is_told_where_it_was(till: Till) -> None:
    """The chain pays for the first request while the second is still being asked about: the first is told."""
    deal = till.deal("early")
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    till.step()
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    assert till.execution(id).phase == "offered"
    deal.execute(BODY, deal.payment(), SECOND)
    assert till.parts.ledger.settled(id, 1, "0x" + "1" * 64, "{}", "chain") == ("working", "express")
    till.step()
    assert told(till, id) == [FIRST]
    assert [payment.state for payment in till.money(id).payments] == ["settled", "released"]


def test_what_a_request_named_is_not_kept_beside_its_payment(till: Till) -> None:
    """Addresses and their secrets live with the execution alone; the books, kept for good, let them go."""
    deal = till.deal()
    id = refused(till, deal)
    key = till.parts.keys.money(id)
    for word in ("no", ""):
        till.facilitator.planned["verify"].append(word)
        deal.execute(BODY, deal.payment(), SECOND)
        assert SECOND.encode() in b"".join(till.parts.client.hvals(key))
        till.step()
        assert SECOND.encode() not in b"".join(till.parts.client.hvals(key))
    assert told(till, id) == [SECOND]


@pytest.mark.parametrize("stage", ["claimed", "verified", "running", "settled"])
def test_once_a_payment_is_taken_nobody_changes_who_is_told(till: Till, stage: str) -> None:
    """From the claim on, later requests with or without payments are answered from the record alone."""
    deal = till.deal()
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    if stage != "claimed":
        till.step()
    if stage in ("running", "settled"):
        taken = till.take(id)
        assert taken is not None
        if stage == "settled":
            till.seal(taken)
            till.hiring.settler.settle(id)
            assert till.execution(id).state == "completed"
    for payment in (None, deal.payments[0], deal.payment()):
        deal.execute(BODY, payment, SECOND)
    assert told(till, id) == [FIRST]


def test_after_work_has_begun_the_address_stays(till: Till) -> None:
    """Work that was done for one address is told there, though another payment pays for it."""
    deal = till.deal()
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    till.step()
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "settling"
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    assert till.execution(id).phase == "payment_due"
    deal.execute(BODY, deal.payment(), SECOND)
    till.step()
    assert till.execution(id).phase == "settling" and told(till, id) == [FIRST]


def test_work_that_is_done_is_paid_though_its_webhook_has_gone(till: Till) -> None:
    """The contract's address was good when the work began: that it is not any more keeps no payment out."""
    deal = till.deal(webhook={"url": THIRD})
    id = deal.execute(BODY, deal.payment()).execution.id
    till.step()
    taken = till.take(id)
    assert taken is not None and till.seal(taken) == "settling"
    till.facilitator.planned["settle"].append("no")
    till.hiring.settler.settle(id)
    till.hiring.asking = replace(till.hiring.asking, check_url=gone)
    deal.execute(BODY, deal.payment())
    till.step()
    assert till.execution(id).phase == "settling" and told(till, id) == [THIRD]


def test_a_parked_task_keeps_its_address_when_it_is_paid_anew(till: Till) -> None:
    """A failed attempt was told of already; a new payment for the next one changes no address."""
    deal = till.deal()
    id = deal.execute(BODY, deal.payment(), FIRST).execution.id
    till.step()
    taken = till.take(id)
    assert taken is not None and till.park(taken, "input") == "parked"
    assert till.parts.ledger.repay(id) == "payment_due"
    deal.execute(OTHER, deal.payment(), SECOND)
    till.step()
    assert till.execution(id).phase == "working" and told(till, id) == [FIRST]


def test_an_address_that_would_not_be_called_claims_nothing(till: Till) -> None:
    """The second payment is not claimed when its address is refused, and the first address stays."""
    deal = till.deal()
    id = refused(till, deal)
    with pytest.raises(Problem):
        deal.execute(BODY, deal.payment(), "ftp://127.0.0.1/x")
    assert told(till, id) == [FIRST] and len(till.money(id).payments) == 1
