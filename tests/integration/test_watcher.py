"""Waiting for news: nothing is missed, one subscription serves many, and a store that comes back is found."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.engine import Engine, in_thread
from worker.executions.events import Event
from worker.executions.store import BATCH
from worker.executions.watch import Watcher
from worker.ids import new_id
from worker.local.valkey import EmbeddedStore


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits for something that comes by itself; a store that is away or still loading has not said no."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(redis.ConnectionError):
            if true():
                return
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.005)


def subscribers(client: redis.Redis, channel: str) -> int:
    return dict(client.pubsub_numsub(channel))[channel.encode()]


def collect(batches: Iterator[list[Event]]) -> list[int]:
    return [event.sequence for batch in batches for event in batch]


def test_nothing_is_missed_while_subscribing(engine: Engine) -> None:
    """However appends and subscriptions fall together, a follower sees every event once and at once."""
    for _ in range(25):
        id = engine.new()
        seen: list[int] = []

        def work(id: str = id) -> None:
            engine.take(id)
            for number in range(20):
                engine.store.append(id, 1, number, [("progress.updated", b"{}")])
            engine.seal(id, 1)

        began = time.monotonic()
        with in_thread(work):
            seen = collect(engine.executions.follow(id))
        assert seen == list(range(1, 24))
        # A missed wake-up would show as a heartbeat's five seconds.
        assert time.monotonic() - began < 4


def test_many_waiters_share_one_subscription(engine: Engine) -> None:
    """Two hundred followers of twenty executions cost one connection and all see the end."""
    ids = [engine.new() for _ in range(20)]
    seen: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda id=id: seen.append(collect(engine.executions.follow(id))), daemon=True)
        for id in ids * 10
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(engine.watcher) == 200)
    until(lambda: all(subscribers(engine.client, engine.keys.log(id)) == 1 for id in ids))
    assert [each["sub"] for each in engine.client.client_list()].count("20") == 1
    for id in ids:
        engine.take(id)
        engine.seal(id, 1)
    for thread in threads:
        thread.join(10)
    assert seen == [[1, 2, 3]] * 200


def test_who_leaves_is_unsubscribed(engine: Engine) -> None:
    """The channel is given up with its last waiter, also when a stream is closed early."""
    id = engine.new()
    channel = engine.keys.log(id)
    one, other = engine.executions.follow(id), engine.executions.follow(id)
    assert len(next(one)) == len(next(other)) == 1
    until(lambda: subscribers(engine.client, channel) == 1)
    one.close()  # type: ignore[attr-defined]
    assert len(engine.watcher) == 1
    assert subscribers(engine.client, channel) == 1
    other.close()  # type: ignore[attr-defined]
    until(lambda: subscribers(engine.client, channel) == 0)
    assert len(engine.watcher) == 0
    # The subscription still works for the next one.
    with in_thread(lambda: (time.sleep(0.05), engine.cancel(id))):
        assert collect(engine.executions.follow(id, 1)) == [2]


def test_coming_and_going_on_one_channel_loses_nothing(engine: Engine) -> None:
    """A waiter that comes in the moment the last one leaves is subscribed, whatever overtakes what."""
    id = engine.new()
    channel = engine.keys.log(id)
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            with engine.watcher.watch(channel):
                pass

    threads = [threading.Thread(target=come_and_go, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        with engine.watcher.watch(channel) as watch:
            watch.wait(0.01)
            watch.wait(0.0)
            engine.client.publish(channel, "")
            assert watch.wait(3.0)
    stop.set()
    for thread in threads:
        thread.join(10)
    until(lambda: subscribers(engine.client, channel) == 0)


def test_who_joins_a_channel_is_told_to_look(engine: Engine) -> None:
    """A subscription that is there already counts as news for whoever joins it."""
    with engine.watcher.watch("c") as first:
        assert first.wait(5.0)
        with engine.watcher.watch("c") as second:
            assert second.wait(1.0)
            assert not second.wait(0.05)
            assert not first.wait(0.0)


def test_a_watch_can_be_used_again(engine: Engine) -> None:
    """Leaving twice is harmless, and the same watch may wait a second time."""
    watch = engine.watcher.watch("w:log:x")
    for _ in range(2):
        with watch:
            until(lambda: subscribers(engine.client, "w:log:x") == 1)
            assert watch.wait(5.0)
        engine.watcher.drop(watch)
        assert len(engine.watcher) == 0


def test_a_store_that_comes_back_is_subscribed_again(valkey: EmbeddedStore, engine: Engine) -> None:
    """When the store dies and returns, waiters are woken and later news reach them without polling."""
    id = engine.running().id
    channel = engine.keys.log(id)
    with engine.watcher.watch(channel) as watch:
        until(lambda: subscribers(engine.client, channel) == 1)
        watch.wait(1.0)
        pid = valkey.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert watch.wait(20.0), "the restored subscription is news"
        until(lambda: subscribers(engine.client, channel) == 1)
        watch.wait(0.2)
        until(lambda: engine.seal(id, 1) == "ok")
        assert watch.wait(5.0)


def test_a_follower_rides_through_an_outage(valkey: EmbeddedStore, engine: Engine) -> None:
    """A stream that was open while the store was away goes on with the next event."""
    id = engine.running().id
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(collect(engine.executions.follow(id))), daemon=True)
    thread.start()
    until(lambda: seen == [] and len(engine.watcher) == 1 and subscribers(engine.client, engine.keys.log(id)))
    pid = valkey.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: valkey.pid not in (None, pid))
    until(lambda: engine.seal(id, 1) == "ok")
    thread.join(15)
    assert seen == [1, 2, 3]


def test_a_failing_listener_starts_again(client: redis.Redis) -> None:
    """An error that nobody foresaw does not leave all later waiters without news."""

    class Moody(redis.Redis):
        moods = 2

        def pubsub(self, **options: object) -> redis.client.PubSub:
            if self.moods:
                self.moods -= 1
                raise ValueError("a fault nobody foresaw")
            return super().pubsub(**options)

    watcher = Watcher(Moody(connection_pool=client.connection_pool))
    with watcher.watch("c") as watch:
        assert watch.wait(5.0)
        client.publish("c", "")
        assert watch.wait(5.0)


@pytest.mark.parametrize("after", [3, 4, 10**15])
def test_following_past_the_end_ends(engine: Engine, after: int) -> None:
    """Whoever has already seen the terminal event is not kept waiting."""
    id = engine.running().id
    engine.seal(id, 1)
    began = time.monotonic()
    assert collect(engine.executions.follow(id, after)) == []
    assert time.monotonic() - began < 2


def test_following_what_is_not_there_ends(engine: Engine) -> None:
    """An execution that never was, or was removed, has no stream."""
    assert collect(engine.executions.follow(new_id())) == []


def test_an_end_between_two_readings_is_not_lost(engine: Engine) -> None:
    """The terminal event is seen even when it falls between reading the log and reading the state."""
    id = engine.running().id
    store = engine.store

    class Late(type(store)):  # type: ignore[misc]
        def state(self, id: str) -> object:
            engine.seal(id, 1)
            return super().state(id)

    store.__class__ = Late
    assert collect(engine.executions.follow(id, 2)) == [3]


def test_a_long_log_is_read_without_pauses(engine: Engine) -> None:
    """Catching up on thousands of events does not wait for heartbeats in between."""
    id = engine.running().id
    for number in range(3):
        engine.store.append(id, 1, number, [("output.chunk", b"{}")] * BATCH)
    engine.seal(id, 1)
    began = time.monotonic()
    batches = list(engine.executions.follow(id))
    assert [len(batch) for batch in batches] == [BATCH, BATCH, BATCH, 3]
    assert time.monotonic() - began < 4


def test_waiting_tells_whether_the_end_came(engine: Engine) -> None:
    """wait is true as soon as the execution ended, and false when its time is over."""
    id = engine.running().id
    assert not engine.executions.wait(id, 0.05)
    assert not engine.executions.wait(id, 0.0)
    with in_thread(lambda: (time.sleep(0.1), engine.seal(id, 1))):
        assert engine.executions.wait(id, 10.0)
    assert engine.executions.wait(id, 0.0)
