"""Which payments a process may ask the facilitator about before they are claimed."""

from __future__ import annotations

import threading
from collections import OrderedDict

_MOST_WALLETS = 1_024
# For each wallet: as many of its payments may be asked about at once.
_MOST_QUESTIONS = 16
_MOST_ASKED = 4_096


class KnownPayers:
    """A question before the claim costs a call, whoever sends the payment, so it must be earned.

    A wallet may cause one for each of its payments that has settled here. A payment is asked about once: its
    copies, and what a refusal is tried again with, are claimed first.
    """

    def __init__(self) -> None:
        self._earned: OrderedDict[str, int] = OrderedDict()
        self._asked: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def paid(self, wallet: str) -> None:
        """A payment of the wallet has settled."""
        wallet = wallet.lower()
        with self._lock:
            self._earned[wallet] = min(_MOST_QUESTIONS, self._earned.pop(wallet, 0) + 1)
            if len(self._earned) > _MOST_WALLETS:
                self._earned.popitem(last=False)

    def may_ask(self, wallet: str, payment_key: str) -> bool:
        """Whether the facilitator may be asked about this payment; it then is."""
        wallet = wallet.lower()
        with self._lock:
            left = self._earned.get(wallet, 0)
            if left == 0 or payment_key in self._asked:
                return False
            self._earned[wallet] = left - 1
            self._asked[payment_key] = None
            if len(self._asked) > _MOST_ASKED:
                self._asked.popitem(last=False)
            return True

    def not_asked(self, wallet: str, payment_key: str) -> None:
        """The question that `may_ask` allowed was not sent."""
        wallet = wallet.lower()
        with self._lock:
            if self._asked.pop(payment_key, self) is None and wallet in self._earned:
                self._earned[wallet] += 1
