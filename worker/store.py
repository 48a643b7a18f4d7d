"""The one way to the store: how a client is made, and what its errors mean to a caller.

A command is sent once. When its answer is lost nobody knows whether it ran, and most of our
commands are scripts that move money or leases, so the client never sends one again by itself;
whoever can repeat safely does so knowingly. Connecting, and the ping that checks a connection
before it is used, change nothing and are tried several times.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from worker.errors import Unavailable
from worker.settings import BadSetting, BadStart, Settings

Role = Literal["web", "express", "queue", "clock", "cli"]

CONNECT_TIMEOUT = 2.0
READ_TIMEOUT = 5.0
POOL_TIMEOUT = 5.0
HEALTH_CHECK_EVERY = 30
REDIS_AT_LEAST = (6, 2)


@dataclass(frozen=True)
class Share:
    """How many connections one process of a role may hold."""

    pool: int
    waiting: int

    @property
    def total(self) -> int:
        return self.pool + self.waiting


def share(settings: Settings, role: Role) -> Share:
    """A work process has few threads, which can wait for each other; RQ waits and subscribes."""
    return {
        "web": Share(settings.store_connections, 1),
        "express": Share(2, 1),
        "queue": Share(2, 2),
        "clock": Share(2, 0),
        "cli": Share(2, 0),
    }[role]


class StoreUnavailable(Unavailable):
    """The store does not answer, or not with what we asked for."""

    code = "STORE_UNAVAILABLE"
    message = "the store cannot be used right now"
    advice = (
        "Send the identical request again after the time in Retry-After: what was recorded is not done twice."
    )


def connect(settings: Settings, *, role: Role) -> redis.Redis:
    """A client for commands that answer at once. Bytes in, bytes out; opens nothing until it is used."""
    return _client(settings, role, share(settings, role).pool, READ_TIMEOUT)


def connect_blocking(settings: Settings, *, role: Role, wait: float) -> redis.Redis:
    """A client for commands that wait at the store up to `wait` seconds, and for subscriptions."""
    return _client(settings, role, share(settings, role).waiting, wait + READ_TIMEOUT)


def unavailable(error: BaseException) -> StoreUnavailable | None:
    """What to tell a caller, or None when the error is a bug and not the store's state.

    Inside a script old servers report the cause in the middle of the text.
    """
    if isinstance(error, redis.exceptions.BusyLoadingError):
        return StoreUnavailable(retry_after=2)
    if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)):
        return StoreUnavailable(retry_after=5)
    if isinstance(error, (redis.exceptions.ReadOnlyError, redis.exceptions.OutOfMemoryError)):
        return StoreUnavailable(retry_after=10)
    if isinstance(error, redis.exceptions.ResponseError):
        words = str(error).replace("-", " ").split()
        if {"LOADING", "READONLY", "OOM", "MISCONF", "BUSY", "MASTERDOWN", "NOREPLICAS"} & set(words):
            return StoreUnavailable(retry_after=10)
    return None


def as_bytes(reply: object) -> bytes:
    """An answer of our clients, which decode nothing, whatever the library's types allow."""
    assert isinstance(reply, bytes)
    return reply


def as_mapping(reply: object) -> dict[str, bytes]:
    """A hash as our clients answer it."""
    pairs = cast(dict[Any, Any], reply).items()
    return {as_bytes(name).decode(): as_bytes(value) for name, value in pairs}


def as_texts(reply: object) -> list[str]:
    return [as_bytes(item).decode() for item in cast(list[Any], reply)]


class _SentOnce:
    """Tries to connect several times, never to send. Sits before a connection class."""

    _connecting = Retry(ExponentialBackoff(cap=0.4, base=0.05), 3, (redis.exceptions.ConnectionError,))

    def connect(self: Any) -> None:
        self._connecting.call_with_retry(
            # a ping in here would come back to this method when it fails
            lambda: self.connect_check_health(check_health=False, retry_socket_connect=False),
            lambda error: self.disconnect(error),
            is_retryable=lambda error: not isinstance(error, redis.exceptions.AuthenticationError),
        )

    def check_health(self: Any) -> None:
        """A connection that died unseen is replaced before the command is sent."""
        if self.health_check_interval and time.monotonic() > self.next_health_check:
            try:
                self._send_ping()
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                self.disconnect()
                self.connect()


class _Connection(_SentOnce, redis.Connection):
    pass


class _TlsConnection(_SentOnce, redis.Connection):
    """One TLS context for all connections of a client."""

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        self._tls = tls
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def _connect(self) -> Any:
        plain = super()._connect()  # type: ignore[no-untyped-call]
        try:
            return self._tls.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


class _UnixConnection(_SentOnce, redis.UnixDomainSocketConnection):
    pass


def _client(settings: Settings, role: Role, connections: int, read_timeout: float) -> redis.Redis:
    kind, address = _address(settings)
    pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
        connection_class=kind,
        max_connections=connections,
        timeout=POOL_TIMEOUT,
        socket_timeout=read_timeout,
        health_check_interval=HEALTH_CHECK_EVERY,
        retry=Retry(NoBackoff(), 0),
        client_name=f"worker-{role}",
        protocol=2,  # one round trip less to connect, and every server speaks it
        driver_info=None,
        **address,
    )
    return redis.Redis(connection_pool=pool)


def _address(settings: Settings) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The connection class and its arguments. Taken apart here, so that no option hides in the address."""
    if settings.redis_url is None:
        raise BadStart(
            [BadSetting("REDIS_URL", "nothing", "the store's address; `worker local` brings a store")]
        )
    parts = urlsplit(settings.redis_url)
    database = parse_qs(parts.query).get("db", [parts.path.lstrip("/") if parts.scheme != "unix" else ""])[0]
    common: dict[str, Any] = {
        "db": int(database or 0),
        "username": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "socket_connect_timeout": CONNECT_TIMEOUT,
    }
    if parts.scheme == "unix":
        return _UnixConnection, common | {"path": unquote(parts.path)}
    common |= {"host": parts.hostname, "port": parts.port or 6379, "socket_keepalive": True}
    if parts.scheme == "redis":
        return _Connection, common
    return _TlsConnection, common | {"tls": _tls(settings)}


def _tls(settings: Settings) -> ssl.SSLContext:
    """`on` checks certificate and host name, `ca` only that the certificate is REDIS_TLS_CA's.

    With a REDIS_TLS_CA no other authority counts; redis-py's own options would add it to the
    system's, and then any public certificate would pass for the store's.
    """
    authority = settings.redis_tls_ca
    pem = authority is not None and authority.startswith("-----BEGIN")
    context = ssl.create_default_context(cafile=None if pem else authority, cadata=authority if pem else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.redis_tls_verify == "ca":
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the store's own certificate will do
    elif settings.redis_tls_verify == "off":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
