"""Limits how many of the process's streams each group of callers may hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from worker.core.errors import Unavailable

MOST = 1_000
MOST_OF_ONE_TASK = 8
# Shared by streams of tasks whose wallet has paid nothing yet.
MOST_OF_NEWCOMERS = 250


class StreamPlaces:
    """Counts open streams: per task, of all newcomers, and in total."""

    def __init__(
        self, most: int = MOST, of_one_task: int = MOST_OF_ONE_TASK, of_newcomers: int = MOST_OF_NEWCOMERS
    ) -> None:
        self._limits = {"all": most, "newcomers": of_newcomers}
        self._of_one_task = of_one_task
        self._open: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, task_id: str, *, newcomer: bool) -> Callable[[], None]:
        """Takes a place and returns the function that releases it; raises Unavailable if none is free."""
        groups = ["all", f"task {task_id}", *(["newcomers"] if newcomer else [])]
        with self._lock:
            for group in groups:
                if self._open[group] >= self._limits.get(group, self._of_one_task):
                    raise Unavailable(
                        "too many streams are open",
                        code="WORKER_BUSY",
                        retry_after=10,
                        charge_known=False,
                        limit=group.partition(" ")[0],
                    )
            self._open.update(groups)
        return lambda: self._give_back(groups)

    def _give_back(self, groups: list[str]) -> None:
        with self._lock:
            self._open.subtract(groups)
            for group in groups:
                if not self._open[group]:
                    del self._open[group]
            groups.clear()  # a response may be closed twice
