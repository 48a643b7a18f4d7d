"""Requests, payments, crashes, answers, work and time in any order, against what must always hold."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.fakes.points import POINTS
from tests.fakes.seeker import nonce_of
from tests.fakes.shop import check_sums
from tests.fakes.till import Crash, Deal, Till
from worker.contracts.task import AWAITING, PaymentRequired, Task
from worker.errors import Problem
from worker.executions.record import Execution
from worker.executions.states import Phase, State
from worker.local.valkey import EmbeddedStore
from worker.payments.ledger import PaymentState

OPEN = (PaymentState.CLAIMED, PaymentState.VERIFIED, PaymentState.SETTLING, PaymentState.UNKNOWN)
BODIES = ({"do": "this"}, {"do": "this"}, {"do": "this"}, {"do": "that"})
WHICH = st.sampled_from((0, 0, 1))
ACTS = st.sampled_from(
    (
        "step",
        "step",
        "go_on",
        "go_on",
        "take",
        "settle_beside",
        "settle_badly",
        "settle_badly",
        "tick",
        "compare",
    )
)
WORDS = st.sampled_from(("away", "lost", "pending", "bare", "garbage", "no", "no"))


class Money(RuleBasedStateMachine):
    """Two contracts; what is believed of each is only who may have been charged and how often."""

    store: EmbeddedStore

    @initialize(early=st.booleans(), latency=st.booleans(), done=st.integers(0, 8))
    def open(self, early: bool, latency: bool, done: int) -> None:
        self.client = redis.Redis.from_url(self.store.url)
        home = Path(tempfile.mkdtemp(prefix="till-"))
        self.till = Till(home, self.client, self.store.url)
        sla = {"sla": {"max_latency_ms": 60_000}} if latency else {}
        self.deals = [self.till.deal("early" if early else "echo", **sla), self.till.deal()]
        self.leases: dict[str, Execution] = {}
        self.sealed: dict[str, bytes] = {}
        # Payments that were refused, and that their seekers put on the chain all the same.
        self.gifts: Counter[str] = Counter()
        # Most of what can go wrong comes late, so that most examples begin late.
        refused = lambda: self.settle_badly(0, "no")  # noqa: E731
        begun = (self.pay_first, self.till.step, lambda: self.go_on(0), refused)
        for act in (*begun, self.pay_first, self.till.step, lambda: self.settle_badly(0, "lost"))[:done]:
            act()

    def pay_first(self) -> None:
        self.pay(0, BODIES[0])

    def pick(self, which: int, *phases: Phase) -> Deal | None:
        """A contract whose work stands in one of these phases; that one if it does."""
        for deal in (self.deals[which], *self.deals):
            if deal.id and self.till.execution(deal.id).phase in phases:
                return deal
        return None

    # Few rules, each of many kinds: an example leaves out some rules, and needs most kinds to get far.

    @rule(
        which=WHICH,
        act=st.sampled_from(("ask", "pay", "pay", "pay", "copy", "wallet", "amount", "late")),
        body=st.sampled_from(BODIES),
        other=WHICH,
        place=st.integers(0, 5),
    )
    def request(self, which: int, act: str, body: Any, other: int, place: int) -> None:
        if act in ("ask", "pay"):
            getattr(self, act)(which, body)
        elif act == "copy":
            self.copy(which, other, place)
        else:
            self.pay_wrongly(which, act)

    @rule(
        which=WHICH,
        act=ACTS,
        word=WORDS,
    )
    def process(self, which: int, act: str, word: str) -> None:
        if act == "settle_badly":
            self.settle_badly(which, word)
        elif act in ("tick", "step", "compare"):
            getattr(self, act)()
        else:
            getattr(self, act)(which)

    @rule(which=WHICH, act=ACTS, word=WORDS)
    def process_on(self, which: int, act: str, word: str) -> None:
        """The same once more, so that it comes as often as it should."""
        self.process(which, act, word)

    @rule(
        which=WHICH,
        act=st.sampled_from(
            (
                "drain",
                "cancel_nonce",
                "send_it_oneself",
                "send_it_oneself",
                "cancel",
                "crash_at",
                "crash_at",
                "plan",
                "plan",
                "jump",
            )
        ),
        point=st.sampled_from(POINTS),
        word=WORDS,
        seconds=st.sampled_from((1, 3, 12, 70, 700)),
    )
    def fate(self, which: int, act: str, point: str, word: str, seconds: int) -> None:
        if act == "crash_at":
            self.till.crash_at = point
        elif act == "plan":
            self.till.facilitator.planned["settle"].append(word)
            if word in ("away", "no"):
                self.till.facilitator.planned["verify"].append(word)
        elif act == "jump":
            self.till.jump(seconds)
        else:
            getattr(self, act)(which)

    # What a seeker does

    def ask(self, which: int, body: Any) -> None:
        deal = self.deals[which]
        with self.honest(deal):
            self.answered(deal, deal.execute(body))

    def pay(self, which: int, body: Any) -> None:
        deal = self.deals[which]
        if self.pick(which, *AWAITING) is deal:
            self.till.chain.mint(deal.wallet, deal.price)
        with self.honest(deal):
            self.answered(deal, deal.execute(body, deal.payment()))

    def copy(self, which: int, other: int, place: int) -> None:
        """Sends a payment again: one of its own, or of another contract."""
        deal, payments = self.deals[which], self.deals[other].payments
        if payments:
            with self.honest(deal):
                self.answered(deal, deal.execute(BODIES[0], payments[place % len(payments)]))

    def pay_wrongly(self, which: int, wrong: str) -> None:
        """A payment that is not what was asked for never gets so far as to be claimed."""
        deal = self.deals[which]
        before = len(self.till.money(deal.id).payments) if deal.id else 0
        if wrong == "wallet":
            header = Deal(self.till, "0x" + "77" * 32, deal.document).payment()
        elif wrong == "amount":
            header = deal.payment(value=deal.price - 1)
        else:
            header = deal.payment(valid_before=self.till.now() // 1_000_000 + 20)
        if wrong != "wallet":
            deal.payments.pop()
        with self.honest(deal):
            self.answered(deal, deal.execute(BODIES[0], header))
        assert (len(self.till.money(deal.id).payments) if deal.id else 0) == before

    def cancel(self, which: int) -> None:
        deal = self.deals[which]
        if deal.id is None:
            return
        before = self.till.execution(deal.id)
        with self.honest(deal):
            self.till.hiring.cancel(self.till.hiring.find(deal.document["contract_id"], deal.id))
            # After the seal, and while money moves, only the settlement decides.
            assert not before.state.terminal and before.phase is not Phase.SETTLING
            assert "sealed_by" not in before.raw

    def drain(self, which: int) -> None:
        """The seeker spends all it has elsewhere before its payment is settled."""
        deal = self.pick(which, Phase.VERIFYING, Phase.WORKING, Phase.SETTLING)
        if deal and (held := self.till.chain.balance(deal.wallet)):
            self.till.chain.transfer(deal.wallet, "0x" + "99" * 20, held)

    def cancel_nonce(self, which: int) -> None:
        """The seeker makes its newest authorization useless."""
        deal = self.deals[which]
        if deal.payments:
            who = (deal.wallet, nonce_of(deal.payments[-1]))
            if not self.till.chain.is_used(who):
                self.till.chain.cancel(who)

    def refused(self) -> tuple[Deal, tuple[str, str]] | None:
        """A refused payment that the chain would still take: the contract, payer and nonce."""
        for deal in self.deals:
            for payment in self.till.money(deal.id).payments if deal.id else ():
                stored = self.till.parts.ledger.payload(deal.id or "", payment.number)[0]
                who = (deal.wallet, json.loads(stored)["payload"]["authorization"]["nonce"])
                if payment.state is PaymentState.REFUSED and not self.till.chain.is_used(who):
                    return deal, who
        return None

    def send_it_oneself(self, which: int) -> None:
        """The seeker puts a payment on the chain that was refused; sooner or later the clock compares."""
        found = self.refused()
        if found is None:
            return
        deal, who = found
        self.till.chain.mint(deal.wallet, deal.price)
        self.till.chain.settle(who, self.till.pay_to, deal.price)
        self.gifts[deal.wallet] += 1

    def compare(self) -> None:
        self.till.jump(601)
        self.till.attempt(self.till.comparison.run)

    # What processes do

    def step(self) -> None:
        self.till.step()

    def settle_beside(self, which: int) -> None:
        """A request that waits settles too."""
        deal = self.pick(which, Phase.SETTLING)
        if deal is not None:
            id = deal.id or ""
            self.till.attempt(lambda: self.till.hiring.settler.settle(id))

    def settle_badly(self, which: int, word: str) -> None:
        """A settle call that ends in a certain way, when its time has come."""
        if self.pick(which, Phase.SETTLING):
            self.till.facilitator.planned["settle"].appendleft(word)
            self.till.jump(61)
            self.settle_beside(which)

    def go_on(self, which: int) -> None:
        """Nothing goes wrong up to the seal."""
        while self.till.beside:
            self.till.step()
        deal = self.pick(which, Phase.WORKING)
        if deal is not None:
            self.take(self.deals.index(deal))
            self.end_work(self.deals.index(deal), "completed")

    def tick(self) -> None:
        self.till.tick()

    # What the work comes to

    def take(self, which: int) -> None:
        id = self.deals[which].id
        if id and (taken := self.till.take(id)) is not None:
            self.leases[id] = taken

    @precondition(lambda self: self.leases)
    @rule(which=WHICH, how=st.sampled_from(("completed", "completed", "failed", "retry", "input", "lost")))
    def end_work(self, which: int, how: str) -> None:
        id = self.deals[which].id
        lease = self.leases.pop(id, None) if id else None
        if id is None or lease is None:
            return
        if how in ("completed", "failed"):
            if self.till.seal(lease, how) != "lost" and how == "completed":
                self.sealed[id] = self.till.execution(id).output
        elif how == "lost":
            self.till.lose(lease)
        else:
            self.till.park(lease, how)

    # What must hold

    @contextmanager
    def honest(self, deal: Deal) -> Iterator[None]:
        """Whatever is refused is refused with a code; and 402 only while no money may be moving."""
        try:
            yield
        except PaymentRequired:
            assert not self.moving(deal), "a second payment was invited"
        except Problem as problem:
            assert 400 <= problem.status < 500 or problem.status == 503, problem
        except Crash:
            pass

    def moving(self, deal: Deal) -> bool:
        money = self.till.parts.ledger.money(deal.id) if deal.id else None
        return money is not None and any(payment.state in OPEN for payment in money.payments)

    def answered(self, deal: Deal, task: Task) -> None:
        if task.execution.state is State.COMPLETED:
            assert task.money.paid, "delivered unpaid"
            assert task.execution.output == self.sealed[task.execution.id], "another result than was sealed"

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "till"):
            return
        for deal in self.deals:
            self.check(deal)
        check_sums(self.till.parts)

    def check(self, deal: Deal) -> None:
        moved = deal.moved()
        assert moved <= deal.price * (1 + self.gifts[deal.wallet]), f"charged {moved}"
        if deal.id is None:
            assert moved == 0, "charged for nothing"
            return
        execution, money = self.till.execution(deal.id), self.till.money(deal.id)
        settled = [payment for payment in money.payments if payment.state is PaymentState.SETTLED]
        assert len(settled) * deal.price <= moved, "settled in the books, not on the chain"
        if execution.state is State.COMPLETED:
            assert settled, "delivered unpaid"
            assert execution.output == self.sealed[deal.id]
        elif execution.state.terminal and settled:
            refunded = all(payment.refund for payment in settled)
            kept = execution.state is State.CANCELLED and execution.first_started
            assert refunded or kept, "paid for nothing"
        if execution.phase in (Phase.OFFERED, Phase.PAYMENT_DUE):
            assert not self.moving(deal) and not money.paid
        kinds = self.till.kinds(deal.id)
        ends = [
            at
            for at, kind in enumerate(kinds)
            if kind in ("execution.completed", "execution.failed", "execution.cancelled")
        ]
        assert ends == ([len(kinds) - 1] if execution.state.terminal else []), kinds

    def teardown(self) -> None:
        """When all is honest again everything comes to an end that explains where the money is."""
        if not hasattr(self, "till"):
            return
        till = self.till
        till.crash_at = None
        for planned in till.facilitator.planned.values():
            planned.clear()
        for seconds in (61, 61, 61, 2_000, 61, 61):
            while till.beside:
                till.step()
            for deal in self.deals:
                taken = (self.leases.pop(deal.id, None) or till.take(deal.id)) if deal.id else None
                if taken and till.seal(taken) != "lost":
                    self.sealed[taken.id] = till.execution(taken.id).output
            till.jump(seconds)
            till.tick()
        self.holds()
        for deal in self.deals:
            if deal.id is None:
                continue
            money, execution = till.money(deal.id), till.execution(deal.id)
            # A parked task keeps its authorization until its seeker asks or its time is over.
            waits = bool(execution.raw.get("parked")) and money.payments[-1].state is PaymentState.VERIFIED
            assert waits or not self.moving(deal), f"nobody follows {money.payment()}"
            settled = [each for each in money.payments if each.state is PaymentState.SETTLED]
            assert len(settled) * deal.price == deal.moved(), "money moved and nobody knows"
            kept = [each for each in settled if not each.refund]
            assert len(kept) <= 1, "charged twice"
            if settled:
                assert execution.state.terminal or execution.raw.get("parked"), "paid, and forgotten"
        self.client.close()


def test_any_order(till_store: EmbeddedStore) -> None:
    """Whatever happens in whatever order: one charge at most, and it buys a result, a run or a refund."""
    machine = type("Money", (Money,), {"store": till_store})
    run_state_machine_as_test(machine, settings=_settings(int(os.environ.get("MONEY_EXAMPLES", "60")), 40))


@pytest.mark.soak
def test_any_order_for_long(till_store: EmbeddedStore) -> None:
    """The same with many more examples, each longer."""
    machine = type("Money", (Money,), {"store": till_store})
    run_state_machine_as_test(machine, settings=_settings(1500, 60))


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
