"""Creates store clients, and maps the store's errors to answers for callers.

A command is sent once. When its reply is lost, it is unknown whether it ran, and most of our commands are
scripts that move money or leases. So the client never resends one by itself; callers that can repeat
safely do so explicitly. Connecting, and the ping that checks a connection before use, change nothing and
are tried several times.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, Literal, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from worker.core.errors import Unavailable
from worker.core.settings import BadSetting, BadStart, Settings
from worker.core.store_address import parse
from worker.store.certificate_pin import PinnedTls, pin_file
from worker.store.connections import (
    SENTINEL_TIMEOUT,
    CurrentPrimary,
    Sentinels,
    StoreConnection,
    TlsConnection,
    UnixConnection,
    refuses,
)
from worker.store.linked_client import LinkedClient

Role = Literal["web", "express", "queue", "check", "clock", "parent", "cli"]

CONNECT_TIMEOUT = 2.0
READ_TIMEOUT = 5.0
HEALTH_CHECK_EVERY = 30
REDIS_AT_LEAST = (6, 2)

_HOMES: dict[str, CurrentPrimary] = {}


def connections(role: Role) -> int:
    """How many connections to the store a process of this role may hold.

    One carries its commands. A second blocks on a queue or listens; those that claim payments have a third to
    wait for a replica's acknowledgement.
    """
    return {"web": 3, "express": 2, "queue": 2, "check": 1, "clock": 2, "parent": 1, "cli": 2}[role]


class StoreUnavailable(Unavailable):
    """The store does not answer, or answers with something unexpected."""

    code = "STORE_UNAVAILABLE"
    message = "the store is unavailable"
    advice = "Retry the same request after Retry-After: it is idempotent."


def connect(settings: Settings, *, role: Role) -> redis.Redis:
    """Returns a client for non-blocking commands. Bytes in, bytes out; connects on first use."""
    return LinkedClient(_pool(settings, role, READ_TIMEOUT))


def connect_apart(settings: Settings, *, role: Role) -> redis.Redis:
    """Returns a client with one connection, for writes that then wait for a replica's acknowledgement."""
    return redis.Redis(connection_pool=_pool(settings, role, READ_TIMEOUT))


def connect_blocking(settings: Settings, *, role: Role, wait: float) -> redis.Redis:
    """Returns a client for commands that block up to `wait` seconds, and for subscriptions."""
    return redis.Redis(connection_pool=_pool(settings, role, wait + READ_TIMEOUT))


def connect_waiting(settings: Settings, *, role: Role, wait: float) -> redis.Redis:
    """Returns a client for one thread, which waits up to `wait` seconds for what it has asked."""
    return LinkedClient(_pool(settings, role, wait + READ_TIMEOUT))


def unavailable(error: BaseException) -> StoreUnavailable | None:
    """Returns the error to report to a caller, or None when it is a bug and not the store's state."""
    if isinstance(error, redis.exceptions.BusyLoadingError):
        return StoreUnavailable(retry_after=2)
    if isinstance(error, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)):
        return StoreUnavailable(retry_after=5)
    if isinstance(error, redis.exceptions.ResponseError) and refuses(error):
        return StoreUnavailable(retry_after=10)
    return None


def as_bytes(reply: object) -> bytes:
    """Narrows a reply to bytes: our clients decode nothing, whatever the library's types allow."""
    if not isinstance(reply, bytes):
        raise TypeError(f"the store's client decoded a reply to {type(reply).__name__}")
    return reply


def as_mapping(reply: object) -> dict[str, bytes]:
    """Narrows a reply to a hash of bytes."""
    pairs = cast(dict[Any, Any], reply).items()
    return {as_bytes(name).decode(): as_bytes(value) for name, value in pairs}


def as_texts(reply: object) -> list[str]:
    return [as_bytes(item).decode() for item in cast(list[Any], reply)]


def _pool(settings: Settings, role: Role, read_timeout: float) -> redis.ConnectionPool:
    kind, address = _address(settings)
    return redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
        connection_class=kind,
        max_connections=1,
        timeout=READ_TIMEOUT,
        socket_timeout=read_timeout,
        health_check_interval=HEALTH_CHECK_EVERY,
        retry=Retry(NoBackoff(), 0),
        client_name=f"worker-{role}",
        protocol=2,  # saves a round trip when connecting; every server supports it
        driver_info=None,
        **address,
    )


def _address(settings: Settings) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns the connection class and its arguments."""
    if settings.redis_url is None:
        raise BadStart(
            [BadSetting("REDIS_URL", "nothing", "the store's address; `worker local` brings a store")]
        )
    address = parse(settings.redis_url)
    # A process has several clients; when one notices that the store moved, all of them reconnect.
    home = _HOMES.setdefault(settings.redis_url, CurrentPrimary())
    common: dict[str, Any] = {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "home": home,
    }
    if address.path:
        return UnixConnection, common | {"path": address.path}
    host, port = address.hosts[0]
    common |= {"host": host, "port": port, "socket_keepalive": True, "sentinels": sentinels(settings)}
    if not address.tls:
        return StoreConnection, common
    return TlsConnection, common | {"tls": _tls(settings)}


def sentinels(settings: Settings) -> Sentinels | None:
    """Returns the Sentinels in REDIS_URL, if it names any. With TLS they use TLS too."""
    address = parse(settings.redis_url or "")
    if not address.service:
        return None
    options: dict[str, Any] = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_connect_timeout": SENTINEL_TIMEOUT,
        "socket_timeout": SENTINEL_TIMEOUT,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": None,
    }
    tls = _tls(settings) if address.tls else None

    def connection(host: str, port: int) -> redis.Connection:
        place = options | {"home": CurrentPrimary(), "host": host, "port": port}
        return StoreConnection(**place) if tls is None else TlsConnection(tls=tls, **place)

    return Sentinels(address.hosts, address.service, connection)


def certificate_pin(settings: Settings) -> PinnedTls | None:
    """Returns the pin of the store's certificate if none is set by REDIS_TLS_CA."""
    address = parse(settings.redis_url or "")
    if not address.tls or settings.redis_tls_ca or settings.redis_tls_verify != "ca":
        return None
    return PinnedTls(pin_file(settings.worker_state_dir, *address.hosts[0]))


def _tls(settings: Settings) -> ssl.SSLContext | PinnedTls:
    """`on` checks certificate and host name, `ca` only that REDIS_TLS_CA signed the certificate.

    With a REDIS_TLS_CA no other authority is trusted; redis-py's own options would add it to the
    system's, and any public certificate would then be accepted for the store.
    """
    pin = certificate_pin(settings)
    if pin is not None:
        return pin
    authority = settings.redis_tls_ca
    pem = authority is not None and authority.startswith("-----BEGIN")
    context = ssl.create_default_context(cafile=None if pem else authority, cadata=authority if pem else None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.redis_tls_verify == "ca":
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # also accepts the store's own certificate
    elif settings.redis_tls_verify == "off":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
