"""Payments in one line each, for lists of executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import redis

from worker.store.data_model import Keys
from worker.store.money_fields import payment_field


@dataclass(frozen=True, slots=True)
class PaymentBrief:
    """The payment that counts now: its state, its amount in atomic units, its payer."""

    state: str
    amount: int
    payer: str


class PaymentBriefs:
    """Reads many in two round trips."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def of(self, ids: Sequence[str]) -> dict[str, PaymentBrief]:
        """Briefs by execution; none for unsold work."""
        with self._client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hget(self._keys.money(id), "current")
            current = {id: int(number) for id, number in zip(ids, pipe.execute(), strict=True) if number}
            for id, number in current.items():
                names = [payment_field(number, name) for name in ("state", "amount", "payer")]
                pipe.hmget(self._keys.money(id), names)
            rows = zip(current, pipe.execute() if current else (), strict=True)
            return {
                id: PaymentBrief(state.decode(), int(amount), payer.decode())
                for id, (state, amount, payer) in rows
                if state and amount and payer
            }
