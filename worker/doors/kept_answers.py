"""Answers about finished tasks as they were sent last: a process renders each once."""

from __future__ import annotations

from collections.abc import Callable

from worker.core.bounded_cache import BoundedCache
from worker.doors.answers import PlainAnswer
from worker.hiring.task import Task
from worker.payments.payment import ExecutionMoney

MOST_BYTES = 4 << 20
_ENTRY_BYTES = 6_000
# When the task ended, and its money: a store that has lost its last writes may end the task otherwise.
_Mark = tuple[int, ExecutionMoney]


class KeptAnswers:
    """Bounded by the bytes of their bodies. An answer is kept with what tells it from a later one."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._kept: BoundedCache[tuple[_Mark, PlainAnswer]] = BoundedCache(most_bytes)

    def get(self, task: Task, render: Callable[[Task], PlainAnswer]) -> PlainAnswer:
        mark = task.execution.ended, task.money
        kept = self._kept.get(task.id)
        if kept is not None and kept[0] == mark:
            return kept[1]
        shown = render(task)
        if task.final:
            self._kept.add(task.id, (mark, shown), len(shown.body) + _ENTRY_BYTES)
        return shown
