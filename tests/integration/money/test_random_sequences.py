"""Random sequences of requests, payments, crashes and time, checked against the money invariants."""

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

from tests.fakes.crash_points import POINTS
from tests.fakes.paid_door import Crash, Deal, PaidDoor
from tests.fakes.paid_worker import check_sums
from tests.fakes.seeker import nonce_of
from worker.core.errors import Problem
from worker.core.states import Phase, State
from worker.engine.record import Execution
from worker.hiring.task import AWAITING, PaymentRequired, Task
from worker.local.valkey import EmbeddedStore
from worker.payments.payment import PaymentState

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
WORDS = st.sampled_from(("away", "lost", "pending", "bare", "garbage", "no", "no", "denied"))


class Money(RuleBasedStateMachine):
    """Two contracts; the model of each only tracks who may have been charged and how often."""

    store: EmbeddedStore

    @initialize(early=st.booleans(), latency=st.booleans(), done=st.integers(0, 8))
    def open(self, early: bool, latency: bool, done: int) -> None:
        self.client = redis.Redis.from_url(self.store.url)
        home = Path(tempfile.mkdtemp(prefix="paid-door-"))
        self.paid_door = PaidDoor(home, self.client, self.store.url)
        sla = {"sla": {"max_latency_ms": 60_000}} if latency else {}
        self.deals = [self.paid_door.deal("early" if early else "echo", **sla), self.paid_door.deal()]
        self.leases: dict[str, Execution] = {}
        self.sealed: dict[str, bytes] = {}
        # Refused payments that their seekers submitted on the chain themselves.
        self.gifts: Counter[str] = Counter()
        # Most faults occur in late phases, so most examples start late.
        refused = lambda: self.settle_badly(0, "no")  # noqa: E731
        begun = (self.pay_first, self.paid_door.step, lambda: self.go_on(0), refused)
        for act in (*begun, self.pay_first, self.paid_door.step, lambda: self.settle_badly(0, "lost"))[:done]:
            act()

    def pay_first(self) -> None:
        self.pay(0, BODIES[0])

    def pick(self, which: int, *phases: Phase) -> Deal | None:
        """A contract in one of these phases; the given one if it qualifies."""
        for deal in (self.deals[which], *self.deals):
            if deal.id and self.paid_door.execution(deal.id).phase in phases:
                return deal
        return None

    # Few rules with many variants each: an example omits some rules and needs most variants to get far.

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
        """A second copy of the rule, to double its frequency."""
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
            self.paid_door.crash_at = point
        elif act == "plan":
            self.paid_door.facilitator.planned["settle"].append(word)
            if word in ("away", "no"):
                self.paid_door.facilitator.planned["verify"].append(word)
        elif act == "jump":
            self.paid_door.jump(seconds)
        else:
            getattr(self, act)(which)

    # Seeker actions

    def ask(self, which: int, body: Any) -> None:
        deal = self.deals[which]
        with self.honest(deal):
            self.answered(deal, deal.execute(body))

    def pay(self, which: int, body: Any) -> None:
        deal = self.deals[which]
        if self.pick(which, *AWAITING) is deal:
            self.paid_door.chain.mint(deal.wallet, deal.price)
        with self.honest(deal):
            self.answered(deal, deal.execute(body, deal.payment()))

    def copy(self, which: int, other: int, place: int) -> None:
        """Resends a payment: its own or another contract's."""
        deal, payments = self.deals[which], self.deals[other].payments
        if payments:
            with self.honest(deal):
                self.answered(deal, deal.execute(BODIES[0], payments[place % len(payments)]))

    def pay_wrongly(self, which: int, wrong: str) -> None:
        """A payment that does not match the offer is never claimed."""
        deal = self.deals[which]
        before = len(self.paid_door.money(deal.id).payments) if deal.id else 0
        if wrong == "wallet":
            header = Deal(self.paid_door, "0x" + "77" * 32, deal.document).payment()
        elif wrong == "amount":
            header = deal.payment(value=deal.price - 1)
        else:
            header = deal.payment(valid_before=self.paid_door.now() // 1_000_000 + 20)
        if wrong != "wallet":
            deal.payments.pop()
        with self.honest(deal):
            self.answered(deal, deal.execute(BODIES[0], header))
        assert (len(self.paid_door.money(deal.id).payments) if deal.id else 0) == before

    def cancel(self, which: int) -> None:
        deal = self.deals[which]
        if deal.id is None:
            return
        before = self.paid_door.execution(deal.id)
        with self.honest(deal):
            deal.cancel(deal.id)
            # After the seal and while money moves, only the settlement decides.
            assert not before.state.terminal and before.phase is not Phase.SETTLING
            assert not before.sealed_by

    def drain(self, which: int) -> None:
        """The seeker empties its wallet before its payment is settled."""
        deal = self.pick(which, Phase.VERIFYING, Phase.WORKING, Phase.SETTLING)
        if deal and (held := self.paid_door.chain.balance(deal.wallet)):
            self.paid_door.chain.transfer(deal.wallet, "0x" + "99" * 20, held)

    def cancel_nonce(self, which: int) -> None:
        """The seeker cancels its newest authorization."""
        deal = self.deals[which]
        if deal.payments:
            who = (deal.wallet, nonce_of(deal.payments[-1]))
            if not self.paid_door.chain.is_used(who):
                self.paid_door.chain.cancel(who)

    def refused(self) -> tuple[Deal, tuple[str, str]] | None:
        """A refused payment that the chain would still accept: contract, payer and nonce."""
        for deal in self.deals:
            for payment in self.paid_door.money(deal.id).payments if deal.id else ():
                stored = self.paid_door.parts.ledger.payload(deal.id or "", payment.number)[0]
                who = (deal.wallet, json.loads(stored)["payload"]["authorization"]["nonce"])
                if payment.state is PaymentState.REFUSED and not self.paid_door.chain.is_used(who):
                    return deal, who
        return None

    def send_it_oneself(self, which: int) -> None:
        """The seeker submits a refused payment on the chain; the clock compares it sooner or later."""
        found = self.refused()
        if found is None:
            return
        deal, who = found
        self.paid_door.chain.mint(deal.wallet, deal.price)
        self.paid_door.chain.settle(who, self.paid_door.pay_to, deal.price)
        self.gifts[deal.wallet] += 1

    def compare(self) -> None:
        self.paid_door.jump(601)
        self.paid_door.attempt(self.paid_door.comparison.run)

    # Process actions

    def step(self) -> None:
        self.paid_door.step()

    def settle_beside(self, which: int) -> None:
        """A waiting request settles as well."""
        deal = self.pick(which, Phase.SETTLING)
        if deal is not None:
            id = deal.id or ""
            self.paid_door.attempt(lambda: self.paid_door.settle(id))

    def settle_badly(self, which: int, word: str) -> None:
        """A due settle call that ends in a given way."""
        if self.pick(which, Phase.SETTLING):
            self.paid_door.facilitator.planned["settle"].appendleft(word)
            self.paid_door.jump(61)
            self.settle_beside(which)
            deal = self.deals[which]
            if word == "no" and deal.id:
                # Nothing moved, as the clock sees on the chain.
                self.paid_door.attempt(lambda: self.paid_door.clock_settler.settle(str(deal.id)))

    def go_on(self, which: int) -> None:
        """No fault occurs until the seal."""
        while self.paid_door.beside:
            self.paid_door.step()
        deal = self.pick(which, Phase.WORKING)
        if deal is not None:
            self.take(self.deals.index(deal))
            self.end_work(self.deals.index(deal), "completed")

    def tick(self) -> None:
        self.paid_door.tick()

    # Outcomes of the work

    def take(self, which: int) -> None:
        id = self.deals[which].id
        if id and (taken := self.paid_door.take(id)) is not None:
            self.leases[id] = taken

    @precondition(lambda self: self.leases)
    @rule(which=WHICH, how=st.sampled_from(("completed", "completed", "failed", "retry", "input", "lost")))
    def end_work(self, which: int, how: str) -> None:
        id = self.deals[which].id
        lease = self.leases.pop(id, None) if id else None
        if id is None or lease is None:
            return
        if how in ("completed", "failed"):
            if self.paid_door.seal(lease, how) != "lost" and how == "completed":
                self.sealed[id] = self.paid_door.execution(id).output
        elif how == "lost":
            self.paid_door.lose(lease)
        else:
            self.paid_door.park(lease, how)

    # Invariants

    @contextmanager
    def honest(self, deal: Deal) -> Iterator[None]:
        """Every refusal has a code, and a 402 is issued only while no money can be moving."""
        try:
            yield
        except PaymentRequired:
            assert not self.moving(deal), "a second payment was invited"
        except Problem as problem:
            assert 400 <= problem.status < 500 or problem.status == 503, problem
        except Crash:
            pass

    def moving(self, deal: Deal) -> bool:
        money = self.paid_door.parts.ledger.money(deal.id) if deal.id else None
        return money is not None and any(payment.state in OPEN for payment in money.payments)

    def answered(self, deal: Deal, task: Task) -> None:
        if task.execution.state is State.COMPLETED:
            assert task.money.paid, "delivered unpaid"
            assert task.execution.output == self.sealed[task.execution.id], "another result than was sealed"

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "paid_door"):
            return
        for deal in self.deals:
            self.check(deal)
        check_sums(self.paid_door.parts)

    def check(self, deal: Deal) -> None:
        moved = deal.moved()
        assert moved <= deal.price * (1 + self.gifts[deal.wallet]), f"charged {moved}"
        if deal.id is None:
            assert moved == 0, "charged for nothing"
            return
        execution, money = self.paid_door.execution(deal.id), self.paid_door.money(deal.id)
        settled = [payment for payment in money.payments if payment.state is PaymentState.SETTLED]
        assert len(settled) * deal.price <= moved, "settled in the books, not on the chain"
        if execution.state is State.COMPLETED:
            assert settled, "delivered unpaid"
            assert execution.output == self.sealed[deal.id]
        elif execution.state.terminal and settled:
            refunded = all(payment.refund for payment in settled)
            delivered = execution.state is State.CANCELLED and execution.first_started
            assert refunded or delivered, "paid for nothing"
        if execution.phase in (Phase.OFFERED, Phase.PAYMENT_DUE):
            assert not self.moving(deal) and not money.paid
        kinds = self.paid_door.kinds(deal.id)
        ends = [
            at
            for at, kind in enumerate(kinds)
            if kind in ("execution.completed", "execution.failed", "execution.cancelled")
        ]
        assert ends == ([len(kinds) - 1] if execution.state.terminal else []), kinds

    def teardown(self) -> None:
        """Without further faults every contract reaches an end that explains where the money is."""
        if not hasattr(self, "paid_door"):
            return
        paid_door = self.paid_door
        paid_door.crash_at = None
        for planned in paid_door.facilitator.planned.values():
            planned.clear()
        for seconds in (61, 61, 61, 2_000, 61, 61):
            while paid_door.beside:
                paid_door.step()
            for deal in self.deals:
                taken = (self.leases.pop(deal.id, None) or paid_door.take(deal.id)) if deal.id else None
                if taken and paid_door.seal(taken) != "lost":
                    self.sealed[taken.id] = paid_door.execution(taken.id).output
            paid_door.jump(seconds)
            paid_door.tick()
        self.holds()
        for deal in self.deals:
            if deal.id is None:
                continue
            money, execution = paid_door.money(deal.id), paid_door.execution(deal.id)
            # A parked task keeps its authorization until its seeker retries or its time ends.
            waits = bool(execution.parked) and money.payments[-1].state is PaymentState.VERIFIED
            assert waits or not self.moving(deal), f"nobody follows {money.payment()}"
            settled = [each for each in money.payments if each.state is PaymentState.SETTLED]
            assert len(settled) * deal.price == deal.moved(), "money moved and nobody knows"
            delivered = [each for each in settled if not each.refund]
            assert len(delivered) <= 1, "charged twice"
            if settled:
                assert execution.state.terminal or execution.parked, "paid, and forgotten"
        self.client.close()


def test_money_invariants_hold_in_random_sequences(valkey: EmbeddedStore) -> None:
    """In any order of events: at most one charge, and it buys a result, a run or a refund."""
    machine = type("Money", (Money,), {"store": valkey})
    run_state_machine_as_test(machine, settings=_settings(int(os.environ.get("MONEY_EXAMPLES", "60")), 40))


@pytest.mark.soak
def test_money_invariants_hold_in_long_random_sequences(valkey: EmbeddedStore) -> None:
    """The same with many more and longer examples."""
    machine = type("Money", (Money,), {"store": valkey})
    run_state_machine_as_test(machine, settings=_settings(1500, 60))


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
