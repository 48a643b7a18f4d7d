"""Orders bought work in a queue that another program (RQ) owns."""

from __future__ import annotations

from worker.payments.answers import VerifiedAnswer
from worker.payments.ledger import Ledger
from worker.queue.rq import RunQueue


class OrderedQueue:
    """Queues long work; work of wallets that have paid goes before newcomers' work."""

    def __init__(self, queue: RunQueue, ledger: Ledger) -> None:
        self._queue = queue
        self._ledger = ledger

    def push(self, id: str) -> None:
        """Appends the execution and moves it to its place; if the move fails, it only waits longer."""
        self._queue.push(id, lambda commands: self._ledger.order_queue(id, self._queue.key, *commands))

    def push_verified(self, id: str, number: int, *, waits: bool) -> tuple[VerifiedAnswer, str]:
        """Records that a payment for work in this queue was verified, and appends the execution.

        If the record says that it need not wait, who takes the message finds that out.
        """
        return self._ledger.verified_in_queue(
            id, number, self._queue.key, *self._queue.message(id), waits=waits
        )
