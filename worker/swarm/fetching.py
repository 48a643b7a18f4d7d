"""Opt-in reading of a candidate's evidence references: which may be read, and what each outcome means.

Proposers often name addresses that do not exist, and the addresses come from other nodes. So only origins the
operator listed are read; all others are not judged. Network access is behind `Fetch`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

from worker.swarm.policies import VerdictReason
from worker.swarm.wire import ArtifactRef

MAX_FETCHES = 16
MAX_FETCH_BYTES = 8 * 1024 * 1024

_SHA256 = re.compile(r"sha256:([0-9a-fA-F]{64})")
_DEFAULT_PORTS = {"https": 443, "http": 80}


class FetchOutcome(StrEnum):
    """The outcome of reading an address."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    AUTH = "auth"


@dataclass(frozen=True, slots=True)
class Fetched:
    """The outcome, and the bytes if it is OK."""

    outcome: FetchOutcome
    data: bytes = b""


class Fetch(Protocol):
    """Reads one address without following redirects; every failure is an outcome, never an exception.

    A body of more than `max_bytes`, a redirect or a private address is UNREACHABLE.
    """

    def __call__(self, uri: str, *, max_bytes: int, seconds: float) -> Fetched: ...


_CODES = {
    FetchOutcome.UNREACHABLE: VerdictReason.EVIDENCE_UNREACHABLE,
    FetchOutcome.TIMEOUT: VerdictReason.EVIDENCE_TIMEOUT,
    FetchOutcome.AUTH: VerdictReason.EVIDENCE_AUTH_DENIED,
}


def may_fetch(uri: str, origins: Collection[str]) -> bool:
    """Whether the address is on a listed origin: a host name (means https) or a `scheme://host:port`."""
    origin = _origin(uri)
    return origin is not None and origin in {
        _origin(item if "://" in item else f"https://{item}") for item in origins
    }


def judge(
    refs: Iterable[ArtifactRef], fetch: Fetch, origins: Collection[str], remaining: Callable[[], float]
) -> tuple[int, ...]:
    """Reason codes for `policies.with_evidence`; `remaining` returns the seconds left.

    Listed evidence for which no time was left counts as a timeout.
    """
    codes: set[int] = set()
    seen: set[tuple[str, str]] = set()
    for ref in refs:
        match = _SHA256.fullmatch(ref.digest)
        if match is None or (ref.uri, ref.digest) in seen or not may_fetch(ref.uri, origins):
            continue
        seconds = remaining()
        if len(seen) >= MAX_FETCHES or seconds <= 0:
            codes.add(VerdictReason.EVIDENCE_TIMEOUT)
            break
        seen.add((ref.uri, ref.digest))
        fetched = fetch(ref.uri, max_bytes=MAX_FETCH_BYTES, seconds=seconds)
        if fetched.outcome is not FetchOutcome.OK:
            codes.add(_CODES[fetched.outcome])
        elif hashlib.sha256(fetched.data).hexdigest() != match.group(1).lower():
            codes.add(VerdictReason.EVIDENCE_DIGEST_MISMATCH)
    return tuple(sorted(int(code) for code in codes))


def _origin(uri: str) -> tuple[str, str, int] | None:
    if not uri.isascii() or any(char <= " " or char in "\\\x7f" for char in uri):
        return None
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname.rstrip("."), port or _DEFAULT_PORTS[parts.scheme]
