"""What a waiting request is told: only what it must act on, and nothing is missed."""

from __future__ import annotations

import time

import pytest
import redis

from tests.engine import Engine
from tests.waiting import eventually
from worker.engine.decisions import LOOK, SETTLE, Decisions


def told_of(decisions: Decisions, wanted: bytes) -> set[bytes]:
    """What was told until this came."""
    told: set[bytes] = set()

    def heard() -> bool:
        decisions.wait(0.1)
        told.update(decisions.take())
        return wanted in told

    eventually(heard, 30, f"{wanted!r}")
    return told


def claimed(engine: Engine) -> str:
    """An execution whose requests wait at this process's own channel."""
    id = engine.new()
    engine.client.hset(engine.keys.record(id), "asker", engine.executions.own_channel.channel)
    return id


def test_the_end_reaches_both_places(engine: Engine) -> None:
    """The claiming process and another one that waits hear of the end, and of nothing before it."""
    id = claimed(engine)
    decisions = engine.executions.decisions
    with decisions(id, 1) as own, decisions(id) as other:
        eventually(lambda: max(own.began, other.began) < float("inf"), 30)
        engine.take(id)
        engine.store.append(id, 1, 1, [("progress.updated", b"{}")])
        engine.seal(id, 1)
        assert told_of(own, LOOK) == told_of(other, LOOK) == {LOOK}
    assert not engine.client.hexists(engine.keys.record(id), "asker")


def test_each_request_hears_of_its_own_execution(engine: Engine) -> None:
    """One channel serves all requests of a process, each for its own execution."""
    one, other = claimed(engine), claimed(engine)
    channel = engine.executions.own_channel.channel
    decisions = engine.executions.decisions
    with decisions(one, 1) as mine, decisions(other, 1) as his:
        eventually(lambda: max(mine.began, his.began) < float("inf"), 30)
        engine.client.publish(channel, f"{other} settle")
        assert told_of(his, SETTLE) == {SETTLE}
        assert mine.take() == set()
    assert dict(engine.client.pubsub_numsub(channel))[channel.encode()] == 1


def test_a_lease_reaches_the_request_with_its_payment(engine: Engine) -> None:
    """One request has it, another one of the same execution is only told; a stranger's is given back."""
    id = claimed(engine)
    own = engine.executions.own_channel
    given_back: list[tuple[str, int]] = []
    own.give_back = lambda id, payment: given_back.append((id, payment))
    decisions = engine.executions.decisions
    with decisions(id, 1) as first, decisions(id, 2) as second:
        eventually(lambda: max(first.began, second.began) < float("inf"), 30)
        engine.client.publish(own.channel, f"{id} settle 2 7 life")
        assert told_of(second, SETTLE) == told_of(first, SETTLE) == {SETTLE}
        assert (first.lease, second.lease) == (b"", b"2 7 life") and not given_back
        engine.client.publish(own.channel, f"{id} settle 3 8 life")
        told_of(first, SETTLE)
        assert given_back == [(id, 3)]
        first.lease, second.lease = b"", b""
    assert given_back == [(id, 3)]


def test_a_lease_that_nobody_used_is_given_back(engine: Engine) -> None:
    """A request that ends with it leaves it behind, and so does one that has ended before."""
    id = claimed(engine)
    own = engine.executions.own_channel
    given_back: list[tuple[str, int]] = []
    own.give_back = lambda id, payment: given_back.append((id, payment))
    with engine.executions.decisions(id, 1) as gone:
        eventually(lambda: gone.began < float("inf"), 30)
        engine.client.publish(own.channel, f"{id} settle 1 7 life")
        told_of(gone, SETTLE)
    assert given_back == [(id, 1)]
    engine.client.publish(own.channel, f"{id} settle 1 8 life")
    eventually(lambda: given_back[1:] == [(id, 1)], 30)


def test_a_restored_subscription_asks_to_look(engine: Engine) -> None:
    """Whoever waited while the subscription was away is asked to look at the record."""
    id = claimed(engine)
    with engine.executions.decisions(id, 1) as own:
        eventually(lambda: own.began < float("inf"), 30)
        assert own.began <= time.monotonic()
        for each in engine.client.client_list(_type="pubsub"):
            engine.client.client_kill_filter(_id=each["id"])
        told_of(own, LOOK)


def test_a_later_request_knows_from_when_it_hears(engine: Engine, client: redis.Redis) -> None:
    """On a channel that is subscribed already, a request hears from its first moment."""
    with engine.executions.decisions(claimed(engine), 1) as first:
        eventually(lambda: first.began < float("inf"), 30)
        with engine.executions.decisions(claimed(engine), 1) as second:
            assert second.began < float("inf")


def test_what_was_told_before_a_request_listens_is_not_missed(
    engine: Engine, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work may end before the request that began it listens; it then looks, and no other request does."""
    own = engine.executions.own_channel
    with engine.executions.decisions(claimed(engine), 1) as first:
        eventually(lambda: first.began < float("inf"), 30)
        recorded_at = time.monotonic()
        ended, other = claimed(engine), claimed(engine)
        client.publish(own.channel, f"{ended} settle")
        eventually(lambda: ended in own._unheard)
        with engine.executions.decisions(ended, 1) as late, engine.executions.decisions(other, 1) as second:
            assert late.began < recorded_at and second.began < recorded_at
            assert late.take() == {LOOK} and second.take() == set()
        # What is forgotten may have been of any request.
        monkeypatch.setattr("worker.engine.decisions._MOST_UNHEARD", 1)
        client.publish(own.channel, "nobody settle")
        eventually(lambda: ended not in own._unheard)
        with engine.executions.decisions(other, 1) as third:
            assert third.began > recorded_at


def test_a_restored_subscription_knows_nothing_of_what_was_told_before(engine: Engine) -> None:
    own = engine.executions.own_channel
    with engine.executions.decisions(claimed(engine), 1) as first:
        eventually(lambda: first.began < float("inf"), 30)
        recorded_at = time.monotonic()
        own.begin()
        with engine.executions.decisions(claimed(engine), 1) as late:
            assert late.began > recorded_at
