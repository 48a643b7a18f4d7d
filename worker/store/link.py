"""One connection for the commands of all callers in a process.

A caller that finds the link free leads: it sends whatever is queued in one write, reads all the replies,
hands each to its caller, and passes the lead on. What is asked meanwhile goes with the next batch. So a lone
command waits for nothing, and under load many share a system call, a wake-up and the store's sync of its log.
Only the leader touches the socket. When more wait than a batch takes, what runs no script goes first: a poll
would else wait for every purchase that began before it.

A command that is sent ahead leaves its caller to other work: its reply stands before that of the link's next
command, and is read with it.

A command is sent once. When the connection is lost, every caller in the batch is told, because its command
may have run. When the store cannot be reached or does not answer, those who wait behind are told with them.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import hiredis
import redis
from redis._parsers import BaseParser

from worker.core.greenlets import let_greenlets_run
from worker.core.sockets import is_quiet

# Others use the store too: a longer batch would keep them waiting.
_MOST = 64
# How many short calls go before the others of a batch, and how many bytes the commands of one may have.
_MOST_SHORT = 16
_SHORT_BYTES = 1_024
_READ_SIZE = 65_536
_INCOMPLETE = object()
_STRAY = "the store sent a reply that nobody asked for"


class Begun(NamedTuple):
    """A command that was sent: what reads its reply, and whether that is known to be an error or lost."""

    reply: Callable[[], Any]
    refused: Callable[[], bool]


class _Call:
    """One caller's commands, and what came of them."""

    __slots__ = ("ahead", "asleep", "data", "error", "expected", "replies")

    def __init__(self, data: bytes, expected: int, *, ahead: bool = False) -> None:
        self.data = data
        self.expected = expected
        self.ahead = ahead
        self.replies: list[Any] = []
        self.error: BaseException | None = None
        # A bare lock wakes a greenlet with a fraction of an event's work.
        self.asleep: Any = None

    @property
    def short(self) -> bool:
        """Whether it is as quick for the store as a look at a record: no script is in it."""
        return not self.ahead and 0 < len(self.data) <= _SHORT_BYTES and b"EVAL" not in self.data

    @property
    def answered(self) -> bool:
        return self.error is not None or len(self.replies) == self.expected

    @property
    def refused(self) -> bool:
        return self.error is not None or any(isinstance(each, redis.RedisError) for each in self.replies)

    def sleep(self) -> None:
        self.asleep = threading.Lock()
        self.asleep.acquire()

    def wake(self) -> None:
        if self.asleep is None:
            return
        try:
            self.asleep.release()
        except RuntimeError:
            return  # it is awake

    def lose(self, error: redis.RedisError) -> None:
        # One exception raised by many callers would collect all their tracebacks.
        self.error = type(error)(*error.args)
        self.error.__cause__ = error
        self.wake()


class Link:
    """Batches commands on a connection of its own; `make` builds one that is not yet open."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._begin()
        _LINKS.add(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Call] = deque()
        self._short: deque[_Call] = deque()
        self._leader: _Call | None = None
        # What was sent and is not answered: the leader's batch, and before it what was sent ahead.
        self._out: deque[_Call] = deque()
        self._connection: Any = None
        self._socket: Any = None
        self._reader: Any = None

    def ask(self, data: bytes, expected: int = 1) -> list[Any]:
        """Sends packed commands; returns as many replies, errors among them."""
        call = _Call(data, expected)
        self._send(call)
        if call.error is not None:
            raise call.error
        return call.replies

    def begin(self, data: bytes) -> Begun:
        """Sends a packed command at once, and does not wait for its reply."""
        call = _Call(data, 1, ahead=True)
        self._send(call)
        if call.error is not None:
            raise call.error
        return Begun(lambda: self._reply_to(call), lambda: call.refused)

    def _reply_to(self, call: _Call) -> Any:
        if not call.answered:
            try:
                self.ask(b"", 0)
            except redis.RedisError:
                # Another thread may have read it meanwhile.
                if not call.answered:
                    raise
        if call.error is not None:
            raise call.error
        return call.replies[0]

    def hear(self) -> None:
        """Reads what has come of what was sent ahead, without waiting."""
        with self._lock:
            if self._leader is not None or not self._out:
                return
            self._leader = _Call(b"", 0)
        try:
            self._read_what_came()
        except (redis.RedisError, OSError) as error:
            self._break(error)
        except BaseException as error:
            self._break(error)
            raise
        finally:
            self._pass_on()

    def _read_what_came(self) -> None:
        received = _received(self._socket)
        if received is None:
            return
        if not received:
            raise redis.ConnectionError("the store closed the connection")
        self._reader.feed(received)
        while self._out and (reply := self._reader.gets()) is not _INCOMPLETE:
            if isinstance(reply, redis.RedisError):
                self._connection.notice(reply)
            self._out[0].replies.append(reply)
            if self._out[0].answered:
                self._out.popleft()
        if not self._out and self._reader.has_data():
            raise redis.InvalidResponse(_STRAY)

    def _send(self, call: _Call) -> None:
        try:
            self._join(call)
            if call.asleep is not None:
                call.asleep.acquire()
            if self._leader is call:
                self._lead()
        except BaseException as error:  # a signal or the caller's own time-out may come at any point
            self._leave(call, error)
            raise

    def close(self) -> None:
        """Closes the connection, if no batch is on its way; the next command opens another."""
        with self._lock:
            if self._leader is not None or self._out:
                return
            self._leader = _Call(b"", 0)
        self._drop()
        self._pass_on()

    def _join(self, call: _Call) -> None:
        with self._lock:
            (self._short if call.short else self._queue).append(call)
            if self._leader is None:
                self._leader = call
            else:
                call.sleep()

    def _leave(self, call: _Call, error: BaseException) -> None:
        """Each step may have been made before, in full or in part."""
        with self._lock:
            for queue in (self._short, self._queue):
                if call in queue:
                    queue.remove(call)
            leader = self._leader
        if leader is call:
            self._break(error)
            self._pass_on()
        elif leader is not None:
            leader.wake()

    def _lead(self) -> None:
        try:
            # Those that are ready to ask share the batch.
            let_greenlets_run()
            with self._lock:
                awaited = len(self._out)
                self._fill(awaited + _MOST)
            if not awaited:
                self._connect()
            self._exchange(awaited)
        except (redis.RedisError, OSError) as error:
            self._break(error)
        self._pass_on()

    def _fill(self, most: int) -> None:
        """Short calls go first, and have what room the others leave; whoever leads is first in its queue."""
        self._take(self._short, min(most, len(self._out) + _MOST_SHORT))
        self._take(self._queue, most)
        self._take(self._short, most)

    def _take(self, queue: deque[_Call], most: int) -> None:
        """Moves the first of a queue to the batch; drops those whose callers were told of a loss."""
        while queue and len(self._out) < most:
            if queue[0].error is None:
                self._out.append(queue[0])
            queue.popleft()

    def _break(self, error: BaseException) -> None:
        """Tells the callers whose commands are lost. The link opens again with the next batch."""
        lost = _lost(error)
        if self._connection is not None:
            self._connection.notice(lost)
        if self._socket is None or isinstance(lost, redis.TimeoutError):
            with self._lock:
                self._fill(len(self._out) + len(self._short) + len(self._queue))
        for call in self._out:
            call.lose(lost)
        self._out.clear()
        self._drop()

    def _pass_on(self) -> None:
        with self._lock:
            for queue in (self._short, self._queue):
                while queue and queue[0].error is not None:
                    queue.popleft()
            # A leader returns when it has read the replies of all others.
            queue = self._queue or self._short
            self._leader = queue[0] if queue else None
            if self._leader is not None:
                self._leader.wake()

    def _exchange(self, awaited: int) -> None:
        """Removes each call that has its replies from the batch, of which so many were sent before."""
        fresh = list(self._out)[awaited:] if awaited else self._out
        _send(self._socket, b"".join([call.data for call in fresh]))
        if len(fresh) == 1 and fresh[0].ahead:
            return
        while self._out:
            call = self._out[0]
            while len(call.replies) < call.expected:
                call.replies.append(self._read())
            if call is not self._leader:
                call.wake()
            self._out.popleft()
        if self._reader.has_data():
            raise redis.InvalidResponse(_STRAY)
        self._connection.next_health_check = time.monotonic() + self._connection.health_check_interval

    def _read(self) -> Any:
        reply = self._reader.gets()
        while reply is _INCOMPLETE:
            received = self._socket.recv(_READ_SIZE)
            if not received:
                raise redis.ConnectionError("the store closed the connection")
            self._reader.feed(received)
            reply = self._reader.gets()
        if isinstance(reply, redis.RedisError):
            self._connection.notice(reply)
        return reply

    def _connect(self) -> None:
        """Replaces a connection that the store has closed or moved away from, before a batch is sent."""
        if self._connection is None:
            self._connection = self._make()
        connection = self._connection
        socket, self._socket = self._socket, None
        if socket is not None and not is_quiet(socket):
            connection.disconnect()
        connection.connect()
        connection.check_health()
        self._socket = connection._sock
        if self._socket is not socket:
            self._reader = hiredis.Reader(
                protocolError=redis.InvalidResponse,
                replyError=BaseParser.parse_error,
                notEnoughData=_INCOMPLETE,
            )

    def _drop(self) -> None:
        self._socket = None
        if self._connection is not None:
            self._connection.disconnect()


def _send(socket: Any, data: bytes) -> None:
    sent = socket.send(data) if data else 0
    if sent < len(data):
        socket.sendall(data[sent:])


def _received(link: Any) -> bytes | None:
    """What has come on a connection; None if nothing has, b'' at its end."""
    patience = link.gettimeout()
    link.settimeout(0)
    try:
        received: bytes = link.recv(_READ_SIZE)
    except (BlockingIOError, ssl.SSLWantReadError):
        return None
    finally:
        link.settimeout(patience)
    return received


def _lost(error: BaseException) -> redis.RedisError:
    """As the client's library names it."""
    if isinstance(error, redis.RedisError):
        return error
    if isinstance(error, TimeoutError):
        return redis.TimeoutError("the store did not answer in time")
    return redis.ConnectionError("the connection to the store was lost")


_LINKS: weakref.WeakSet[Link] = weakref.WeakSet()


def _after_fork() -> None:
    """A forked child has no part in its parent's batches: it opens a connection of its own."""
    for link in list(_LINKS):
        link._begin()


os.register_at_fork(after_in_child=_after_fork)
