"""Sign-in-with-x for payers: challenges and single-use proofs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from worker.contracts.signatures import recover_text
from worker.x402.sign_in import SECONDS, SIGN_IN, SignIn, SignInInvalid


class CallCounter(Protocol):
    """Counts calls by key within a window."""

    def take(self, key: str, max: int, window_us: int, call: str = "") -> bool: ...


@dataclass(frozen=True)
class SignIns:
    """Issues challenges and returns the wallet that answered one."""

    sign_in: SignIn
    counter: CallCounter
    now: Callable[[], int]

    def extension(self, now_us: int | None = None) -> Mapping[str, Any]:
        """The entry for a 402's extensions; a caller that has read the time passes it."""
        at_us = self.now() if now_us is None else now_us
        return {SIGN_IN: self.sign_in.challenge(at_us // 1_000_000)}

    def wallet(self, header: str) -> str:
        """The wallet that signed, in lower case; raises SignInInvalid."""
        proof = self.sign_in.check(header, self.now() // 1_000_000, recover_text)
        # Remember a nonce until its challenge has expired.
        if not self.counter.take(f"sign-in:{proof.nonce}", 1, 2 * SECONDS * 1_000_000):
            raise SignInInvalid(field="nonce", expected="a nonce that was not used yet", received=proof.nonce)
        return proof.wallet
