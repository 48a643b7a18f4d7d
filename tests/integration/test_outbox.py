"""The outbox in the store: nothing that ended is forgotten, and the journal says what was tried."""

from __future__ import annotations

import redis

from tests.engine import Engine
from worker.delivery.outbox import MOST_LINES, FailingHost, Notice, Outbox
from worker.executions.keys import Keys

SECOND = 1_000_000
HOUR = 3600 * SECOND
NOTICE = Notice("x", "completed", 0)


class Post:
    """An outbox on a clock that the test moves."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.keys = client, Keys()
        self.outbox = Outbox(client, self.keys, test_clock=True)

    def now(self) -> int:
        seconds, micros = self.client.time()  # type: ignore[misc]
        return int(seconds) * SECOND + int(micros) + int(self.client.get(self.keys.test_clock) or 0)  # type: ignore[arg-type]

    def advance(self, us: int) -> None:
        self.client.incrby(self.keys.test_clock, us)

    def fail(self, notice: Notice = NOTICE, *, host: str = "h", what: str = "failed") -> int:
        begun = self.outbox.begin(notice)
        assert begun is not None
        return self.outbox.end(notice, next_at=self.now(), line="status 500", host=host, what=what)


def test_more_ended_at_once_than_a_page_holds(client: redis.Redis) -> None:
    """However many end in one moment, all are taken in, and the next look begins after them."""
    post = Post(client)
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


def test_a_notice_is_taken_in_once(client: redis.Redis) -> None:
    """Looking twice at the same end does not send twice, also after it was delivered."""
    post = Post(client)
    assert post.outbox.add("x", [NOTICE]) == 1
    assert post.outbox.add("x", [NOTICE]) == 0
    post.fail(what="ok")
    post.outbox.end(NOTICE, next_at=None, line="status 200", host="h", what="ok")
    assert post.outbox.add("x", [NOTICE]) == 0
    assert post.outbox.due(post.now() + HOUR) == []


def test_leave_is_given_once_and_lapses(client: redis.Redis) -> None:
    """Two clocks cannot send one notice at the same time; whoever dies with it is replaced."""
    post = Post(client)
    post.outbox.add("x", [NOTICE])
    first = post.outbox.begin(NOTICE)
    assert first is not None and first[0] == 1
    assert post.outbox.begin(NOTICE) is None
    post.advance(61 * SECOND)
    again = post.outbox.begin(NOTICE)
    assert again is not None and again[0] == 2


def test_a_webhook_that_is_gone_hears_nothing(client: redis.Redis) -> None:
    """After a 410 other notices for that webhook are dropped with a word in the journal; others go on."""
    post = Post(client)
    partial, other = Notice("x", "partial-3", 0), Notice("x", "completed", 1)
    post.outbox.add("x", [partial, NOTICE, other])
    post.fail(partial, what="gone")
    post.outbox.end(partial, next_at=None, line="status 410", host="h", what="gone")
    assert post.outbox.begin(NOTICE) is None
    assert post.outbox.begin(other) is not None
    [said] = [each for each in post.outbox.journal("x") if each.notice == NOTICE]
    assert said.due is None and "gone" in said.last
    assert post.outbox.resend(NOTICE)
    assert post.outbox.begin(NOTICE) is not None


def test_what_never_was_is_not_sent_again(client: redis.Redis) -> None:
    """The operator cannot make up a notice."""
    post = Post(client)
    assert post.outbox.resend(NOTICE) is False
    assert post.outbox.due(post.now() + HOUR) == []


def test_a_host_fails_from_its_first_failure_to_its_next_success(client: redis.Redis) -> None:
    """The time counts from the first failure of a row; a success, or a long silence, begins anew."""
    post = Post(client)
    post.outbox.add("x", [NOTICE])
    since = post.fail()
    post.advance(24 * HOUR)
    assert post.fail() == since
    [host] = post.outbox.failing()
    assert (host.host, host.since, host.failures) == ("h", since, 2) and host.last > since
    assert post.fail(what="ok") == 0 and post.outbox.failing() == []
    first = post.fail()
    post.advance(40 * HOUR)
    assert post.fail() > first
    assert isinstance(post.outbox.failing()[0], FailingHost)


def test_the_journal_is_bounded(client: redis.Redis) -> None:
    """However often somebody sends again, the journal keeps so many lines and the last."""
    post = Post(client)
    post.outbox.add("x", [NOTICE])
    for _ in range(MOST_LINES + 5):
        post.outbox.resend(NOTICE)
        post.fail()
    [said] = post.outbox.journal("x")
    assert len(said.lines) == MOST_LINES and said.last.endswith("status 500")


def test_a_notice_whose_execution_is_gone_leaves_nothing(client: redis.Redis) -> None:
    """Dropping a notice takes it out without writing into a journal that was removed."""
    post = Post(client)
    post.outbox.add("x", [NOTICE])
    client.delete(post.keys.hooks("x"))
    post.outbox.drop(NOTICE)
    assert post.outbox.due(2**53) == [] and not client.exists(post.keys.hooks("x"))


def test_only_who_wants_to_be_told_is_looked_at(engine: Engine) -> None:
    """Work with webhooks is found while it runs and while it waits, with the place where to go on reading."""
    quiet, heard = engine.running().id, engine.running().id
    engine.client.hset(engine.keys.record(heard), "hooks", '[{"url":"https://a"},{"url":"https://b"}]')
    outbox = Outbox(engine.client, engine.keys, test_clock=True)
    assert outbox.at_work() == [(heard, 2, 0)]
    outbox.looked_at(heard, 7)
    engine.store.requeue(heard, 1, "handed_back")
    assert outbox.at_work() == [(heard, 2, 7)]
    assert quiet not in [id for id, *_ in outbox.at_work()]
