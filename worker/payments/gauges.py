"""Money gauges for `/metrics`: sums of the ledger, and open payments."""

from __future__ import annotations

from typing import Any

import redis

from worker.payments.payment import PaymentState
from worker.store.data_model import Keys
from worker.store.money_fields import payment_field

SUMS = (
    *("claimed", "open", "settled", "refused", "released"),
    *("refunds_due", "refunds_paid", "fees_due", "fees_paid"),
)
# At most this many open payments are examined.
_MOST_OPEN = 500


class MoneyGauges:
    """Read-only."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    def sums(self) -> dict[str, int]:
        """Sums in atomic units by outcome."""
        found: Any = self._client.hmget(self._keys.sums, list(SUMS))
        return {name: int(value or 0) for name, value in zip(SUMS, found, strict=True)}

    def open(self) -> int:
        """Number of open payments."""
        return int(self._client.zcard(self._keys.open_payments))

    def unknown(self) -> int:
        """Open payments whose settlement outcome is unknown; those due first are examined first."""
        found: Any = self._client.zrange(self._keys.open_payments, 0, _MOST_OPEN - 1)
        books = [self._keys.money(id.decode()) for id in found]
        with self._client.pipeline(transaction=False) as pipe:
            for book in books:
                pipe.hget(book, "current")
            current = pipe.execute()
            for book, number in zip(books, current, strict=True):
                pipe.hget(book, payment_field(int(number or 0), "state"))
            return sum(state == PaymentState.UNKNOWN.encode() for state in pipe.execute())
