"""Records of finished tasks that a process keeps: a replay reads only whether the store still has them."""

from __future__ import annotations

from worker.core.bounded_cache import BoundedCache
from worker.core.states import Phase, State
from worker.payments.ledger_reader import Reading

MOST_BYTES = 4 << 20
# What a record costs beside its output.
_ENTRY_BYTES = 6_000


def is_final(reading: Reading) -> bool:
    """Whether nothing that an answer shows can change any more: completed, by its only payment."""
    execution, money = reading.execution, reading.money
    done = execution.state is State.COMPLETED and execution.phase is Phase.DONE
    return done and len(money.payments) == 1 and money.paid == 1 and not money.payments[0].refund


class FinishedTasks:
    """The records read last, bounded by their size."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._kept: BoundedCache[Reading] = BoundedCache(most_bytes)

    def get(self, id: str) -> Reading | None:
        return self._kept.get(id)

    def add(self, reading: Reading) -> None:
        if is_final(reading):
            self._kept.add(reading.execution.id, reading, _size(reading))

    def drop(self, id: str) -> None:
        self._kept.drop(id)


def _size(reading: Reading) -> int:
    execution = reading.execution
    return _ENTRY_BYTES + len(execution.output) + len(execution.input) + len(execution.result_json)
