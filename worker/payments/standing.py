"""Where payments stand on the chain: the query for many of them at once, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.payments.chain import ChainProof, Head


@dataclass(frozen=True, slots=True)
class Wanted:
    """One payment to look for. It cannot have landed before `since_us`; `named` is a hash to try first."""

    payer: str
    nonce: str
    pay_to: str
    amount: int
    asset: str
    since_us: int
    named: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one payment stands, up to the newest block of its round.

    `used`: its nonce can no longer be used. `known`: the node has the named transaction, mined or not.
    """

    landed: ChainProof | None = None
    cancelled: ChainProof | None = None
    used: bool = False
    known: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """One look at the chain. Blocks up to `proven` are final."""

    head: Head
    proven: Head
    standings: Sequence[Standing]
