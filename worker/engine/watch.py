"""Waits for new events: one subscription per process, thousands of waiters, no polling.

A message says only that a log has grown; the waiter reads the log itself. Confirming or restoring a
subscription also counts as news, so that no event is missed in between.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter, defaultdict
from types import TracebackType
from typing import Any, Protocol, Self

import redis

from worker.core.greenlets import let_greenlets_run
from worker.store.outage import note

_RECONNECT_SECONDS = 0.5
# How often a quiet subscription checks its connection.
_LOOK_SECONDS = 1.0
# A connection that has not answered this many pings, one for each look, is lost. The network may notice that
# only after a quarter of an hour.
_MOST_UNANSWERED = 5


class Source(Protocol):
    """What a watch listens to."""

    @property
    def closed(self) -> bool: ...

    def add(self, watch: Watch) -> None: ...

    def drop(self, watch: Watch) -> None: ...


class Watch:
    """One waiter's subscription to a channel. Use as a context manager; `wait` says if there is news."""

    def __init__(self, source: Source, channel: str) -> None:
        self._source = source
        self.channel = channel
        self._news = threading.Event()

    def __enter__(self) -> Self:
        self._source.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.drop(self)

    def wait(self, seconds: float) -> bool:
        news = self._news.wait(max(0.0, seconds))
        self._news.clear()
        return news

    def wake(self) -> None:
        self._news.set()

    def hear(self, message: bytes) -> None:
        """Called with each message on the channel."""
        self.wake()

    def begin(self) -> None:
        """Called when the subscription is confirmed, and again whenever it is restored."""
        self.wake()

    @property
    def closed(self) -> bool:
        """Whether the process is about to exit: streams without an end of their own then close."""
        return self._source.closed


class Watcher:
    """The process's only subscription. Starts with the first waiter."""

    def __init__(self, client: redis.Redis) -> None:
        self.closed = False
        _WATCHERS.add(self)
        self._client = client
        self._waiting: dict[str, set[Watch]] = defaultdict(set)
        # Subscriptions that the store has not confirmed yet.
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pubsub: redis.client.PubSub | None = None
        self._thread: threading.Thread | None = None

    def watch(self, channel: str) -> Watch:
        return Watch(self, channel)

    def __len__(self) -> int:
        return sum(len(watches) for watches in self._waiting.values())

    def close(self) -> None:
        """Wakes all waiters for the last time."""
        self.closed = True
        for watches in list(self._waiting.values()):
            for watch in list(watches):
                watch.wake()

    def add(self, watch: Watch) -> None:
        with self._lock:
            first = watch.channel not in self._waiting
            self._waiting[watch.channel].add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="watcher", daemon=True)
                self._thread.start()
            elif first:
                self._send("subscribe", watch.channel)
                self._asked[watch.channel] += 1
            confirmed = not self._asked[watch.channel]
        if not first:
            watch.begin() if confirmed else watch.wake()

    def drop(self, watch: Watch) -> None:
        with self._lock:
            watches = self._waiting[watch.channel]
            watches.discard(watch)
            if not watches:
                del self._waiting[watch.channel]
                self._send("unsubscribe", watch.channel)

    def _send(self, command: str, channel: str) -> None:
        if self._pubsub is None:
            return
        try:
            getattr(self._pubsub, command)(channel)
        except redis.RedisError as error:
            note(error, "watch.send")
            # the listener notices, reconnects and subscribes to every channel that has waiters
            self._pubsub = None

    def _listen(self) -> None:
        while True:
            try:
                self._subscribe()
            except Exception as error:  # nothing would restart this thread
                note(error, "watch")
            time.sleep(_RECONNECT_SECONDS)

    def _subscribe(self) -> None:
        """Runs the subscription until it ends or fails."""
        pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        try:
            with self._lock:
                channels = list(self._waiting)
                pubsub.subscribe(*channels or ["-"])
                self._asked = Counter(channels)
                self._pubsub = pubsub
            self._read(pubsub)
        finally:
            with self._lock:
                self._pubsub = None
            pubsub.close()

    def _read(self, pubsub: redis.client.PubSub) -> None:
        while self._pubsub is pubsub:
            message = _next_message(pubsub)
            kind, channel = (message[0], message[1].decode()) if message else (b"", "")
            if kind == b"message":
                watches = list(self._waiting.get(channel, ()))
                for watch in watches:
                    watch.hear(message[2])
                if watches:
                    # Who waited for it goes on before the next one is read.
                    let_greenlets_run()
            elif kind:
                pubsub.handle_message(message)  # type: ignore[no-untyped-call]
                if kind == b"subscribe":
                    self._confirm(channel)

    def _confirm(self, channel: str) -> None:
        with self._lock:
            self._asked[channel] -= 1
            confirmed = self._asked[channel] <= 0
            if confirmed:
                del self._asked[channel]
            watches = list(self._waiting.get(channel, ()))
        for watch in watches:
            watch.begin() if confirmed else watch.wake()


def _next_message(pubsub: Any) -> list[Any]:
    """What the store sent; empty if nothing came in time, or only the answer to a ping.

    The library's own way polls the connection twice for each message, which costs more than reading it. The
    connection checks between messages whether the store has moved.
    """
    if pubsub.health_check_response_counter >= _MOST_UNANSWERED:
        raise redis.TimeoutError("the store does not answer the subscription")
    pubsub.check_health()
    options = {"timeout": _LOOK_SECONDS, "disconnect_on_error": False, "push_request": True}
    try:
        reply = pubsub.connection.read_response(**options)
    except redis.TimeoutError:
        return []
    if pubsub.is_health_check_response(reply):
        pubsub.health_check_response_counter -= 1
        return []
    return list(reply)


_WATCHERS: weakref.WeakSet[Watcher] = weakref.WeakSet()


def close_all() -> None:
    """Closes all watchers before the process exits, so that no stream delays it."""
    for watcher in list(_WATCHERS):
        watcher.close()
