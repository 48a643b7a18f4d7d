"""Store connections: how they find the primary, and when they are discarded.

A server that has become a replica, is loading its data or has lost its replicas keeps answering, so a pool
that kept its connections would stay there forever. The connection that notices such a server notifies the
others in the process: all reconnect, which asks DNS, the load balancer or the Sentinels again.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from worker.store.certificate_pin import PinnedTls

SENTINEL_TIMEOUT = 1.0
# Errors of a server that is not the right one, or not right now. Old servers report them in the middle
# of a script's error; for some the client has its own class and keeps only the rest of the text.
_ELSEWHERE = {"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"}
_ELSEWHERE_CLASSES = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.MasterDownError,
)
_REFUSING = {"OOM", "MISCONF", "BUSY"}


def refuses(error: BaseException) -> bool:
    """Whether the server says that it cannot serve now, which is not the command's fault."""
    return (
        _is_elsewhere(error)
        or isinstance(error, redis.exceptions.OutOfMemoryError)
        or _has_code(error, _REFUSING)
    )


def _is_elsewhere(error: BaseException) -> bool:
    return isinstance(error, _ELSEWHERE_CLASSES) or _has_code(error, _ELSEWHERE)


def _has_code(error: BaseException, codes: set[str]) -> bool:
    return not codes.isdisjoint(str(error).replace("-", " ").split())


class CurrentPrimary:
    """The server a process's connections belong to. Each move invalidates the connections before it."""

    def __init__(self) -> None:
        self.moves = 0

    def moved(self, since: int) -> None:
        """Reports a move, from a connection made after `since` moves; several may notice the same move."""
        if since == self.moves:
            self.moves += 1


class Sentinels:
    """The Sentinels that know the primary. Each is asked over its own connection, closed at once."""

    def __init__(
        self,
        places: tuple[tuple[str, int], ...],
        service: str,
        connection: Callable[[str, int], redis.Connection],
    ) -> None:
        self._places = places
        self._service = service
        self._connection = connection

    def primary(self) -> tuple[str, int]:
        """Returns the address from the first Sentinel that answers; it is asked first next time."""
        failed: redis.RedisError | None = None
        for place in self._places:
            try:
                found = self.ask(place)
            except redis.RedisError as error:
                failed = error
                continue
            if found is not None:
                self._places = (place, *(each for each in self._places if each != place))
                return found
        raise failed or redis.ConnectionError("no Sentinel knows a primary of this name")

    def ask(self, place: tuple[str, int]) -> tuple[str, int] | None:
        """Asks one Sentinel; None when it does not know the name."""
        connection = self._connection(*place)
        try:
            connection.connect()  # type: ignore[no-untyped-call]
            connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)  # type: ignore[no-untyped-call]
            found: Any = connection.read_response()
        finally:
            connection.disconnect()  # type: ignore[no-untyped-call]
        return (found[0].decode(), int(found[1])) if found else None


class _SentOnce:
    """Retries connecting, never sending. Mixed in before a connection class."""

    _connecting = Retry(ExponentialBackoff(cap=0.4, base=0.05), 3, (redis.exceptions.ConnectionError,))
    sentinels: Sentinels | None = None

    def __init__(self: Any, *, home: CurrentPrimary, **options: Any) -> None:
        self._home = home
        self._since = home.moves
        super().__init__(**options)

    def connect(self: Any) -> None:
        if self._outdated():
            self.disconnect()
        if self._sock is not None:
            return
        self._since = self._home.moves
        self._connecting.call_with_retry(
            # a ping here would call this method again when it fails
            lambda: self.connect_check_health(check_health=False, retry_socket_connect=False),
            lambda error: self.disconnect(error),
            is_retryable=lambda error: not isinstance(error, redis.exceptions.AuthenticationError),
        )

    def can_read(self: Any, timeout: float = 0) -> bool:
        """Detects a move of the store while a subscription waits; nothing else on that path does."""
        if self._outdated():
            raise redis.ConnectionError("the store has moved")
        return bool(super().can_read(timeout))  # type: ignore[misc]

    def read_response(self: Any, *args: Any, **options: Any) -> Any:
        listens = "timeout" in options  # only a subscription says how long it waits
        if listens and self._outdated():
            raise redis.ConnectionError("the store has moved")
        try:
            return super().read_response(*args, **options)  # type: ignore[misc]
        except redis.RedisError as error:
            if not listens or not isinstance(error, redis.TimeoutError):
                self.notice(error)
            raise

    def notice(self: Any, error: redis.RedisError) -> None:
        """Whether the error shows that the primary is, or may be, elsewhere."""
        silent = isinstance(error, redis.TimeoutError) and self.sentinels is not None
        if silent or _is_elsewhere(error):
            self._home.moved(self._since)

    def check_health(self: Any) -> None:
        """Replaces a dead connection before the command is sent."""
        if self.health_check_interval and time.monotonic() > self.next_health_check:
            try:
                self._send_ping()
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                self.disconnect()
                self.connect()

    def _outdated(self: Any) -> bool:
        return self._sock is not None and self._since != self._home.moves


class StoreConnection(_SentOnce, redis.Connection):
    """A connection to a server, or to the primary that the Sentinels name."""

    def __init__(self, *, sentinels: Sentinels | None = None, **options: Any) -> None:
        self.sentinels = sentinels
        super().__init__(**options)

    def _connect(self) -> Any:
        if self.sentinels is not None:
            self.host, self.port = self.sentinels.primary()
        return super()._connect()  # type: ignore[no-untyped-call]

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Checks the role: right after a failover a Sentinel may still name the old primary."""
        super().on_connect_check_health(check_health=check_health)
        if self.sentinels is None:
            return
        self.send_command("ROLE", check_health=False)  # type: ignore[no-untyped-call]
        role: Any = self.read_response()
        if role[0] != b"master":
            raise redis.ConnectionError("this server is not the primary")


class TlsConnection(StoreConnection):
    """Shares one TLS context among all connections of a client."""

    def __init__(self, *, tls: ssl.SSLContext | PinnedTls, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options)

    def _connect(self) -> Any:
        plain = super()._connect()
        try:
            return self._tls.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


class UnixConnection(_SentOnce, redis.UnixDomainSocketConnection):
    """A connection to a server over a Unix socket."""
