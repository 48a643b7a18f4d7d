"""The open streams of one process: each sends its connection's mailbox for as long as it lives.

One thread renews all their leases. On shutdown, every stream ends at its next message boundary and its
connection waits for the consumer to reconnect elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import redis
import structlog

from worker.core.errors import NotFound, Unavailable
from worker.engine.watch import Watcher
from worker.remote.assignment import Assignment
from worker.remote.connections import Connections
from worker.remote.mail import MailReference, read_item
from worker.remote.mail_watch import MailWatch
from worker.remote.messages import Messages, frame
from worker.remote.runners import Runners
from worker.remote.store import Connection, Kind, RemoteStore
from worker.store.data_model import Keys
from worker.store.outage import is_outage, note

log = structlog.get_logger()

# Registers a callback for when the client hangs up; returns a function that unregisters it.
Hang = Callable[[Callable[[], None]], Callable[[], None]]

MOST_STREAMS = 2_000
HEARTBEAT = 5.0
_BATCH = 32
_LOOK = 0.25


class RemoteStream:
    """One open stream."""

    def __init__(self, connection: Connection, watch: MailWatch) -> None:
        self.connection = connection
        self.watch = watch
        self.ended = False

    def end(self) -> None:
        """Ends the stream because the connection or its client is gone."""
        self.ended = True
        self.watch.wake()


class RemoteStreams:
    """Opens streams and renews their connections."""

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
        self._open: dict[str, RemoteStream] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._open)

    def agent(self, agent: str, consumer: str, hang: Hang) -> Iterator[bytes]:
        """Streams messages to an agent."""
        return self._run("agent", agent, consumer, hang, lambda c: self._assignment.drain(agent))

    def runner(self, runner: str, consumer: str, tools: Sequence[str], hang: Hang) -> Iterator[bytes]:
        """Streams messages to a runner that offers these tools."""
        offered = False

        def begin(connection: Connection) -> None:
            nonlocal offered
            if not offered:
                self._runners.update(connection, tools)
            offered = True

        return self._run("runner", runner, consumer, hang, begin)

    def refuse_when_full(self) -> None:
        """Refuses new streams above this process's limit, so that the client tries another one."""
        if self._watcher.closed or len(self._open) >= MOST_STREAMS:
            raise Unavailable("this process has no room for more streams", retry_after=2)

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
            if not is_outage(error):
                raise
            note(error, "stream", kind=kind, name=name)  # the client reconnects

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
            with MailWatch(self._watcher, self._keys.mail(connection.epoch)) as watch:
                stream = RemoteStream(connection, watch)
                self._add(stream)
                unwatch = hang(stream.end)
                try:
                    begin(connection)
                    yield from self._write(stream, lambda: begin(connection))
                finally:
                    unwatch()
                leaving = self._watcher.closed and not stream.ended
                parted = leaving and self._connections.hand_over(connection, watch.kept)
        finally:
            with self._lock:
                self._open.pop(connection.epoch, None)
            if not parted:
                self._close(connection)
            log.info("stream.closed", kind=kind, name=name, consumer=consumer, parted=parted)

    def _write(self, stream: RemoteStream, more: Callable[[], None]) -> Iterator[bytes]:
        """Sends until the connection ends or the process shuts down. Sent messages are dropped in batches."""
        beat, news = time.monotonic() + HEARTBEAT, True
        while not (stream.ended or self._watcher.closed):
            count, frames = self._look(stream) if news else (0, b"")
            if frames:
                yield frames
                beat = time.monotonic() + HEARTBEAT
            stream.watch.sent += count
            if stream.watch.kept >= _BATCH:
                kept = stream.watch.kept
                self._store.drop_mail(stream.connection.epoch, kept, stream.watch.drop())
                more()  # work that did not fit into the mailbox fits now
            news = count == _BATCH or (not stream.ended and stream.watch.wait(beat - time.monotonic()))
            if not news and not stream.ended:
                yield b":heartbeat\n\n"
                beat = time.monotonic() + HEARTBEAT

    def _look(self, stream: RemoteStream) -> tuple[int, bytes]:
        """Returns the number of new messages and their frames. Waits out short outages."""
        epoch = stream.connection.epoch
        while True:
            try:
                items = stream.watch.take() or self._store.read_mail(epoch, stream.watch.kept, _BATCH)
                if not items and not self._store.alive(epoch):
                    stream.end()
                return len(items), b"".join(map(self._frame, items))
            except redis.RedisError as error:
                if not is_outage(error) or stream.ended or self._watcher.closed:
                    raise
            except Unavailable:  # of the file storage
                if stream.ended or self._watcher.closed:
                    return 0, b""
            time.sleep(_LOOK)

    def _frame(self, item: bytes) -> bytes:
        """Encodes a message. One whose file is gone for good must not end the stream for the others."""
        try:
            message = self._messages.read(item)
        except NotFound:
            mail = read_item(item)
            id = mail.execution_id if isinstance(mail, MailReference) else ""
            log.error("message.decode_failed", execution_id=id)
            return b""
        return b"" if message is None else frame(message)

    def _close(self, connection: Connection) -> None:
        try:
            self._connections.close(connection)
        except redis.RedisError as error:
            note(error, "stream.close")  # the lease lapses and the clock cleans up

    def _add(self, stream: RemoteStream) -> None:
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
                for epoch in self._connections.renew(list(self._open)):
                    gone = self._open.get(epoch)
                    if gone is not None:
                        gone.end()
            except redis.RedisError as error:
                note(error, "streams")
            due = time.monotonic() + every
