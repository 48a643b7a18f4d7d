"""Limits on unpaid work per wallet: checked before a 402, and again at the claim.

A run that ends without a charge, for whatever reason, counts for an hour. Each wallet has a few free runs and
more in proportion to what it has paid; wallets that have paid nothing also share a common limit. The rule
itself is in `_budget.lua`, because the claim must enforce it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from worker.core.errors import Unavailable
from worker.payments.money_store import MoneyStore
from worker.store.client import as_bytes

# Retry hint: when a wallet's open payments end is unknown, but it is usually soon.
_OPEN_SECONDS = 5
# Limits that a wallet shares with others.
_SHARED = {
    b"unproven": "too many unpaid runs by new wallets",
    b"newcomers": "new wallets have as much work here as they may have together",
}


@dataclass(frozen=True, slots=True)
class Allowance:
    """`free_runs` per hour, plus one for each `prices_paid` prices paid, up to `most_earned` more.

    `newcomers`: places shared by all payments that their wallet's earlier payments do not cover.
    """

    most_open: int = 20
    free_runs: int = 3
    prices_paid: int = 1
    most_earned: int = 50
    unproven_runs: int = 100
    newcomers: int = 100

    def of_unproven_payer(self) -> Allowance:
        """The part of a wallet's budget open to unproven callers, so that they cannot shut the wallet out."""
        free_runs = max(1, self.free_runs * 2 // 3)
        return replace(self, most_open=max(1, self.most_open // 2), free_runs=free_runs)

    def __str__(self) -> str:
        wallet = f"{self.most_open} {self.free_runs} {self.prices_paid} {self.most_earned}"
        return f"{wallet} {self.unproven_runs} {self.newcomers}"


# For development: authors retry failing work often, with test money.
ON_A_LAPTOP = Allowance(free_runs=10_000, unproven_runs=10_000)


class UnpaidWork(Unavailable):
    """503: this wallet, or all wallets that have paid nothing, must wait."""

    code = "UNPAID_WORK_LIMIT"
    message = "this wallet has too much unpaid work"
    advice = "Wait as long as Retry-After says, then send the same request again. You were not charged."

    @classmethod
    def told(cls, which: bytes, wait_us: bytes | int) -> UnpaidWork:
        """Builds the error from a script's answer."""
        message = _SHARED.get(which)
        seconds = -(-int(wait_us) // 1_000_000) or _OPEN_SECONDS
        return cls(message, retry_after=seconds, limit=which.decode())


@dataclass
class UnpaidWorkBudget(MoneyStore):
    """Budgets of all wallets, in the store."""

    allowance: Allowance = field(default_factory=Allowance, kw_only=True)

    def has_paid(self, wallet: str) -> bool:
        """Whether the wallet has paid more than it was refunded."""
        paid = self.client.hget(self.keys.wallets, f"paid {wallet.lower()}")
        return int(as_bytes(paid or b"0")) > 0

    def wallets(self, ids: Sequence[str]) -> list[tuple[str, bool]]:
        """Each execution's wallet ('' if it has none), and whether that wallet has ever paid."""
        if not ids:
            return []
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hget(self.keys.money(id), "1 payer")
            payers = [as_bytes(payer or b"").decode() for payer in pipe.execute()]
        names = [f"paid {payer}" for payer in payers]
        paid = cast(list[bytes | None], self.client.hmget(self.keys.wallets, names))
        return [(payer, int(total or 0) > 0) for payer, total in zip(payers, paid, strict=True)]
