"""The open streams of one process: each writes out its connection's mailbox as long as the connection lives.

One thread renews the leases of all of them. When the process is told to leave, every stream ends at its
next message boundary and its connection waits for the consumer to come back elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import redis
import structlog

from worker.errors import NotFound, Unavailable
from worker.executions.assignment import Assignment
from worker.executions.connections import Connections
from worker.executions.keys import Keys
from worker.executions.messages import Messages, frame
from worker.executions.remote_store import Connection, Kind, RemoteStore
from worker.executions.runners import Runners
from worker.executions.watch import Watch, Watcher
from worker.store import unavailable

log = structlog.get_logger()

# Told what to call when the client hangs up; returns what ends the watch.
Hang = Callable[[Callable[[], None]], Callable[[], None]]

MOST_STREAMS = 2_000
HEARTBEAT = 5.0
_BATCH = 32
_LOOK = 0.25


class Stream:
    """One open stream."""

    def __init__(self, connection: Connection, watch: Watch) -> None:
        self.connection = connection
        self.watch = watch
        self.ended = False
        # Messages at the mailbox's beginning that have gone out and are still in it.
        self.written = 0

    def end(self) -> None:
        """The connection is gone, or its client is."""
        self.ended = True
        self.watch.wake()


class Streams:
    """Opens streams and keeps their connections."""

    def __init__(
        self,
        store: RemoteStore,
        connections: Connections,
        assignment: Assignment,
        runners: Runners,
        messages: Messages,
        watcher: Watcher,
        *,
        keys: Keys,
        lease: float,
    ) -> None:
        self._store = store
        self._connections = connections
        self._assignment = assignment
        self._runners = runners
        self._messages = messages
        self._watcher = watcher
        self._keys = keys
        self._lease = lease
        self._open: dict[str, Stream] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._open)

    def agent(self, agent: str, consumer: str, hang: Hang) -> Iterator[bytes]:
        """The stream of an agent."""
        return self._run("agent", agent, consumer, hang, lambda c: self._assignment.drain(agent))

    def runner(self, runner: str, consumer: str, tools: Sequence[str], hang: Hang) -> Iterator[bytes]:
        """The stream of a runner that offers these tools."""
        offered = False

        def begin(connection: Connection) -> None:
            nonlocal offered
            if not offered:
                self._runners.update(connection, tools)
            offered = True

        return self._run("runner", runner, consumer, hang, begin)

    def refuse_when_full(self) -> None:
        """Above its limit a process refuses, so that another one is tried."""
        if self._watcher.closed or len(self._open) >= MOST_STREAMS:
            raise Unavailable("this process takes no more streams", retry_after=2)

    def _run(
        self,
        kind: Kind,
        name: str,
        consumer: str,
        hang: Hang,
        begin: Callable[[Connection], None],
    ) -> Iterator[bytes]:
        yield b"retry: 5000\n\n"
        try:
            yield from self._live(kind, name, consumer, hang, begin)
        except redis.RedisError as error:
            if unavailable(error) is None:
                raise
            log.warning("stream.store_away", kind=kind, name=name)  # its client comes back

    def _live(
        self,
        kind: Kind,
        name: str,
        consumer: str,
        hang: Hang,
        begin: Callable[[Connection], None],
    ) -> Iterator[bytes]:
        connection = self._connections.open(kind, name, consumer)
        log.info("stream.opened", kind=kind, name=name, consumer=consumer)
        parted = False
        try:
            with self._watcher.watch(self._keys.mail(connection.epoch)) as watch:
                stream = Stream(connection, watch)
                self._add(stream)
                unwatch = hang(stream.end)
                try:
                    begin(connection)
                    yield from self._write(stream, lambda: begin(connection))
                finally:
                    unwatch()
                leaving = self._watcher.closed and not stream.ended
                parted = leaving and self._connections.part(connection, stream.written)
        finally:
            with self._lock:
                self._open.pop(connection.epoch, None)
            if not parted:
                self._close(connection)
            log.info("stream.closed", kind=kind, name=name, consumer=consumer, parted=parted)

    def _write(self, stream: Stream, more: Callable[[], None]) -> Iterator[bytes]:
        """Until the connection ends or the process leaves. What went out is dropped a batch at a time."""
        beat, news = time.monotonic() + HEARTBEAT, True
        while not (stream.ended or self._watcher.closed):
            count, frames = self._look(stream) if news else (0, b"")
            if frames:
                yield frames
                beat = time.monotonic() + HEARTBEAT
            stream.written += count
            if stream.written >= _BATCH:
                self._store.drop_mail(stream.connection.epoch, stream.written)
                stream.written = 0
                more()  # what had no room in the mailbox has some now
            news = count == _BATCH or (not stream.ended and stream.watch.wait(beat - time.monotonic()))
            if not news and not stream.ended:
                yield b":heartbeat\n\n"
                beat = time.monotonic() + HEARTBEAT

    def _look(self, stream: Stream) -> tuple[int, bytes]:
        """How many messages are new, and their frames. What is away for a while is waited for."""
        epoch = stream.connection.epoch
        while True:
            try:
                items = self._store.read_mail(epoch, stream.written, _BATCH)
                if not items and not self._store.alive(epoch):
                    stream.end()
                return len(items), b"".join(map(self._frame, items))
            except redis.RedisError as error:
                if unavailable(error) is None or stream.ended or self._watcher.closed:
                    raise
            except Unavailable:  # its files
                if stream.ended or self._watcher.closed:
                    return 0, b""
            time.sleep(_LOOK)

    def _frame(self, item: bytes) -> bytes:
        """A message as it is written. One whose file is gone for good must not end the others' stream."""
        try:
            message = self._messages.read(item)
        except NotFound:
            log.error("message.unreadable", execution_id=item.split(b" ")[1].decode())
            return b""
        return b"" if message is None else frame(message)

    def _close(self, connection: Connection) -> None:
        try:
            self._connections.close(connection)
        except redis.RedisError:
            log.warning("stream.store_away")  # its lease lapses, and the clock does the rest

    def _add(self, stream: Stream) -> None:
        with self._lock:
            self._open[stream.connection.epoch] = stream
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="streams", daemon=True)
                self._thread.start()

    def _keep(self) -> None:
        """Renews leases, and wakes streams whose connection has ended."""
        every, due = min(self._lease / 3, 5.0), 0.0
        while True:
            time.sleep(_LOOK)
            if time.monotonic() < due or not self._open:
                continue
            try:
                for epoch in self._connections.keep(list(self._open)):
                    gone = self._open.get(epoch)
                    if gone is not None:
                        gone.end()
            except redis.RedisError:
                log.warning("streams.store_away")
            due = time.monotonic() + every
