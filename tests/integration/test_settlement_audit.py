"""Settlements reported by the facilitator are audited on the chain: proven, resent or unproven."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.fakes.chain import MemoryChain
from tests.fakes.ledger_setup import SEEKER, WORKER, LedgerSetup, SignedClaim
from worker.payments.audit import Audit, AuditBook
from worker.payments.payment import Payment, PaymentState

DAY_S = 86_400


class AuditSetup:
    """A ledger whose clock audits settlements."""

    def __init__(self, client: redis.Redis) -> None:
        self.ledger_setup = LedgerSetup(client, audited=True)
        self.book = AuditBook(client, self.ledger_setup.keys, test_clock=True)
        ledger_setup = self.ledger_setup
        self.audit = Audit(
            self.book, ledger_setup.ledger, ledger_setup.settler, ledger_setup.facilitator, ledger_setup.chain
        )

    @property
    def chain(self) -> MemoryChain:
        return self.ledger_setup.chain

    def rounds(self, count: int = 1, seconds: int = 15) -> None:
        """Runs the given number of audit rounds, some time apart."""
        for _ in range(count):
            self.ledger_setup.move_time(seconds)
            self.audit.run()

    def payment(self, paid: SignedClaim) -> Payment:
        money = self.ledger_setup.ledger.money(paid.id)
        found = money.payment(paid.number) if money else None
        assert found is not None
        return found

    def said(self, plan: str) -> SignedClaim:
        """A payment that the facilitator reports as settled in the given way."""
        self.ledger_setup.facilitator.plan = [plan]
        return self.ledger_setup.paid()

    def journal(self) -> list[str]:
        lines: Any = self.ledger_setup.client.lrange(self.ledger_setup.keys.journal, 0, -1)
        return [line.decode().split(" ")[1] for line in lines]

    def moved(self) -> int:
        return self.chain.received(SEEKER, WORKER)


@pytest.fixture(name="setup")
def _setup(client: redis.Redis) -> AuditSetup:
    return AuditSetup(client)


def test_honest_settlement_is_proven(setup: AuditSetup) -> None:
    """Its transfer is found, the ledger records it, and it is not audited again."""
    paid = setup.ledger_setup.paid()
    assert setup.book.counts() == (1, 0) and setup.payment(paid).proof == ""
    setup.rounds()
    assert setup.payment(paid).proof == "proven" and setup.book.counts() == (0, 0)
    assert "proven" in setup.journal() and len(setup.ledger_setup.facilitator.sent) == 1


def test_settlements_are_audited_in_one_query(setup: AuditSetup) -> None:
    """However many are due, the node gets one query."""
    paid = [setup.ledger_setup.paid() for _ in range(20)]
    before = setup.chain.rounds
    setup.rounds()
    assert setup.chain.rounds == before + 1
    assert all(setup.payment(each).proof == "proven" for each in paid)


def test_false_hash_is_resent_and_then_proven(setup: AuditSetup) -> None:
    """Success with a hash unknown to the node: the identical payment is resent, and lands once."""
    paid = setup.said("lie")
    lied = setup.payment(paid).transaction
    setup.rounds(12)
    payment = setup.payment(paid)
    assert payment.proof == "proven" and payment.transaction != lied and setup.moved() == 10_000
    assert payment.transaction in payment.response
    first, second = setup.ledger_setup.facilitator.sent
    assert first == second


def test_lying_facilitator_ends_unproven(setup: AuditSetup) -> None:
    """If the authorization has ended and nothing landed, the settlement is listed as unproven."""
    setup.ledger_setup.facilitator.plan = ["lie"] * 10_000
    paid = setup.ledger_setup.paid()
    setup.rounds(50, seconds=60)
    assert setup.payment(paid).proof == "" and setup.book.counts() == (1, 0)
    setup.rounds(2, seconds=DAY_S)
    assert setup.payment(paid).proof == "unproven" and setup.book.counts() == (0, 1)
    assert [(each.id, each.number) for each in setup.book.unproven()] == [(paid.id, 1)]
    assert setup.payment(paid).state is PaymentState.SETTLED and "unproven" in setup.journal()


def test_another_payments_hash_proves_nothing(setup: AuditSetup) -> None:
    """Two payments with one hash: the one whose transfer it contains is proven, the other is resent."""
    honest = setup.ledger_setup.paid()
    liar = setup.said(f"hash {setup.payment(honest).transaction}")
    assert setup.payment(liar).transaction == setup.payment(honest).transaction
    setup.ledger_setup.facilitator.plan = ["lie"] * 10_000
    setup.rounds(30)
    assert setup.payment(honest).proof == "proven" and setup.payment(liar).proof == ""
    setup.rounds(2, seconds=DAY_S)
    assert setup.payment(liar).proof == "unproven" and setup.moved() == 10_000


def test_settlement_undone_by_a_reorg_is_resent(setup: AuditSetup) -> None:
    """The block disappears before it was proven: the same payment is resent and lands once."""
    setup.chain.proof_blocks = 10
    paid = setup.ledger_setup.paid()
    setup.rounds(2)
    assert setup.payment(paid).proof == "", "its block is not deep enough yet"
    setup.chain.undo(setup.payment(paid).transaction)
    setup.rounds(10, seconds=30)
    setup.chain.mine(20)
    setup.rounds(2)
    assert setup.payment(paid).proof == "proven" and setup.moved() == 10_000


def test_pending_transaction_is_not_resent(setup: AuditSetup) -> None:
    """While the node knows the transaction, mined or not, it is not resent."""
    paid = setup.said("lie")
    setup.chain.waiting.add(setup.payment(paid).transaction)
    setup.rounds(20, seconds=30)
    assert len(setup.ledger_setup.facilitator.sent) == 1 and setup.payment(paid).proof == ""


@pytest.mark.parametrize("trouble", ["down", "behind"])
def test_unavailable_node_means_wait(setup: AuditSetup, trouble: str) -> None:
    """While the node is unreachable or lags, nothing is resent or marked unproven, however long."""
    paid = setup.said("lie")
    setup.chain.down, setup.chain.asked = trouble == "down", lambda: None
    for _ in range(6):
        setup.ledger_setup.client.incrby(setup.ledger_setup.keys.test_clock, DAY_S * 1_000_000)
        setup.audit.run()
    assert setup.payment(paid).proof == "" and len(setup.ledger_setup.facilitator.sent) == 1
    setup.chain.down = False
    setup.chain.catch_up(setup.ledger_setup.now())
    setup.rounds()
    assert setup.payment(paid).proof == "unproven"


def test_cancelled_authorization_is_unproven_at_once(setup: AuditSetup) -> None:
    """The payer cancelled it, so it can never land."""
    paid = setup.said("lie")
    setup.chain.cancel(paid.authorization)
    setup.rounds()
    assert setup.payment(paid).proof == "unproven"


def test_audit_lease_excludes_a_second_clock(setup: AuditSetup) -> None:
    """One clock's audit is not taken by another, and is due again if that clock dies."""
    paid = setup.ledger_setup.paid()
    setup.ledger_setup.move_time(10)
    assert [each.id for each in setup.book.take()] == [paid.id]
    assert setup.book.take() == []
    setup.ledger_setup.move_time(151)
    assert [each.id for each in setup.book.take()] == [paid.id]


def test_payment_found_on_the_chain_is_not_audited(setup: AuditSetup) -> None:
    """A payment found on the chain has no settle call of ours to repeat."""
    paid = setup.ledger_setup.claim()
    setup.ledger_setup.seal(paid)
    setup.ledger_setup.settler.record_settled(paid.id, 1, "0x" + "ab" * 32, "chain")
    assert setup.book.counts() == (0, 0)


def test_reused_hash_without_a_node_is_presumed(client: redis.Redis) -> None:
    """One hash for two payments may be a batch or false; without a chain the second is only presumed."""
    setup = AuditSetup(client)
    setup.ledger_setup = LedgerSetup(client)
    first = setup.ledger_setup.paid()
    second = setup.said(f"hash {setup.payment(first).transaction}")
    third = setup.ledger_setup.paid()
    assert [setup.payment(each).how for each in (first, second, third)] == [
        "facilitator",
        "presumed",
        "facilitator",
    ]
    assert setup.journal().count("presumed") == 1
