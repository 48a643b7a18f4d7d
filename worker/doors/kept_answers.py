"""Answers about finished tasks as they were sent last: a process renders each once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from worker.hiring.task import Task

MOST_BYTES = 4 << 20
_ENTRY_BYTES = 6_000


@dataclass(frozen=True, slots=True)
class ShownTask:
    """What depends on the task alone: the body, its status and its headers."""

    body: bytes
    status: int
    headers: dict[str, str]


class KeptAnswers:
    """Bounded by the bytes of their bodies."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._left = most_bytes
        self._kept: OrderedDict[str, ShownTask] = OrderedDict()

    def get(self, task: Task, render: Callable[[Task], ShownTask]) -> ShownTask:
        kept = self._kept.get(task.id)
        if kept is not None:
            return kept
        shown = render(task)
        if task.final:
            self._kept[task.id] = shown
            self._left -= len(shown.body) + _ENTRY_BYTES
        while self._left < 0 and self._kept:
            _, dropped = self._kept.popitem(last=False)
            self._left += len(dropped.body) + _ENTRY_BYTES
        return shown
