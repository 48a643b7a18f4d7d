"""The clock's webhook threads: no delivery runs twice at once, blocks others or is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
import redis

from worker.delivery.outbox import Notice, Receiver
from worker.delivery.webhook_pool import (
    MOST_OF_FAILING,
    MOST_OF_NEWCOMERS,
    MOST_OF_ONE_EXECUTION,
    MOST_OF_ONE_HOST,
    MOST_OF_ONE_WALLET,
    WebhookPool,
)


class FakeWebhooks:
    """Webhooks as the pool uses them; `sending` defines how a call behaves."""

    def __init__(self, *notices: Notice) -> None:
        self.waiting = list(notices)
        self.collected: list[int] = []
        self.sent: list[str] = []
        self.open: list[str] = []
        self.most: dict[str, int] = {}
        self.sending: Callable[[Notice], None] = lambda notice: None
        self.receiver: Callable[[Notice], Receiver] = lambda each: Receiver(each.execution, each.execution)
        self._lock = threading.Lock()

    @property
    def outbox(self) -> FakeWebhooks:
        return self

    def due(self, at: int, most: int = 50, start: int = 0) -> list[Notice]:
        with self._lock:
            return self.waiting[start : start + most]

    def receivers(self, notices: Sequence[Notice]) -> list[Receiver]:
        return [self.receiver(each) for each in notices]

    def collect(self, at: int) -> None:
        self.collected.append(at)

    def send(self, notice: Notice) -> None:
        with self._lock:
            self.open.append(str(notice))
            assert self.open.count(str(notice)) == 1, "twice at once"
            of_it = sum(name.startswith(notice.execution) for name in self.open)
            self.most[notice.execution] = max(self.most.get(notice.execution, 0), of_it)
        try:
            self.sending(notice)
        finally:
            with self._lock:
                self.open.remove(str(notice))
                self.sent.append(str(notice))
                if notice in self.waiting:
                    self.waiting.remove(notice)


def notice(execution: str = "x", hook: int = 0) -> Notice:
    return Notice(execution, "completed", hook)


def until(true: Callable[[], bool], description: str) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, description
        time.sleep(0.005)


def test_tick_collects_and_sends() -> None:
    """One tick collects finished executions and sends what is due."""
    webhooks = FakeWebhooks(notice("a"), notice("b"))
    pool = WebhookPool(webhooks)
    pool.chore(5)
    until(lambda: sorted(webhooks.sent) == ["a completed 0", "b completed 0"], "both sent")
    assert webhooks.collected == [5]
    pool.close(5)


def test_many_notices_go_out_in_one_tick() -> None:
    """Threads that are free again take what is still due, without another tick."""
    webhooks = FakeWebhooks(*(notice(f"of-{number}") for number in range(200)))
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: len(webhooks.sent) == 200, "all of them")
    assert webhooks.collected == [1]
    pool.close(5)


def test_one_buyers_notices_follow_each_other_in_one_tick() -> None:
    """What had to wait for its buyer's share goes out when the calls before it have ended."""
    webhooks = FakeWebhooks(*(notice(f"of-{number}") for number in range(3 * MOST_OF_ONE_WALLET)))
    webhooks.sending = lambda each: time.sleep(0.2)
    webhooks.receiver = lambda each: Receiver(each.execution, "one wallet")
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: len(webhooks.sent) == 3 * MOST_OF_ONE_WALLET, "all of them")
    pool.close(5)


def test_slow_receiver_is_not_called_twice_at_once() -> None:
    """A notice with an open call is not sent again, and others are sent."""
    gate = threading.Event()
    webhooks = FakeWebhooks(notice("slow"), notice("quick"))
    webhooks.sending = lambda each: None if each.execution == "quick" else (gate.wait(10), None)[1]
    pool = WebhookPool(webhooks)
    for at in range(5):
        pool.chore(at)
        time.sleep(0.02)
    until(lambda: webhooks.sent == ["quick completed 0"], "the quick one")
    assert webhooks.open == ["slow completed 0"]
    gate.set()
    until(lambda: len(webhooks.sent) == 2, "the slow one")
    pool.close(5)


def test_one_execution_cannot_use_all_threads() -> None:
    """However many notices one execution has, others get a thread."""
    gate = threading.Event()
    webhooks = FakeWebhooks(*(notice("many", hook) for hook in range(20)), notice("other"))
    webhooks.sending = lambda each: None if each.execution == "other" else (gate.wait(10), None)[1]
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: "other completed 0" in webhooks.sent, "the other one")
    assert webhooks.most["many"] <= min(MOST_OF_ONE_EXECUTION, MOST_OF_ONE_HOST)
    gate.set()
    pool.close(5)


SLOW = {
    "one host": (lambda n: Receiver("slow", f"wallet {n}"), MOST_OF_ONE_HOST),
    "one wallet": (lambda n: Receiver(f"slow{n}", "wallet"), MOST_OF_ONE_WALLET),
    "failing hosts": (lambda n: Receiver(f"slow{n}", f"wallet {n}", failing=True), MOST_OF_FAILING),
    "newcomers": (lambda n: Receiver(f"slow{n}", f"wallet {n}", newcomer=True), MOST_OF_NEWCOMERS),
}


@pytest.mark.parametrize(("receiver", "most"), SLOW.values(), ids=SLOW)
def test_slow_receivers_hold_only_their_share(receiver: Callable[[int], Receiver], most: int) -> None:
    """However many hires a host, wallet or group has, an honest receiver behind them is called at once."""
    gate = threading.Event()
    webhooks = FakeWebhooks(*(notice(f"slow {n}".replace(" ", "")) for n in range(200)), notice("quick"))
    webhooks.receiver = lambda each: (
        Receiver("quick", "quick") if each.execution == "quick" else receiver(int(each.execution[4:]))
    )
    webhooks.sending = lambda each: None if each.execution == "quick" else (gate.wait(10), None)[1]
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: "quick completed 0" in webhooks.sent, "the quick one")
    assert len(webhooks.open) == most
    gate.set()
    pool.close(5)


def test_notice_after_a_bug_is_delayed() -> None:
    """The notice is not retried at each tick, and others are sent meanwhile."""
    webhooks, tries = FakeWebhooks(notice("broken"), notice("fine")), []

    def fail(each: Notice) -> None:
        tries.append(each.execution)
        if each.execution == "broken":
            raise ValueError("bug")

    webhooks.sending = fail
    pool = WebhookPool(webhooks, rest=60)
    for _ in range(5):
        webhooks.waiting[:] = [notice("broken"), notice("fine")]
        before = tries.count("fine")
        until(lambda before=before: (pool.chore(1), tries.count("fine") > before)[1], "the fine one")
        until(lambda: not pool.under_way, "the end of the round")
    assert tries.count("broken") == 1
    pool.close(5)


@pytest.mark.parametrize("fault", [redis.ConnectionError(), ValueError("bug")])
def test_any_failure_is_retried(fault: Exception) -> None:
    """A store outage, or a bug after its delay, ends one attempt and not the pool."""
    webhooks = FakeWebhooks(notice())
    tries = []

    def fail_once(each: Notice) -> None:
        tries.append(each)
        if len(tries) == 1:
            webhooks.waiting.append(each)
            raise fault

    webhooks.sending = fail_once
    pool = WebhookPool(webhooks, rest=0)
    pool.chore(1)
    until(lambda: len(tries) == 1 and not webhooks.open, "a first try")
    webhooks.waiting[:] = [notice()]
    until(lambda: (pool.chore(2), len(tries) >= 2)[1], "a second try")
    pool.close(5)


def test_closed_pool_starts_nothing() -> None:
    """A closed pool sends nothing and logs nothing."""
    webhooks = FakeWebhooks(notice())
    pool = WebhookPool(webhooks)
    pool.close(0)
    pool.chore(1)
    assert webhooks.sent == [] and webhooks.collected == []
