"""Which wallets a process may ask the facilitator about before their payment is claimed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_WALLETS = 1_024
# For each wallet: as many of its payments may be asked about at once.
_MOST_QUESTIONS = 16


class KnownPayers:
    """A question before the claim costs a call, whoever sends the payment, so it must be earned.

    A wallet may cause one for each of its payments that has settled here. Of several copies of a payment one
    is asked about; the others are claimed first.
    """

    def __init__(self) -> None:
        self._earned: OrderedDict[str, int] = OrderedDict()
        self._asked: set[str] = set()
        self._lock = threading.Lock()

    def paid(self, wallet: str) -> None:
        """A payment of the wallet has settled."""
        wallet = wallet.lower()
        with self._lock:
            self._earned[wallet] = min(_MOST_QUESTIONS, self._earned.pop(wallet, 0) + 1)
            if len(self._earned) > _MOST_WALLETS:
                self._earned.popitem(last=False)

    @contextmanager
    def question(self, wallet: str, payment_key: str) -> Iterator[bool]:
        """Whether the facilitator may be asked about this payment within the block."""
        wallet = wallet.lower()
        with self._lock:
            left = self._earned.get(wallet, 0)
            granted = left > 0 and payment_key not in self._asked
            if granted:
                self._earned[wallet] = left - 1
                self._asked.add(payment_key)
        try:
            yield granted
        finally:
            if granted:
                with self._lock:
                    self._asked.discard(payment_key)
