"""Runs tasks that the clock finds due in their own threads, so that slow calls do not delay a tick.

Nothing is decided here: every task begins with a script that checks first, so other clocks may run the
same task. A task that finds no room stays due for a later tick; one that hit a bug rests first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from worker.store.outage import REST, Resting, note

_NO_GROUPS: Mapping[str, int] = {}


class TaskPool:
    """Threads for named tasks. A task never runs twice at once in this process.

    At most `most` tasks run or wait for a thread; a task may belong to groups, each with its own limit.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        most: int,
        rest: float = REST,
        ended: Callable[[str], None] = lambda task: None,
    ) -> None:
        self._name = name
        self._most = most
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._resting = Resting(rest)
        # Called with the name of each task that has ended and left room.
        self._after_end = ended
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[frozenset[str], Future[bool]]] = {}

    @property
    def full(self) -> bool:
        with self._lock:
            return len(self._under_way) >= self._most

    def begin(
        self,
        task: str,
        work: Callable[[], object],
        *,
        groups: Mapping[str, int] = _NO_GROUPS,
        rests: bool = True,
    ) -> bool:
        """Runs the task if there is room, and says whether it does.

        `groups`: its groups, with the maximum number of tasks of each.
        `rests`: after a bug it is not retried for a while.
        """
        with self._lock:
            crowded = len(self._under_way) >= self._most or any(
                sum(group in others for others, _ in self._under_way.values()) >= most
                for group, most in groups.items()
            )
            if crowded or task in self._under_way or task in self._resting:
                return False
            try:
                future = self._executor.submit(self._run, task, work)
            except RuntimeError:  # closed meanwhile: other clocks run the task
                return False
            self._under_way[task] = frozenset(groups), future
        future.add_done_callback(lambda future: self._ended(task, future, rests=rests))
        return True

    @property
    def under_way(self) -> set[str]:
        with self._lock:
            return set(self._under_way)

    def close(self, grace_s: float) -> None:
        """Gives running tasks this long to end; tasks not begun stay due for other clocks."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [future for _, future in self._under_way.values()]
        wait(left, timeout=grace_s)

    def _run(self, task: str, work: Callable[[], object]) -> bool:
        """Returns whether the next tick may retry the task: yes after an outage, no after a bug."""
        try:
            work()
        except Exception as error:
            return note(error, self._name, task=task.split(" ")[0])
        return True

    def _ended(self, task: str, future: Future[bool], *, rests: bool) -> None:
        with self._lock:
            self._under_way.pop(task, None)
            failed = not future.cancelled() and future.exception() is None and not future.result()
            if failed and rests:
                self._resting.add(task)
        self._after_end(task)
