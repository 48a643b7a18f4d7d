"""Finds payments that must be verified again before their work begins: the wallet may be empty by now.

The script that grants a lease refuses work whose payment was verified too long ago. To spare processes these
refusals, the clock verifies the payments at the front of each queue shortly before their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.payments.money_store import MoneyStore
from worker.store.client import as_texts
from worker.store.commands import ask_together

# How many executions at the front of a queue are checked, about once a second.
_FRONT = 32


@dataclass
class Rechecks(MoneyStore):
    """`queues`: lists in which bought work waits for a process."""

    queues: Sequence[str] = field(default=(), kw_only=True)

    def begin(self) -> list[str]:
        """Sends such payments back to verification; returns their executions."""
        fronts = ask_together(self.client, *(("LRANGE", queue, 0, _FRONT - 1) for queue in self.queues))
        ids = [id for front in fronts for id in as_texts(front)]
        if not ids:
            return []
        # Together: while many wait, these are most of what a clock asks.
        due = self._scripts.send_together(*(self._scripts.call("recheck", id=id) for id in ids))
        return [id for id, is_due in zip(ids, due, strict=True) if is_due]
