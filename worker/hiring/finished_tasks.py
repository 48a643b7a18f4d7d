"""Records of finished tasks that a process keeps: a replay reads only whether the store still has them."""

from __future__ import annotations

from collections import OrderedDict

from worker.core.states import Phase, State
from worker.payments.ledger import Reading

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
        self._left = most_bytes
        self._kept: OrderedDict[str, Reading] = OrderedDict()

    def get(self, id: str) -> Reading | None:
        return self._kept.get(id)

    def add(self, reading: Reading) -> None:
        if not is_final(reading):
            return
        self.drop(reading.execution.id)
        self._kept[reading.execution.id] = reading
        self._left -= _size(reading)
        while self._left < 0 and self._kept:
            self.drop(next(iter(self._kept)))

    def drop(self, id: str) -> None:
        dropped = self._kept.pop(id, None)
        if dropped is not None:
            self._left += _size(dropped)


def _size(reading: Reading) -> int:
    execution = reading.execution
    return _ENTRY_BYTES + len(execution.output) + len(execution.input) + len(execution.result_json)
