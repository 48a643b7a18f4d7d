"""The doctor's checks of the store: a store that loses data makes the worker lose payments.

Hosted stores often forbid CONFIG. Then INFO is used, and what it does not show is reported as unknown.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import redis

from worker.cli.doctor_results import CheckResult, Level, causes
from worker.core.settings import Settings
from worker.core.store_address import parse
from worker.core.values import LOOPBACK, bare
from worker.payments.attention import attention
from worker.store.certificate_pin import CertificateChanged
from worker.store.client import (
    REDIS_AT_LEAST,
    Role,
    certificate_pin,
    connect,
    connections,
    sentinels,
)
from worker.store.data_model import Keys
from worker.store.data_version import DATA, read_data_version

Info = Mapping[str, Any]

MEMORY_WARN, MEMORY_WRONG = 75, 90
SKEW_WARN, SKEW_WRONG = 2.0, 30.0
_COMPACT = "2048 or more: a finished hire then takes less memory, see docs/operators.md"
CANNOT_TELL = "cannot tell, the store forbids CONFIG"


def store(settings: Settings) -> list[CheckResult]:
    """All checks of the store in REDIS_URL."""
    where = bare(settings.redis_url or "")
    watched = list(_sentinels(settings))
    client = connect(settings, role="cli")
    try:
        before = time.time()
        seconds, micros = client.time()
        skew = seconds + micros / 1e6 - (before + time.time()) / 2
        info: Info = client.info()
    except redis.RedisError as error:
        return [*watched, _encryption(settings), _unusable(where, error)]
    try:
        return [
            *watched,
            CheckResult("store", "ok", where, "a store that answers"),
            _encryption(settings),
            _version(info),
            _shape(info),
            *_durability(client, info),
            _eviction(client, info),
            _compactness(client),
            _memory(info),
            _connections(client, info, settings),
            _scripts(client),
            _data_version(client),
            _skew(skew),
            _owed(settings),
        ]
    except (redis.ConnectionError, redis.TimeoutError) as error:
        return [_unusable(where, error)]
    finally:
        client.close()


def _owed(settings: Settings) -> CheckResult:
    """Legs and settlements that only the operator can resolve."""
    from worker.parts import Parts

    parts = Parts(settings, "cli")
    found = attention(parts.leg_books, parts.audit_book, parts.listings)
    summary = "; ".join(f"{name}: {text}" for name, text in found.items())
    expected = "every settlement proven on the chain, every refund and fee paid"
    return CheckResult("money", "warn" if found else "ok", summary or "nothing that waits for you", expected)


def _sentinels(settings: Settings) -> Iterator[CheckResult]:
    """Whether the sentinels in REDIS_URL agree on the primary; nothing if it names none."""
    address, found = parse(settings.redis_url or ""), sentinels(settings)
    if found is None:
        return
    named: list[str] = []
    silent: list[str] = []
    for host, port in address.hosts:
        try:
            primary = found.ask((host, port))
            named.append("{}:{}".format(*primary) if primary else f"none called {address.service}")
        except redis.RedisError as error:
            silent.append(f"{host}:{port} {_kind(error)}")
    expected = "three Sentinels or more, all of which name the same primary"
    fits = len(named) >= 3 and len(set(named)) == 1 and not silent
    level: Level = "wrong" if not named or "none" in " ".join(named) else "ok" if fits else "warn"
    agreement = [f"{len(named)} of {len(address.hosts)} name {' and '.join(sorted(set(named))) or 'nobody'}"]
    yield CheckResult("sentinels", level, "; ".join(agreement + silent), expected)


def _unusable(where: str, error: redis.RedisError) -> CheckResult:
    """Why the store cannot be queried, and whether waiting may help."""
    found = list(causes(error))
    if any(isinstance(each, CertificateChanged) for each in found):
        expected = (
            "the certificate learnt before; if the store was replaced, remove its file in WORKER_STATE_DIR"
        )
        return CheckResult("store", "wrong", f"{where}: it shows another certificate", expected)
    if any(isinstance(each, ssl.SSLError) for each in found):
        expected = (
            "a certificate for this name, signed by REDIS_TLS_CA; REDIS_TLS_VERIFY=ca if it is self-signed"
        )
        return CheckResult(
            "store", "wrong", f"{where}: its certificate is not trusted, or it has none", expected
        )
    away = isinstance(error, redis.ConnectionError | redis.TimeoutError)
    level: Level = "wrong" if isinstance(error, redis.AuthenticationError) or not away else "unreachable"
    return CheckResult("store", level, f"{where}: {_kind(error)}", "a store that answers at REDIS_URL")


def _kind(error: Exception) -> str:
    return {
        "AuthenticationError": "refuses our password",
        "TimeoutError": "does not answer in time",
        "ConnectionError": "cannot be reached",
        "BusyLoadingError": "is still loading its data",
        "NoPermissionError": "forbids TIME or INFO",
    }.get(type(error).__name__, "answers with an error")


def _encryption(settings: Settings) -> CheckResult:
    expected = "rediss:// beyond this machine, with the certificate checked"
    address = parse(settings.redis_url or "")
    if address.tls:
        level: Level = "warn" if settings.redis_tls_verify == "off" else "ok"
        return CheckResult("encryption", level, f"TLS, {_verified(settings)}", expected)
    if address.path or all(host in LOOPBACK for host, _ in address.hosts):
        return CheckResult("encryption", "ok", "none, on this machine", expected)
    return CheckResult("encryption", "wrong" if settings.deployed else "warn", "none", expected)


def _verified(settings: Settings) -> str:
    found = f"REDIS_TLS_VERIFY is {settings.redis_tls_verify}"
    pin = certificate_pin(settings)
    if pin is None:
        return found
    if pin.fingerprint() is None:
        return f"{found}, no certificate learnt yet"
    learnt = f"certificate {pin.fingerprint()}... learnt at the first contact"
    return f"{found}, {learnt} (REDIS_TLS_CA={pin.file} pins it for good)"


def _version(info: Info) -> CheckResult:
    least = ".".join(map(str, REDIS_AT_LEAST))
    found = str(info.get("redis_version", "unknown"))
    product = f"Valkey {info['valkey_version']}, as Redis {found}" if "valkey_version" in info else found
    numbers = [int(part) for part in found.split(".")[:2] if part.isdecimal()]
    fits = len(numbers) == 2 and tuple(numbers) >= REDIS_AT_LEAST
    return CheckResult("version", "ok" if fits else "wrong", product, f"{least} or newer")


def _shape(info: Info) -> CheckResult:
    mode = str(info.get("redis_mode", info.get("server_mode", "standalone")))
    role = str(info.get("role", "master"))
    fits = mode != "cluster" and role == "master"
    return CheckResult("shape", "ok" if fits else "wrong", f"{mode}, {role}", "one master, not a cluster")


def _durability(store: redis.Redis, info: Info) -> Iterator[CheckResult]:
    expected = "an append-only file, or a crash of the store forgets payments"
    if "aof_enabled" not in info:
        yield CheckResult("append-only file", "unknown", "cannot tell, INFO does not say", expected)
        return
    if not int(info["aof_enabled"]):
        yield CheckResult("append-only file", "wrong", "off", expected)
        return
    yield CheckResult("append-only file", "ok", "on", expected)
    mode = _configured(store, "appendfsync")
    levels: dict[str | None, Level] = {"always": "ok", "no": "wrong", None: "unknown"}
    level = levels.get(mode, "warn")
    found = mode or f"{CANNOT_TELL}; counts as everysec"
    yield CheckResult("appendfsync", level, found, "always: with everysec a crash loses up to 2 s")
    for part in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        status = str(info.get(part, "ok"))
        if status != "ok":
            yield CheckResult(part, "wrong", status, "ok: the store has trouble with its disk")


def _eviction(store: redis.Redis, info: Info) -> CheckResult:
    policy = info.get("maxmemory_policy") or _configured(store, "maxmemory-policy")
    expected = "noeviction: any other lets the store delete payments when memory is short"
    if policy is None:
        return CheckResult("eviction", "unknown", CANNOT_TELL, expected)
    return CheckResult("eviction", "ok" if policy == "noeviction" else "wrong", str(policy), expected)


def _compactness(store: redis.Redis) -> CheckResult:
    """Only memory is at stake, so no value is a mistake."""
    # The second name is the one before Redis 7.
    for name in ("hash-max-listpack-value", "hash-max-ziplist-value"):
        if (found := _configured(store, name)) is not None:
            return CheckResult("compact hashes", "ok", f"{name} {found}", _COMPACT)
    return CheckResult("compact hashes", "ok", CANNOT_TELL, _COMPACT)


def _memory(info: Info) -> CheckResult:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    expected = f"at most {MEMORY_WARN} % in use; a full store refuses every write"
    if not limit:
        return CheckResult("memory", "ok", f"{_mib(used)} used, no limit", expected)
    percent = 100 * used // limit
    level: Level = "wrong" if percent > MEMORY_WRONG else "warn" if percent > MEMORY_WARN else "ok"
    return CheckResult("memory", level, f"{percent} % of {_mib(limit)} used", expected)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def connections_needed(settings: Settings) -> dict[Role, int]:
    """The connections that all processes of these settings may hold together, by role."""
    processes: dict[Role, int] = {
        "web": settings.web_concurrency,
        "express": settings.express_processes,
        "queue": settings.queue_processes,
        "check": 1,
        "clock": 1,
        "parent": 1,
        "cli": 1,
    }
    return {role: count * connections(role) for role, count in processes.items()}


def _connections(store: redis.Redis, info: Info, settings: Settings) -> CheckResult:
    needed = connections_needed(settings)
    total = sum(needed.values())
    sums = " + ".join(f"{role} {count}" for role, count in needed.items())
    limit = info.get("maxclients") or _configured(store, "maxclients")
    if limit is None:
        return CheckResult("connections", "unknown", f"{sums} = {total}; {CANNOT_TELL}", "room for them")
    level: Level = "wrong" if total > int(limit) else "warn" if total > 0.9 * int(limit) else "ok"
    expected = "room for one machine of each kind; more machines need more"
    return CheckResult("connections", level, f"{sums} = {total} of {limit}", expected)


def _scripts(store: redis.Redis) -> CheckResult:
    expected = "EVAL and EVALSHA: every change of state is a script"
    try:
        works = store.eval("return redis.call('TIME')[1]", 0) is not None
    except redis.ResponseError:
        works = False
    return CheckResult("scripts", "ok" if works else "wrong", "possible" if works else "refused", expected)


def _data_version(store: redis.Redis) -> CheckResult:
    found = read_data_version(store, Keys())
    refusal = found.refusal()
    expected = refusal or f"a version that this release ({DATA}) can use"
    return CheckResult("data version", "wrong" if refusal else "ok", str(found.written), expected)


def _skew(skew: float) -> CheckResult:
    level: Level = "wrong" if abs(skew) > SKEW_WRONG else "warn" if abs(skew) > SKEW_WARN else "ok"
    expected = f"within {SKEW_WARN:g} s: the store's clock decides whether a payment is still valid"
    return CheckResult("clock", level, f"the store is {skew:+.3f} s from this machine", expected)


def _configured(store: redis.Redis, name: str) -> str | None:
    """A value of the store's configuration, or None if CONFIG is forbidden or does not know it."""
    ask: Callable[[str], Any] = store.config_get
    try:
        answer = ask(name)
    except redis.ResponseError:
        return None
    value = {_text(key): _text(found) for key, found in answer.items()}.get(name)
    return value or None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
