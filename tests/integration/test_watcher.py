"""Waiting for events: none is missed, one subscription serves many, and outages are survived."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.engine import Engine, in_thread
from worker.core.ids import new_id
from worker.engine import watch as watch_module
from worker.engine.events import Event
from worker.engine.reader import BATCH
from worker.engine.watch import Watcher
from worker.local.valkey import EmbeddedStore


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Polls until the condition holds; an unreachable or loading store counts as not yet."""
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


def test_no_event_is_missed_while_subscribing(engine: Engine) -> None:
    """However appends and subscriptions interleave, a follower gets every event once, immediately."""
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


def test_waiters_share_one_subscription(engine: Engine) -> None:
    """Two hundred followers of twenty executions use one connection and all see the end."""
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


def test_leaving_unsubscribes(engine: Engine) -> None:
    """The channel is unsubscribed with its last waiter, also when a stream is closed early."""
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


def test_join_and_leave_on_one_channel_loses_nothing(engine: Engine) -> None:
    """A waiter that joins as the last one leaves is subscribed, whatever the order."""
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


def test_joining_a_channel_wakes_at_once(engine: Engine) -> None:
    """A new subscriber is told to read immediately."""
    with engine.watcher.watch("c") as first:
        assert first.wait(5.0)
        with engine.watcher.watch("c") as second:
            assert second.wait(1.0)
            assert not second.wait(0.05)
            assert not first.wait(0.0)


def test_watch_can_be_reused(engine: Engine) -> None:
    """Leaving twice is harmless, and the same watch may wait again."""
    watch = engine.watcher.watch("w:log:x")
    for _ in range(2):
        with watch:
            until(lambda: subscribers(engine.client, "w:log:x") == 1)
            assert watch.wait(5.0)
        engine.watcher.drop(watch)
        assert len(engine.watcher) == 0


def test_subscription_resumes_after_an_outage(valkey: EmbeddedStore, engine: Engine) -> None:
    """When the store dies and returns, waiters are woken and get later events without polling."""
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


def test_follower_survives_an_outage(valkey: EmbeddedStore, engine: Engine) -> None:
    """A stream open during a store outage continues with the next event."""
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


def test_failing_listener_is_restarted(client: redis.Redis) -> None:
    """An unforeseen error does not cut off all later waiters."""

    class FailingRedis(redis.Redis):
        failures_left = 2

        def pubsub(self, **options: object) -> redis.client.PubSub:
            if self.failures_left:
                self.failures_left -= 1
                raise ValueError("a fault nobody foresaw")
            return super().pubsub(**options)

    watcher = Watcher(FailingRedis(connection_pool=client.connection_pool))
    with watcher.watch("c") as watch:
        assert watch.wait(5.0)
        client.publish("c", "")
        assert watch.wait(5.0)


class Line:
    """A network between a client and the store. Whatever is connected when it falls silent stays so."""

    def __init__(self, store: EmbeddedStore) -> None:
        self._store = redis.connection.parse_url(store.url)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._silent = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        self._silent.set()
        self._silent = threading.Event()

    def close(self) -> None:
        self._silent.set()
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, silent = self._server.accept()[0], self._silent
                far = socket.create_connection((self._store["host"], self._store["port"]))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other, silent), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError), one:
            while data := one.recv(65_536):
                if not silent.is_set():
                    other.sendall(data)
            other.shutdown(socket.SHUT_RDWR)


def test_a_silent_subscription_is_replaced(
    valkey: EmbeddedStore, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is lost without a word: waiters are woken soon, not when the network gives up."""
    monkeypatch.setattr(watch_module, "_LOOK_SECONDS", 0.05)
    line = Line(valkey)
    with contextlib.closing(line):
        options = redis.connection.parse_url(valkey.url)
        options |= {"host": "127.0.0.1", "port": line.port, "health_check_interval": 1}
        with Watcher(redis.Redis(**options)).watch("c") as watch:
            assert watch.wait(5.0)
            assert not watch.wait(2.5), "pings are answered"
            line.fall_silent()
            client.publish("c", "lost")
            assert watch.wait(10.0)
            client.publish("c", "")
            assert watch.wait(5.0)


@pytest.mark.parametrize("after", [3, 4, 10**15])
def test_following_past_the_end_ends(engine: Engine, after: int) -> None:
    """A follower that has already seen the terminal event does not wait."""
    id = engine.running().id
    engine.seal(id, 1)
    began = time.monotonic()
    assert collect(engine.executions.follow(id, after)) == []
    assert time.monotonic() - began < 2


def test_following_an_unknown_execution_ends(engine: Engine) -> None:
    """A missing or removed execution has no stream."""
    assert collect(engine.executions.follow(new_id())) == []


def test_end_between_two_reads_is_not_lost(engine: Engine) -> None:
    """The terminal event is seen even when it falls between reading the log and reading the state."""
    id = engine.running().id
    store = engine.store

    class EndsBetweenReads(type(store)):  # type: ignore[misc]
        def state(self, id: str) -> object:
            engine.seal(id, 1)
            return super().state(id)

    store.__class__ = EndsBetweenReads
    assert collect(engine.executions.follow(id, 2)) == [3]


def test_long_log_is_read_without_pauses(engine: Engine) -> None:
    """Reading thousands of old events does not wait for heartbeats in between."""
    id = engine.running().id
    for number in range(3):
        engine.store.append(id, 1, number, [("output.chunk", b"{}")] * BATCH)
    engine.seal(id, 1)
    began = time.monotonic()
    batches = list(engine.executions.follow(id))
    assert [len(batch) for batch in batches] == [BATCH, BATCH, BATCH, 3]
    assert time.monotonic() - began < 4


def test_wait_reports_whether_the_end_came(engine: Engine) -> None:
    """wait returns true as soon as the execution has ended, and false on time-out."""
    id = engine.running().id
    assert not engine.executions.wait(id, 0.05)
    assert not engine.executions.wait(id, 0.0)
    with in_thread(lambda: (time.sleep(0.1), engine.seal(id, 1))):
        assert engine.executions.wait(id, 10.0)
    assert engine.executions.wait(id, 0.0)
