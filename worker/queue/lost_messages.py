"""Finds queued executions whose queue message was lost with the process that took it."""

from __future__ import annotations

from worker.engine.transitions import ExecutionStore
from worker.queue.rq import RunQueue

# Records that wait longer than this are checked against their queue.
QUEUED_AGE_US = 1_000_000
# Entries that one round may scan; a longer queue takes more rounds.
_SEARCHED = 100_000
_FEWEST, _MOST = 5, 250
# All records are compared only after this many consecutive rounds with fewer messages than queued records,
# because a message is written a moment after its record.
_SHORT_ROUNDS = 3


class LostMessages:
    """Each round checks the oldest records; when messages are missing, it compares all records with them."""

    def __init__(self, store: ExecutionStore, queue: RunQueue) -> None:
        self._store = store
        self._queue = queue
        self._short = 0

    def find(self, at: int) -> list[str]:
        """Returns some ids whose message is lost, or in the express lane; a false hit is harmless."""
        messages, taken = self._queue.length_and_taken()
        records, express = self._store.queued_and_express()
        # Each check costs time proportional to the lanes' length, so long lanes get fewer checks per round.
        checks = min(_MOST, max(_FEWEST, _SEARCHED // max(1, messages + express)))
        found = [*self._oldest(at, checks), *self._stranded(taken, at)]
        self._short = self._short + 1 if records > messages + express else 0
        if self._short >= _SHORT_ROUNDS:
            self._short = 0
            found += self._compared(at, checks)
        return list(dict.fromkeys(found))

    def _oldest(self, at: int, checks: int) -> list[str]:
        """Moves records found in their queue to the back, so that a long queue does not hide later ones."""
        queued = self._store.queued_before(at - QUEUED_AGE_US, checks)
        lost = self._queue.lost(queued)
        missing = set(lost)
        self._store.looked_at([id for id in queued if id not in missing], at)
        return lost

    def _stranded(self, taken: list[str], at: int) -> list[str]:
        """Executions whose message was taken by a process that did nothing with it."""
        stranded = []
        for id, found in zip(taken, self._store.get_many(taken), strict=True):
            if found is None or found.state != "pending":
                self._queue.forget(id)
            elif at - found.updated > QUEUED_AGE_US:
                stranded.append(id)
        return self._queue.lost(stranded)

    def _compared(self, at: int, checks: int) -> list[str]:
        """Reads records first; searches again for a message that leaves its queue meanwhile."""
        records = self._store.all_queued_before(at - QUEUED_AGE_US)
        named = {*self._queue.messages(), *self._store.express_messages()}
        return self._queue.lost([id for id in records if id not in named][:checks])
