"""A payment that comes while the load is known is claimed at once: the claim decides about the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.fakes.paid_door import Deal, PaidDoor, asked
from tests.fakes.paid_worker import SECOND
from tests.fakes.seeker import decoded, encoded, signed_payment
from worker.capabilities.declare import Capability
from worker.core.errors import Conflict, InvalidInput, Problem, Unavailable
from worker.delivery.outbound import Unreachable
from worker.files.store import DiskFiles
from worker.hiring.task import PaymentRequired, TaskInput
from worker.parts import Parts
from worker.payments import facts
from worker.payments.answers import ClaimAnswer, FoundForContractAnswer
from worker.payments.budget import UnpaidWork
from worker.payments.found import AwaitsMoney
from worker.payments.ledger import Ledger

BODY = {"do": "ok"}
OTHERS_NONCE = "0x" + "5a" * 32


@pytest.fixture(name="answers")
def _answers(monkeypatch: pytest.MonkeyPatch) -> list[ClaimAnswer]:
    """What the store has answered to each claim."""
    found: list[ClaimAnswer] = []
    claim = Ledger.claim

    def noted(*args: object, **named: object) -> object:
        reply = claim(*args, **named)  # type: ignore[arg-type]
        found.append(reply.answer)
        return reply

    monkeypatch.setattr(Ledger, "claim", noted)
    # However slow this machine is.
    monkeypatch.setattr(facts, "_RECENT_SECONDS", 60.0)
    return found


def known(paid_door: PaidDoor) -> tuple[Deal, str]:
    """A contract that was just asked for, with a payment for it."""
    deal = paid_door.deal()
    payment = deal.payment()
    asked(lambda: deal.execute(BODY))
    return deal, payment


def test_facts_that_the_chain_has_changed_are_read(paid_door: PaidDoor, answers: list[ClaimAnswer]) -> None:
    """Another process learns that the contract was paid for: the payment at hand is not claimed too."""
    deal, payment = known(paid_door)
    paid_door.chain.settle((deal.wallet, OTHERS_NONCE), paid_door.pay_to, deal.price)
    [transfer] = paid_door.chain.transfers_to(paid_door.pay_to, 0, paid_door.chain.head().block)
    other = Parts(paid_door.settings, "web")
    [ref] = other.book.refs(deal.document["contract_id"])
    waits = other.found.for_contract(transfer, AwaitsMoney(ref, ref, 0, execution=False))
    assert waits is FoundForContractAnswer.WAITS
    task = deal.execute(BODY, payment)
    assert answers == [ClaimAnswer.FOUND, ClaimAnswer.CLAIMED]
    assert task.money.paid and deal.moved() == deal.price
    assert not paid_door.facilitator.settles


def test_contract_that_another_one_has_replaced_is_not_claimed(
    paid_door: PaidDoor, answers: list[ClaimAnswer]
) -> None:
    """Another process dropped it, and its seeker has signed another one under the same id."""
    deal, payment = known(paid_door)
    other = Parts(paid_door.settings, "web")
    keys = other.keys
    [ref] = other.book.refs(deal.document["contract_id"])
    dearer = paid_door.deal(terms={"price": {"amount": "0.05", "currency": "USDC", "network": "base"}})
    [second] = other.book.refs(dearer.document["contract_id"])
    other.client.rename(keys.contract(second), keys.contract(ref))
    with pytest.raises(PaymentRequired):
        deal.execute(BODY, payment)
    assert answers == [ClaimAnswer.UNSIGNED]


def test_time_that_has_jumped_is_read(paid_door: PaidDoor, answers: list[ClaimAnswer]) -> None:
    """The payment has expired meanwhile by the store's clock."""
    deal, payment = known(paid_door)
    paid_door.jump(3_600)
    with pytest.raises(PaymentRequired):
        deal.execute(BODY, payment)
    assert answers == [ClaimAnswer.LATE]


def test_refusal_is_that_of_facts_that_were_read(paid_door: PaidDoor, answers: list[ClaimAnswer]) -> None:
    """A copy of a payment that has bought another contract meets the same refusal as ever."""
    deal, payment = known(paid_door)
    first = deal.execute(BODY, payment)
    again = paid_door.deal(key=deal.key)
    asked(lambda: again.execute(BODY))
    with pytest.raises(Conflict) as refused:
        again.execute(BODY, payment)
    assert refused.value.code == "PAYMENT_USED"
    assert first.id == deal.id and again.id is None


Spent = Callable[[], list[object]]


def by_checks(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> Spent:
    """The author checks inputs himself."""
    asked_for: list[object] = []

    def check(capability: Capability, body: TaskInput, wallet: str, network: str) -> str:
        asked_for.append(body)
        raise InvalidInput()

    catalog = paid_door.parts.catalog
    catalog.publish([Capability("echo", description="e", price="0.01", inline=True, checks_input=True)])
    catalog.runnable(fresh=True)
    paid_door.change_conditions(author_check=check)
    return lambda: asked_for


def by_names(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> Spent:
    looked_up: list[object] = []

    def gone(url: str) -> None:
        looked_up.append(url)
        raise Unreachable("name", "the host name does not resolve")

    paid_door.change_conditions(check_host=gone)
    return lambda: looked_up


def by_files(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> Spent:
    stored: list[object] = []
    put = DiskFiles.put

    def noted(*args: object, **named: object) -> object:
        stored.append(args)
        return put(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DiskFiles, "put", noted)
    return lambda: stored


Means = Callable[[PaidDoor, pytest.MonkeyPatch], Spent]
HOOK = "http://127.0.0.1:9/hook"


@pytest.mark.parametrize(
    ("means", "body", "webhook"),
    [(by_checks, BODY, None), (by_names, BODY, HOOK), (by_files, {"do": "x" * 40_000}, None)],
    ids=["check", "name", "file"],
)
def test_wallet_without_budget_costs_nothing_dear(
    paid_door: PaidDoor,
    monkeypatch: pytest.MonkeyPatch,
    means: Means,
    body: dict[str, str],
    webhook: str | None,
) -> None:
    """It is refused before its input is checked or stored, or its webhook's name looked up."""
    deal = paid_door.deal()
    for _ in range(3):
        other = paid_door.deal(key=deal.key)
        id = other.execute(BODY, other.payment()).id
        paid_door.step()
        assert paid_door.take(id) is not None
        other.cancel(id)
    payment = deal.payment()
    spent = means(paid_door, monkeypatch)
    monkeypatch.setattr(facts, "_RECENT_SECONDS", 60.0)
    with suppress(Problem):  # the load is read
        paid_door.deal().execute(BODY)
    spent().clear()
    with pytest.raises(UnpaidWork):
        deal.execute(body, payment, webhook)
    assert spent() == []


def test_agent_that_has_left_is_sold_nothing(paid_door: PaidDoor, answers: list[ClaimAnswer]) -> None:
    """No claim decides about a remote agent's queue."""
    parts = paid_door.parts
    parts.catalog.publish([Capability("echo", description="e", price="0.01", time_limit=20, remote=True)])
    parts.catalog.runnable(fresh=True)
    connected = parts.keys.consumers("agent", "echo")
    parts.client.zadd(connected, {"its connection": 2**52})
    deal, payment = known(paid_door)
    parts.client.delete(connected)
    with pytest.raises(Unavailable, match="no agent is connected"):
        deal.execute(BODY, payment)
    assert answers == []


def test_promised_latency_that_cannot_be_kept_is_not_sold(
    paid_door: PaidDoor, answers: list[ClaimAnswer]
) -> None:
    """The only process has begun other work since the load was read."""
    parts, other = paid_door.parts, paid_door.deal()
    mean = {"mean_us echo": 15 * SECOND, "lane_us express": 15 * SECOND}
    parts.client.hset(parts.keys.stats, mapping=mean)
    fast = paid_door.deal(sla={"max_latency_ms": 20_000})
    payment, others = fast.payment(), other.payment()
    asked(lambda: fast.execute(BODY))
    id = other.execute(BODY, others).id
    paid_door.step()
    assert paid_door.take(id) is not None
    parts.client.delete(parts.keys.express)
    answers.clear()
    with pytest.raises(Unavailable, match="promised latency"):
        fast.execute(BODY, payment)
    assert answers == []


def test_copy_that_nobody_proves_claims_nothing(paid_door: PaidDoor, answers: list[ClaimAnswer]) -> None:
    """A process that has not seen a smart wallet's purchase finds it in the facts that it reads."""
    deal, buying = paid_door.deal(), paid_door.parts.buying
    quote = asked(lambda: buying.buy("echo", TaskInput.of(BODY), {}))
    document = decoded(signed_payment(quote.offer.payment_required(""), deal.key, paid_door.now() / SECOND))
    document["payload"]["signature"] = "0x" + "11" * 66
    headers = {"PAYMENT-SIGNATURE": encoded(document)}
    task = buying.buy("echo", TaskInput.of(BODY), headers)
    other = Parts(paid_door.settings, "web").buying
    asked(lambda: other.buy("echo", TaskInput.of(BODY), {}))
    assert other.buy("echo", TaskInput.of(BODY), headers).id == task.id
    assert answers == [ClaimAnswer.CLAIMED]


def test_refusals_are_not_claimed_twice_for_long(paid_door: PaidDoor, answers: list[ClaimAnswer]) -> None:
    """Whoever repeats a refused payment causes one claim in a moment, not one with each request."""
    deal, payment = known(paid_door)
    deal.execute(BODY, payment)
    again = paid_door.deal(key=deal.key)
    asked(lambda: again.execute(BODY))
    answers.clear()
    for _ in range(3):
        with pytest.raises(Conflict):
            again.execute(BODY, payment)
    assert answers.count(ClaimAnswer.USED) == 4


def test_old_load_is_read_again(paid_door: PaidDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quarter of a second nothing is assumed."""
    known(paid_door)
    monkeypatch.setattr(facts, "_RECENT_SECONDS", 60.0)
    conditions, capability = paid_door.parts.conditions, paid_door.parts.catalog.get("echo")
    assert capability is not None
    assert conditions.assumed_facts(capability, TaskInput.of(BODY)) is not None
    monkeypatch.undo()
    time.sleep(0.3)
    assert conditions.assumed_facts(capability, TaskInput.of(BODY)) is None
