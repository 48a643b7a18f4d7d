"""The clock's webhook threads: no delivery runs twice at once, blocks others or is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest
import redis
from structlog.testing import capture_logs

from worker.delivery.outbox import AttemptEnd, LeasedNotice, Notice, Receiver
from worker.delivery.webhook_pool import (
    MOST_OF_FAILING,
    MOST_OF_NEWCOMERS,
    MOST_OF_ONE_EXECUTION,
    MOST_OF_ONE_HOST,
    MOST_OF_ONE_WALLET,
    THREADS,
    WebhookPool,
)
from worker.engine.record import from_mapping

RECORD = from_mapping({"lane": b"queue", "state": b"completed", "phase": b"done"})


class FakeWebhooks:
    """Webhooks as the pool uses them; `sending` defines how a call behaves, `beginning` a lease and so on."""

    def __init__(self, *notices: Notice) -> None:
        self.waiting = list(notices)
        self.collected: list[int] = []
        self.sent: list[str] = []
        self.ends: list[AttemptEnd] = []
        self.open: list[str] = []
        self.most: dict[str, int] = {}
        self.collecting: Callable[[int], None] = lambda at: None
        self.sending: Callable[[Notice], None] = lambda notice: None
        self.beginning: Callable[[Sequence[Notice]], object] = lambda notices: None
        self.ending: Callable[[Sequence[AttemptEnd]], object] = lambda ends: None
        self.receiver: Callable[[Notice], Receiver] = lambda each: Receiver(each.execution, each.execution)
        self._lock = threading.Lock()

    @property
    def outbox(self) -> FakeWebhooks:
        return self

    @property
    def ended(self) -> list[str]:
        return [str(each.notice) for each in self.ends]

    def due(self, at: int, most: int = 50, start: int = 0) -> list[Notice]:
        with self._lock:
            return self.waiting[start : start + most]

    def receivers(self, notices: Sequence[Notice]) -> list[Receiver]:
        return [self.receiver(each) for each in notices]

    def collect(self, at: int) -> None:
        self.collecting(at)
        self.collected.append(at)

    def begin(self, notices: Sequence[Notice]) -> list[LeasedNotice]:
        self.beginning(notices)
        with self._lock:
            for each in notices:
                self.waiting.remove(each)
        return [LeasedNotice(each, 1, 0, 1, None, RECORD) for each in notices]

    def send(self, leased: LeasedNotice) -> AttemptEnd:
        notice = leased.notice
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
        return AttemptEnd(notice, 0, "status 204")

    def end(self, ends: Sequence[AttemptEnd]) -> None:
        self.ending(ends)
        self.ends += ends


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


def test_notice_that_cannot_be_leased_rests_and_keeps_none_back() -> None:
    """A bug about one notice is met once, not at each tick, and the others are sent meanwhile."""
    broken, tries = notice("broken"), []
    webhooks = FakeWebhooks(broken)

    def fail(notices: Sequence[Notice]) -> None:
        if broken in notices:
            tries.append(len(notices))
            raise ValueError("bug")

    webhooks.beginning = fail
    pool = WebhookPool(webhooks, rest=60)
    for tick in range(3):
        webhooks.waiting += [notice(f"fine-{tick}"), notice(f"other-{tick}")]
        pool.chore(tick)
        until(lambda tick=tick: len(webhooks.ended) == 2 * tick + 2, "the others")
    assert tries == [3, 1] and webhooks.waiting == [broken]
    pool.close(5)


def test_due_notices_are_sent_although_no_new_ones_can_be_collected() -> None:
    """A bug about one execution that ended keeps only new notices back."""

    def fail(at: int) -> None:
        raise ValueError("bug")

    webhooks = FakeWebhooks(notice())
    webhooks.collecting = fail
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: webhooks.sent == ["x completed 0"], "what was due")
    pool.close(5)


def test_many_that_cannot_be_leased_do_not_hide_the_others() -> None:
    """Pages full of resting notices are passed over."""
    broken = [notice(f"broken-{number}") for number in range(150)]
    webhooks = FakeWebhooks(*broken, notice("fine"))

    def fail(notices: Sequence[Notice]) -> None:
        if any(each in broken for each in notices):
            raise ValueError("bug")

    webhooks.beginning = fail
    pool = WebhookPool(webhooks, rest=60)
    with capture_logs():  # writing 150 tracebacks takes seconds
        pool.chore(1)
        until(lambda: len(webhooks.waiting) == 150, "the fine one is begun")
        webhooks.waiting.append(notice("later"))
        pool.chore(2)
        until(lambda: webhooks.sent == ["fine completed 0", "later completed 0"], "the later one")
        pool.close(5)


def test_every_attempt_is_recorded_in_spite_of_one_that_cannot_be() -> None:
    """A bug while the end of one call is recorded does not lose the ends of others."""
    webhooks = FakeWebhooks(*(notice(f"of-{number}") for number in range(6)))

    def fail(ends: Sequence[AttemptEnd]) -> None:
        if any(each.notice.execution == "of-3" for each in ends):
            raise ValueError("bug")

    webhooks.ending = fail
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: len(webhooks.sent) == 6 and not pool.under_way, "all of them")
    assert sorted(webhooks.ended) == [f"of-{number} completed 0" for number in (0, 1, 2, 4, 5)]
    pool.close(5)


@pytest.mark.parametrize("fault", [redis.ConnectionError(), ValueError("bug")])
@pytest.mark.parametrize("where", ["beginning", "sending", "ending"])
def test_any_failure_is_retried(where: str, fault: Exception) -> None:
    """A store outage, or a bug after its delay, ends one attempt and not the pool."""
    webhooks, tries = FakeWebhooks(notice()), []

    def fail_once(each: object) -> None:
        tries.append(each)
        if len(tries) == 1:
            raise fault

    setattr(webhooks, where, fail_once)
    pool = WebhookPool(webhooks, rest=0)
    pool.chore(1)
    until(lambda: len(tries) == 1 and not webhooks.open and not pool.under_way, "a first try")
    webhooks.waiting[:] = [notice()]
    until(lambda: (pool.chore(2), len(tries) >= 2)[1], "a second try")
    until(lambda: webhooks.ended[-1:] == ["x completed 0"], "a recorded attempt")
    pool.close(5)


def test_closed_pool_records_open_calls_and_gives_the_others_back() -> None:
    """Calls that are open when the pool closes are recorded; what was leased for later is due again."""
    gate = threading.Event()
    webhooks = FakeWebhooks(*(notice(f"of-{number}") for number in range(40)))
    webhooks.sending = lambda each: (gate.wait(10), None)[1]
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: len(webhooks.open) == THREADS, "open calls")
    pool.close(0)
    gate.set()
    until(lambda: not pool.under_way, "the end of the calls")
    assert len(webhooks.ended) + len(webhooks.waiting) == 40
    again = [str(each.notice) for each in webhooks.ends if each.next_at is not None]
    assert len(webhooks.sent) == THREADS and sorted(webhooks.ended) == sorted(webhooks.sent + again)


def test_closed_pool_starts_nothing() -> None:
    """A closed pool sends nothing and logs nothing."""
    webhooks = FakeWebhooks(notice())
    pool = WebhookPool(webhooks)
    pool.close(0)
    pool.chore(1)
    assert webhooks.sent == [] and webhooks.collected == []


def test_notice_that_is_not_due_yet_is_asked_for_once_a_tick() -> None:
    """However many there are: what is due in a moment must not keep the store busy until then."""
    tries: list[str] = []

    class NotYet(FakeWebhooks):
        def begin(self, notices: Sequence[Notice]) -> list[LeasedNotice]:
            tries.extend(map(str, notices))
            return []

    webhooks = NotYet(*(notice(f"of-{number}") for number in range(150)))
    pool = WebhookPool(webhooks)
    pool.chore(1)
    until(lambda: len(set(tries)) == 150 and not pool.under_way, "one lease asked for each")
    pool.chore(2)
    until(lambda: len(tries) >= 300 and not pool.under_way, "and again at the next tick")
    pool.close(5)
    assert webhooks.collected == [1, 2] and len(tries) == 300
