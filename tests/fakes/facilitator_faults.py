"""Faults for the fake facilitator; each is used up by one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One planned fault.

    kind: answer | drop | hang | no_hash | pending | slow_body
    moves: whether the money moves although the response does not say so (settle only)
    status, body: for `answer`; a string body is sent as it is, anything else as JSON
    seconds: how long `hang` waits at most, and `slow_body` between bytes
    """

    kind: str
    moves: bool = False
    status: int = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    seconds: float = 30.0


def refuse(code: str, *, status: int = 200, transaction: str = "") -> Fault:
    """Settle and verify refuse with this code and HTTP status; nothing moves."""
    body = {
        "success": False,
        "errorReason": code,
        "isValid": False,
        "invalidReason": code,
        "transaction": transaction,
        "network": "",
    }
    return Fault("answer", status=status, body=body)


def pending(*, status: int = 500, moves: bool = True) -> Fault:
    """Settle answers settlement_pending with a hash; with `moves` the transfer lands at once."""
    return Fault("pending", status=status, moves=moves)


def drop(*, moves: bool) -> Fault:
    """The connection closes without a response, after the money moved or before."""
    return Fault("drop", moves=moves)


def hang(seconds: float = 30.0, *, moves: bool = False) -> Fault:
    """Delays the call, then handles it honestly."""
    return Fault("hang", moves=moves, seconds=seconds)


def no_hash(*, moves: bool = True) -> Fault:
    """Settle reports success without a hash."""
    return Fault("no_hash", moves=moves)


def answer(
    status: int, body: Any, *, moves: bool = False, headers: tuple[tuple[str, str], ...] = ()
) -> Fault:
    """Any response at all: a string is sent as it is, anything else as JSON."""
    return Fault("answer", status=status, body=body, moves=moves, headers=headers)


def garbage(status: int = 200, *, moves: bool = False) -> Fault:
    """Bytes that are not JSON."""
    return answer(status, "<html>bad gateway</html>", moves=moves)


def slow_body(seconds_between_bytes: float) -> Fault:
    """An honest response, sent one byte at a time."""
    return Fault("slow_body", seconds=seconds_between_bytes)
