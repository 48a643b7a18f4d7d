"""Waiting for news of executions: one subscription per process, thousands of waiters, no polling.

A message says only that a log has grown; the waiter reads the log itself. A subscription that is
confirmed, or restored after a lost connection, counts as news too, so nothing falls between.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from types import TracebackType

import redis
import structlog

log = structlog.get_logger()

_RECONNECT_SECONDS = 0.5


class Watch:
    """One waiter's view of one channel. Use as a context manager; `wait` says whether there is news."""

    def __init__(self, watcher: Watcher, channel: str) -> None:
        self._watcher = watcher
        self.channel = channel
        self._news = threading.Event()

    def __enter__(self) -> Watch:
        self._watcher.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.drop(self)

    def wait(self, seconds: float) -> bool:
        news = self._news.wait(max(0.0, seconds))
        self._news.clear()
        return news

    def wake(self) -> None:
        self._news.set()

    @property
    def closed(self) -> bool:
        """Whether the process is about to end: streams without an end of their own give way."""
        return self._watcher.closed


class Watcher:
    """The process's one subscription. It starts with the first waiter."""

    def __init__(self, client: redis.Redis) -> None:
        self.closed = False
        _WATCHERS.add(self)
        self._client = client
        self._waiting: dict[str, set[Watch]] = defaultdict(set)
        self._lock = threading.Lock()
        self._pubsub: redis.client.PubSub | None = None
        self._thread: threading.Thread | None = None

    def watch(self, channel: str) -> Watch:
        return Watch(self, channel)

    def __len__(self) -> int:
        return sum(len(watches) for watches in self._waiting.values())

    def close(self) -> None:
        """Wakes everybody for the last time."""
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
                self._tell("subscribe", watch.channel)
        if not first:
            watch.wake()

    def drop(self, watch: Watch) -> None:
        with self._lock:
            watches = self._waiting[watch.channel]
            watches.discard(watch)
            if not watches:
                del self._waiting[watch.channel]
                self._tell("unsubscribe", watch.channel)

    def _tell(self, what: str, channel: str) -> None:
        if self._pubsub is None:
            return
        try:
            getattr(self._pubsub, what)(channel)
        except redis.RedisError:
            # the listener notices, connects again and subscribes to all that is waited for
            self._pubsub = None

    def _listen(self) -> None:
        while True:
            try:
                self._subscribe()
            except redis.RedisError:
                log.warning("watch.disconnected")
            except Exception:  # nobody would start this thread again
                log.exception("watch.failed")
            time.sleep(_RECONNECT_SECONDS)

    def _subscribe(self) -> None:
        """One life of the subscription."""
        pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        try:
            with self._lock:
                channels = list(self._waiting)
                pubsub.subscribe(*channels or ["-"])
                self._pubsub = pubsub
            self._read(pubsub)
        finally:
            with self._lock:
                self._pubsub = None
            pubsub.close()

    def _read(self, pubsub: redis.client.PubSub) -> None:
        while self._pubsub is pubsub:
            message = pubsub.get_message(timeout=5.0)
            if message is not None and message["type"] in ("message", "subscribe"):
                for watch in list(self._waiting.get(message["channel"].decode(), ())):
                    watch.wake()


_WATCHERS: weakref.WeakSet[Watcher] = weakref.WeakSet()


def close_all() -> None:
    """For whoever ends a process: no stream shall hold it up."""
    for watcher in list(_WATCHERS):
        watcher.close()
