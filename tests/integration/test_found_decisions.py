"""Found money: the operator's three decisions, and what leaves the list without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.fakes.ledger_setup import KEY, PRICE, SEEKER, WORKER, key_of
from tests.integration.test_ledger_comparison import ComparisonSetup
from worker.contracts.signatures import sign_digest
from worker.core.errors import Conflict, NotFound
from worker.core.states import Phase
from worker.payments.chain import Transfer
from worker.payments.found import FoundTransfer
from worker.payments.found_decisions import FoundDecisions
from worker.payments.leg_ledger import LegLedger
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.payments.retry_delays import SECOND_US
from worker.x402.networks import BASE_SEPOLIA

NONCE = "0x" + "5a" * 32


class FoundSetup(ComparisonSetup):
    """The comparison and the operator's decisions."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.decisions = FoundDecisions(self.found, self.ledger_setup.settler, WORKER.lower())
        self.legs = LegRunner(
            LegLedger(client, self.ledger_setup.keys, test_clock=True),
            self.ledger_setup.facilitator,
            sign=lambda digest: sign_digest(digest, KEY),
            wallet=WORKER,
            network=BASE_SEPOLIA,
            fees=FeeRules(1_000_000, 86_400 * SECOND_US),
            chain=self.ledger_setup.chain,
        )

    def lands(self, amount: int = PRICE, nonce: str = NONCE) -> FoundTransfer:
        """Money arrives that matches no payment."""
        self.ledger_setup.chain.settle((SEEKER, nonce), WORKER, amount)
        self.compare()
        return self.found.listed()[-1]

    @contextmanager
    def process_dies(self) -> Iterator[None]:
        """What is done inside ends at the settler's first checkpoint."""

        def dies(point: str) -> None:
            raise RuntimeError(point)

        settler = self.ledger_setup.settler
        checkpoint, settler.checkpoint = settler.checkpoint, dies
        with pytest.raises(RuntimeError):
            yield
        settler.checkpoint = checkpoint

    def outcomes(self) -> list[str]:
        return [each.outcome for each in self.found.listed()]


@pytest.fixture(name="setup")
def _setup(client: redis.Redis) -> FoundSetup:
    setup = FoundSetup(client)
    setup.compare()
    return setup


def test_refunded_money_goes_back_to_its_payer_once(setup: FoundSetup) -> None:
    """The refund is an ordinary leg, the ledger balances, and no second decision is accepted."""
    listed = setup.lands(70_000)
    assert setup.decisions.refund(listed) == "refund"
    again = setup.decisions.find(listed.transaction)
    assert setup.decisions.refund(again) == "known", "the same decision again changes nothing"
    with pytest.raises(Conflict, match="worker money refund|is payment 1"):
        setup.decisions.refund(listed)
    assert setup.ledger_setup.sums["refunds_due"] == 70_000 and setup.balanced() == []
    chain = setup.ledger_setup.chain
    chain.mint(WORKER, 70_000)
    before = chain.balance(SEEKER)
    for leg in setup.legs.due(setup.ledger_setup.now()):
        setup.legs.attend(leg)
    assert chain.balance(SEEKER) == before + 70_000
    assert setup.ledger_setup.sums["refunds_paid"] == 70_000 and setup.balanced() == []
    assert setup.outcomes()[0].startswith("refund ") and not setup.found.listed()[0].needs_decision
    setup.client.hdel("w:compared", "block")
    setup.compare()
    assert len(setup.found.listed()) == 1 and setup.ledger_setup.sums["refunds_paid"] == 70_000
    for decision in (setup.decisions.dismiss, lambda found: setup.decisions.bind_to_execution(found, "x")):
        with pytest.raises((Conflict, NotFound)):
            decision(listed)


def test_interrupted_refund_is_finished_by_the_next_command(setup: FoundSetup) -> None:
    """If the process dies between the decision and its refund, the same command completes it."""
    listed = setup.lands()
    with setup.process_dies():
        setup.decisions.refund(listed)
    assert setup.ledger_setup.sums.get("refunds_due", 0) == 0 and setup.balanced() == []
    assert setup.decisions.refund(setup.decisions.find(listed.transaction)) == "refund"
    assert setup.ledger_setup.sums["refunds_due"] == PRICE and setup.balanced() == []


def test_dismissed_money_is_no_longer_open(setup: FoundSetup) -> None:
    """It stays on the list with its decision, is never bound later, and needs no further action."""
    listed = setup.lands()
    setup.decisions.dismiss(listed)
    assert setup.outcomes() == ["dismissed"] and not setup.found.listed()[0].needs_decision
    ref = setup.ledger_setup.contract()
    setup.client.hset(setup.ledger_setup.keys.contract(ref), "created", 0)
    setup.compare()
    assert setup.found.waiting_for(ref) is None and setup.outcomes() == ["dismissed"]
    with pytest.raises(Conflict):
        setup.decisions.refund(listed)


def test_money_is_bound_to_the_execution_that_the_operator_names(setup: FoundSetup) -> None:
    """Of two executions awaiting the same amount the named one is paid; another amount is refused."""
    first, second = setup.ledger_setup.claim(), setup.ledger_setup.claim()
    for paid in (first, second):
        setup.refuse(paid, sealed=True)
    listed = setup.lands()
    assert listed.outcome == "listed", "nobody can say which was meant"
    wrong = setup.ledger_setup.claim(amount=PRICE + 1)
    setup.refuse(wrong, sealed=True)
    with pytest.raises(Conflict, match="the price is"):
        setup.decisions.bind_to_execution(listed, wrong.id)
    setup.decisions.bind_to_execution(listed, second.id)
    execution = setup.ledger_setup.store.get(second.id)
    assert execution is not None and (execution.state, execution.phase) == ("completed", Phase.DONE)
    assert setup.ledger_setup.ledger.bound(key_of(NONCE)) == (second.id, 2) and setup.balanced() == []
    with pytest.raises(Conflict):
        setup.decisions.bind_to_execution(listed, first.id)


def test_claimed_money_leaves_the_list(setup: FoundSetup) -> None:
    """Found money leaves the list once its seeker has claimed it."""
    ref = setup.ledger_setup.contract()
    listed = setup.lands()
    assert listed.outcome == f"contract {ref}"
    paid = setup.ledger_setup.claim(ref, nonce=NONCE)
    setup.ledger_setup.settler.record_settled(paid.id, 1, listed.transaction, "chain")
    setup.compare()
    assert setup.outcomes() == [] and setup.balanced() == []


def test_payments_past_a_short_retention_are_not_found_money(setup: FoundSetup) -> None:
    """If the execution is removed before the next comparison, its payment's key still explains the money."""
    paid = setup.ledger_setup.paid()
    execution = setup.ledger_setup.store.get(paid.id)
    assert execution is not None and setup.ledger_setup.store.purge(execution, setup.ledger_setup.now() + 1)
    assert setup.ledger_setup.ledger.money(paid.id) is None
    setup.compare()
    assert setup.outcomes() == []


def test_a_transaction_is_named_exactly(setup: FoundSetup) -> None:
    """An unknown transaction is refused, and so is one with several transfers and no log index."""
    listed = setup.lands()
    with pytest.raises(NotFound):
        setup.decisions.find("0x" + "0" * 64)
    with pytest.raises(NotFound):
        setup.decisions.find(listed.transaction, listed.log_index + 1)
    assert setup.decisions.find(listed.transaction.upper().replace("0X", "0x")) == listed


def test_interrupted_binding_is_finished_by_the_same_command(setup: FoundSetup) -> None:
    """If the process dies between the decision and its settlement, only the same command completes it."""
    paid = setup.ledger_setup.claim()
    other = setup.ledger_setup.claim()
    for each in (paid, other):
        setup.refuse(each, sealed=True)
    listed = setup.lands()
    with setup.process_dies():
        setup.decisions.bind_to_execution(listed, paid.id)
    again = setup.decisions.find(listed.transaction)
    with pytest.raises(Conflict):
        setup.decisions.bind_to_execution(again, other.id)
    assert setup.decisions.bind_to_execution(again, paid.id) == "completed"
    assert setup.decisions.bind_to_execution(again, paid.id) == "known", "once more changes nothing"
    assert setup.balanced() == []


def test_money_is_not_refunded_while_its_payment_is_open(setup: FoundSetup) -> None:
    """The seeker has claimed it meanwhile: the work would be delivered and its price refunded."""
    listed = setup.lands()
    paid = setup.ledger_setup.claim(nonce=NONCE)
    with pytest.raises(Conflict, match="open"):
        setup.decisions.refund(listed)
    setup.ledger_setup.settler.verifier.verify(paid.id, 1)
    with pytest.raises(Conflict):
        setup.decisions.refund(listed)
    assert setup.ledger_setup.sums.get("refunds_due", 0) == 0 and setup.balanced() == []


def test_money_claimed_beside_the_decision_is_not_refunded(
    setup: FoundSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim may follow the command's check, so the script checks again."""
    listed = setup.lands()
    payment_of = setup.found.payment_of

    def and_claim(transfer: Transfer) -> object:
        if setup.ledger_setup.ledger.bound(key_of(NONCE)) is None and looked:
            setup.ledger_setup.claim(nonce=NONCE)
        looked.append(1)
        return payment_of(transfer)

    looked: list[int] = []
    monkeypatch.setattr(setup.found, "payment_of", and_claim)
    with pytest.raises(Conflict):
        setup.decisions.refund(listed)
    assert setup.ledger_setup.sums.get("refunds_due", 0) == 0 and setup.balanced() == []
