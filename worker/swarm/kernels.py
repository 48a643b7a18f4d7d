"""The kernels the operator trusts: their credentials and their limits."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from worker.core.errors import Unauthorized

PER_DAY = 10_000
# Applies to every kernel without limits of its own.
OTHERS = "*"


@dataclass(frozen=True, slots=True)
class Kernel:
    """`per_day` executions, and `share` percent of the places the swarm has at a time."""

    name: str
    per_day: int
    share: int


class KernelKeyUnknown(Unauthorized):
    """Missing or unknown kernel credentials."""

    message = "a kernel's key is required"
    advice = (
        "Put the key into the base URL (https://name:password@host), or send it as Authorization: Bearer."
    )


class Kernels:
    """All kernels and their credentials: `name:password` as HTTP Basic, or the password as a bearer key.

    `failed` counts wrong credentials and may refuse the address; correct ones are always accepted.
    """

    def __init__(
        self,
        keys: Iterable[tuple[str, str]],
        limits: Iterable[tuple[str, int, int]] = (),
        *,
        failed: Callable[[str], None],
    ) -> None:
        keys = list(keys)
        self._failed = failed
        own = {name: (per_day, share) for name, per_day, share in limits}
        rest = own.get(OTHERS, (PER_DAY, max(1, 100 // max(1, len(keys)))))
        self._shown: list[tuple[bytes, Kernel]] = []
        for name, secret in keys:
            kernel = Kernel(name, *own.get(name, rest))
            self._shown.append((_digest(b"basic", f"{name}:{secret}".encode()), kernel))
            self._shown.append((_digest(b"bearer", secret.encode()), kernel))

    def authenticate(self, authorization: str, address: str) -> Kernel:
        """The kernel this key belongs to. Compares all keys, whichever matches."""
        received = _read(authorization)
        found: Kernel | None = None
        for expected, kernel in self._shown:
            if hmac.compare_digest(expected, received):
                found = kernel
        if found is None:
            if authorization:
                self._failed(address)
            raise KernelKeyUnknown()
        return found


def _read(authorization: str) -> bytes:
    scheme, _, value = authorization.partition(" ")
    # Servers decode headers as Latin-1.
    kind, raw = scheme.lower().encode("latin-1", "replace"), value.strip().encode("latin-1", "replace")
    if kind == b"basic":
        try:
            raw = base64.b64decode(raw, validate=True)
        except binascii.Error:
            return _digest(b"", b"")
    return _digest(kind, raw)


def _digest(kind: bytes, shown: bytes) -> bytes:
    return hashlib.sha256(kind + b" " + shown).digest()
