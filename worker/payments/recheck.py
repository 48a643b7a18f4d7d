"""Finds payments that must be verified again before their work begins: the wallet may be empty by now.

The script that grants a lease refuses work whose payment was verified too long ago. To spare processes these
refusals, the clock verifies the payments at the front of each queue shortly before their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from worker.payments.money_store import MoneyStore
from worker.store.client import as_texts

# How many executions at the front of a queue are checked, about once a second.
_FRONT = 32


@dataclass
class Rechecks(MoneyStore):
    """`queues`: lists in which bought work waits for a process."""

    queues: Sequence[str] = field(default=(), kw_only=True)

    def begin(self) -> list[str]:
        """Sends such payments back to verification; returns their executions."""
        ids: list[str] = []
        for queue in self.queues:
            ids += as_texts(self.client.lrange(queue, 0, _FRONT - 1))
        return [id for id in ids if self._scripts.value("recheck", id=id)]
