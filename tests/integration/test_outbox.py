"""The webhook outbox in the store: every ended execution is collected, every attempt journaled."""

from __future__ import annotations

import redis

from tests.engine import Engine
from worker.delivery.outbox import MOST_LINES, AttemptEnd, FailingHost, LeasedNotice, Notice, Outbox
from worker.store.data_model import Keys

SECOND = 1_000_000
HOUR = 3600 * SECOND
NOTICE = Notice("x", "completed", 0)


class OutboxSetup:
    """An outbox on a clock that the test moves."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.keys = client, Keys()
        self.outbox = Outbox(client, self.keys, test_clock=True)
        client.hset(self.keys.record("x"), mapping={"lane": "queue", "state": "completed", "phase": "done"})

    def now(self) -> int:
        seconds, micros = self.client.time()  # type: ignore[misc]
        return int(seconds) * SECOND + int(micros) + int(self.client.get(self.keys.test_clock) or 0)  # type: ignore[arg-type]

    def advance(self, us: int) -> None:
        self.client.incrby(self.keys.test_clock, us)

    def begin(self, notice: Notice = NOTICE) -> LeasedNotice | None:
        return next(iter(self.outbox.begin([notice])), None)

    def end(self, notice: Notice = NOTICE, *, next_at: int | None = None, **ended: str) -> int:
        result = {"line": "status 500", "host": "h", **ended}
        return self.outbox.end([AttemptEnd(notice, self.now(), next_at=next_at, **result)])[0]

    def fail(self, notice: Notice = NOTICE, *, host: str = "h", outcome: str = "failed") -> int:
        assert self.begin(notice) is not None
        return self.end(notice, next_at=self.now(), host=host, outcome=outcome)


def test_many_executions_ending_at_once_are_all_collected(client: redis.Redis) -> None:
    """However many end at once, all are collected, and the next look starts after them."""
    post = OutboxSetup(client)
    at = post.now()
    client.zadd(post.keys.ended, {f"id-{number:03d}": at for number in range(450)})
    found = []
    for ids, until in post.outbox.ended_since_last_look(at + SECOND, most=100):
        found += ids
        post.outbox.looked(until)
    assert len(found) == 450 == len(set(found))
    for _, until in post.outbox.ended_since_last_look(at + 5 * SECOND):
        post.outbox.looked(until)
    later = at + 10 * SECOND
    client.zadd(post.keys.ended, {"late": later})
    assert [ids for ids, _ in post.outbox.ended_since_last_look(later, most=100)] == [["late"]]


def test_notice_is_collected_once(client: redis.Redis) -> None:
    """Finding the same end twice does not send twice, also after its delivery."""
    post = OutboxSetup(client)
    assert post.outbox.add([NOTICE]) == 1
    assert post.outbox.add([NOTICE]) == 0
    post.fail(outcome="ok")
    post.end(line="status 200", outcome="ok")
    assert post.outbox.add([NOTICE]) == 0
    assert post.outbox.due(post.now() + HOUR) == []


def test_delivery_lease_is_exclusive_and_expires(client: redis.Redis) -> None:
    """Two clocks cannot send one notice concurrently; if one dies, the other takes over."""
    post = OutboxSetup(client)
    post.outbox.add([NOTICE])
    first = post.begin()
    assert first is not None and first.attempt == 1
    assert post.begin() is None
    post.advance(61 * SECOND)
    again = post.begin()
    assert again is not None and again.attempt == 2


def test_webhook_after_410_gets_no_more_notices(client: redis.Redis) -> None:
    """After a 410 other notices for that webhook are dropped and journaled; other webhooks go on."""
    post = OutboxSetup(client)
    partial, other = Notice("x", "partial-3", 0), Notice("x", "completed", 1)
    post.outbox.add([partial, NOTICE, other])
    post.fail(partial, outcome="gone")
    post.end(partial, line="status 410", outcome="gone")
    assert post.begin() is None
    assert post.begin(other) is not None
    [entry] = [each for each in post.outbox.journal("x") if each.notice == NOTICE]
    assert entry.due is None and "gone" in entry.last
    assert post.outbox.resend(NOTICE)
    assert post.begin() is not None


def test_unknown_notice_cannot_be_resent(client: redis.Redis) -> None:
    """The operator cannot resend a notice that never existed."""
    post = OutboxSetup(client)
    assert post.outbox.resend(NOTICE) is False
    assert post.outbox.due(post.now() + HOUR) == []


def test_host_failure_streak_ends_with_a_success(client: redis.Redis) -> None:
    """The streak starts at its first failure; a success, or a long silence, resets it."""
    post = OutboxSetup(client)
    post.outbox.add([NOTICE])
    since = post.fail()
    post.advance(24 * HOUR)
    assert post.fail() == since
    [host] = post.outbox.failing()
    assert (host.host, host.since, host.failures) == ("h", since, 2) and host.last > since
    assert post.fail(outcome="ok") == 0 and post.outbox.failing() == []
    first = post.fail()
    post.advance(40 * HOUR)
    assert post.fail() > first
    assert isinstance(post.outbox.failing()[0], FailingHost)


def test_journal_length_is_limited(client: redis.Redis) -> None:
    """However often it is resent, the journal keeps its maximum of lines, including the last."""
    post = OutboxSetup(client)
    post.outbox.add([NOTICE])
    for _ in range(MOST_LINES + 5):
        post.outbox.resend(NOTICE)
        post.fail()
    [entry] = post.outbox.journal("x")
    assert len(entry.lines) == MOST_LINES and entry.last.endswith("status 500")


def test_notice_of_a_removed_execution_leaves_nothing(client: redis.Redis) -> None:
    """A notice whose execution is gone is removed without writing to a journal that was removed."""
    post = OutboxSetup(client)
    post.outbox.add([NOTICE])
    client.delete(post.keys.hooks("x"), post.keys.record("x"))
    assert post.begin() is None
    assert post.outbox.due(2**53) == [] and not client.exists(post.keys.hooks("x"))


def test_notices_begin_and_end_together(client: redis.Redis) -> None:
    """Of several notices those that are due are leased, each with its own event; their ends are apart."""
    post = OutboxSetup(client)
    for at, event in enumerate(("execution.created", "file.written", "execution.completed"), 5):
        client.rpush(post.keys.log("x"), f"{at} {event} - 0 0 {{}}")
    partial, other = Notice("x", "partial-2", 0), Notice("x", "completed", 1)
    post.outbox.add([NOTICE, partial, other])
    assert post.begin(other) is not None
    begun = post.outbox.begin([NOTICE, partial, other, Notice("y", "completed", 0)])
    assert [(each.notice, each.sequence) for each in begun] == [(NOTICE, 3), (partial, 2)]
    assert [each.event and (each.event.kind, each.event.at) for each in begun] == [
        ("execution.completed", 7),
        ("file.written", 6),
    ]
    later = post.now() + HOUR
    ends = [
        AttemptEnd(NOTICE, 1, "status 204", "good", "ok"),
        AttemptEnd(partial, 1, "timed out", "bad", "failed", later),
    ]
    since = post.outbox.end(ends)
    assert since[0] == 0 and since[1] == post.outbox.failing()[0].since
    journal = {each.notice: (each.last.partition(" ")[2], each.due) for each in post.outbox.journal("x")}
    assert journal[NOTICE] == ("status 204", None) and journal[partial] == ("timed out", later)


def test_only_executions_with_webhooks_are_read(engine: Engine) -> None:
    """Running and waiting work with webhooks is found, with the position to continue reading at."""
    quiet, heard = engine.running().id, engine.running().id
    engine.client.hset(engine.keys.record(heard), "hooks", '[{"url":"https://a"},{"url":"https://b"}]')
    outbox = Outbox(engine.client, engine.keys, test_clock=True)
    assert outbox.at_work() == [(heard, 2, 0)]
    outbox.looked_at(heard, 7)
    engine.store.requeue(heard, 1, "handed_back")
    assert outbox.at_work() == [(heard, 2, 7)]
    assert quiet not in [id for id, *_ in outbox.at_work()]


def test_notice_whose_record_cannot_be_read_keeps_no_other_back(client: redis.Redis) -> None:
    """Such as one with a state of a newer release; all of them are leased by then."""
    post = OutboxSetup(client)
    client.hset(post.keys.record("y"), mapping={"lane": "queue", "state": "unheard of", "phase": "done"})
    broken, notices = Notice("y", "completed", 0), [Notice("y", "completed", 0), NOTICE]
    post.outbox.add(notices)
    assert [each.notice for each in post.outbox.begin(notices)] == [NOTICE]
    assert post.outbox.due(post.now()) == []
    post.advance(61 * SECOND)
    assert broken in post.outbox.due(post.now())
