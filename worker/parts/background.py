"""Work that outlives its request, on threads that are used again: starting one costs more than most work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from worker.store.outage import note

# Threads that wait for work; more run when there is more work. Each has a few kB.
_IDLE = 256

Work = Callable[[], object]


class _Waiting:
    """An idle thread's next work."""

    def __init__(self) -> None:
        self._work: Work | None = None
        self._given = threading.Lock()
        self._given.acquire()

    def give(self, work: Work) -> None:
        self._work = work
        self._given.release()

    def take(self) -> Work:
        self._given.acquire()
        work, self._work = self._work, None
        if work is None:
            raise RuntimeError("woken without work")
        return work


class Background:
    """Runs each work at once, as paid work of the store's connections."""

    def __init__(self) -> None:
        # Taking from a list and adding to it are one step each, which needs no lock.
        self._idle: list[_Waiting] = []

    def __call__(self, work: Work) -> None:
        try:
            waiting = self._idle.pop()
        except IndexError:
            waiting = _Waiting()
            threading.Thread(target=self._run, args=(waiting,), name="outlives-request", daemon=True).start()
        waiting.give(work)

    def _run(self, waiting: _Waiting) -> None:
        while True:
            _do(waiting.take())
            if len(self._idle) >= _IDLE:
                return
            self._idle.append(waiting)


def _do(work: Work) -> None:
    """A function of its own: an idle thread must not keep what its last work was about."""
    try:
        work()
    except Exception as error:  # nobody waits for it; the clock completes the rest
        note(error, "web.background")
