"""The store's address, parsed from REDIS_URL: one server, a Unix socket, or Sentinels for the primary.

    redis://user:password@host:6379/0                                  rediss:// with TLS
    unix://:password@/path?db=0
    redis+sentinel://user:password@host:26379,host:26379/name/0        rediss+sentinel:// with TLS
        ?sentinel_username=...&sentinel_password=...

User and password before the @ belong to the data server; Sentinels often have others, or none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

EXPECTED = (
    "redis://host:port/0, rediss://..., unix:///path, each with no option but db, or "
    "redis+sentinel://host:port,host:port/name/0 with no option but sentinel_username and sentinel_password"
)
_SENTINEL = "+sentinel"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/,]+)(?::(\d{1,5}))?", re.ASCII)
_OPTIONS = {"db"}, {"sentinel_username", "sentinel_password"}


class BadAddress(ValueError):
    """The URL names no store, or has an option that could override what other settings guarantee."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """`service` is the primary's name at the Sentinels; with it, `hosts` are the Sentinels."""

    tls: bool = False
    path: str = ""
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    @property
    def passwords(self) -> tuple[str, ...]:
        return tuple(each for each in (self.password, self.sentinel_password) if each)


def parse(url: str) -> StoreAddress:
    """Parses the URL strictly, so that no hidden option gets through."""
    if any(ch.isspace() or not ch.isprintable() for ch in url):
        raise BadAddress
    try:
        parts = urlsplit(url)
    except ValueError as broken:
        raise BadAddress from broken
    if parts.scheme not in {"redis", "rediss", "unix", f"redis{_SENTINEL}", f"rediss{_SENTINEL}"}:
        raise BadAddress
    sentinel = parts.scheme.endswith(_SENTINEL)
    options = _options(parts, _OPTIONS[sentinel])
    service, database = _service(parts) if sentinel else ("", _database(parts, options))
    unix = parts.scheme == "unix"
    if unix and not parts.path.strip("/"):
        raise BadAddress
    return StoreAddress(
        tls=parts.scheme.startswith("rediss"),
        path=unquote(parts.path) if unix else "",
        hosts=() if unix else _hosts(parts, 26379 if sentinel else 6379, several=sentinel),
        service=service,
        database=database,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )


def _options(parts: SplitResult, known: set[str]) -> dict[str, str]:
    """Parses the options. A plus sign in a password stays a plus sign."""
    pairs = [pair.partition("=") for pair in parts.query.split("&")] if parts.query else []
    options = {name: unquote(value) for name, _, value in pairs}
    if parts.fragment or len(options) < len(pairs) or not set(options) <= known or not all(options.values()):
        raise BadAddress
    return options


def _database(parts: SplitResult, options: dict[str, str]) -> int:
    in_path = "" if parts.scheme == "unix" else parts.path
    if not re.fullmatch(r"(/\d{0,3})?", in_path, re.ASCII):
        raise BadAddress
    number = options.get("db", in_path.lstrip("/"))
    if not re.fullmatch(r"\d{0,3}", number, re.ASCII):
        raise BadAddress
    return int(number or 0)


def _service(parts: SplitResult) -> tuple[str, int]:
    found = re.fullmatch(r"/([A-Za-z0-9._-]{1,100})(?:/(\d{0,3}))?", parts.path, re.ASCII)
    if found is None:
        raise BadAddress
    return found[1], int(found[2] or 0)


def _hosts(parts: SplitResult, port: int, *, several: bool) -> tuple[tuple[str, int], ...]:
    listed = parts.netloc.rpartition("@")[2].split(",")
    found = [_HOST.fullmatch(each) for each in listed]
    hosts = tuple((each[1].strip("[]").lower(), int(each[2] or port)) for each in found if each)
    if len(hosts) < len(listed) or (len(hosts) > 1 and not several):
        raise BadAddress
    if not all(0 < number < 65_536 for _, number in hosts):
        raise BadAddress
    return hosts
