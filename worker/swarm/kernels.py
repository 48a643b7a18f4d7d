"""The kernels that the operator trusts: how they prove who they are, and what each may have."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from worker.errors import Unauthorized

PER_DAY = 10_000
# Stands for every kernel that has no limits of its own.
OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Kernel:
    """`per_day` executions, and `share` percent of the places that the swarm has at a time."""

    name: str
    per_day: int
    share: int


class NoKey(Unauthorized):
    """Nobody we know."""

    message = "this runtime asks for a kernel's key"
    advice = (
        "Put the key into the base URL (https://name:password@host), or send it as Authorization: Bearer."
    )


class Kernels:
    """Every kernel with what it may show: `name:password` as HTTP Basic, or the password as a bearer key."""

    def __init__(self, keys: Iterable[tuple[str, str]], limits: Iterable[tuple[str, int, int]] = ()) -> None:
        keys = list(keys)
        own = {name: (per_day, share) for name, per_day, share in limits}
        rest = own.get(OTHERS, (PER_DAY, max(1, 100 // max(1, len(keys)))))
        self._shown: list[tuple[bytes, Kernel]] = []
        for name, secret in keys:
            kernel = Kernel(name, *own.get(name, rest))
            self._shown.append((_digest(b"basic", f"{name}:{secret}".encode()), kernel))
            self._shown.append((_digest(b"bearer", secret.encode()), kernel))

    def who(self, authorization: str) -> Kernel:
        """The kernel whose key this is. All keys are compared, whichever fits."""
        given = _read(authorization)
        found: Kernel | None = None
        for expected, kernel in self._shown:
            if hmac.compare_digest(expected, given):
                found = kernel
        if found is None:
            raise NoKey()
        return found


def _read(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    # Servers hand headers over as Latin-1.
    kind, raw = scheme.lower().encode("latin-1", "replace"), value.strip().encode("latin-1", "replace")
    if kind == b"basic":
        try:
            raw = base64.b64decode(raw, validate=True)
        except binascii.Error:
            return _digest(b"", b"")
    return _digest(kind, raw)


def _digest(kind: bytes, shown: bytes) -> bytes:
    return hashlib.sha256(kind + b" " + shown).digest()
