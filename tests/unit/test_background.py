"""Work that outlives its request: run at once, on threads that are used again."""

from __future__ import annotations

import threading
import weakref
from functools import partial

from tests.waiting import eventually
from worker.parts.background import Background


def test_work_runs_at_once_however_much_there_is() -> None:
    """Each of a hundred works that wait for each other has a thread."""
    background, together = Background(), threading.Barrier(101)
    for _ in range(100):
        background(lambda: together.wait(30))
    together.wait(30)


def test_threads_are_used_again() -> None:
    """Works that follow each other take one thread, also after one has failed."""
    background = Background()
    seen: list[int] = []

    def work() -> None:
        seen.append(threading.get_ident())
        raise ValueError("a bug")

    for _ in range(5):
        background(work)
        eventually(lambda: background._idle, 30, "the thread to be idle again")
    assert len(set(seen)) == 1


class Body:
    """What a request came with."""


def test_an_idle_thread_keeps_nothing_of_its_work() -> None:
    """Bodies of requests that were answered long ago would stay in memory with the threads."""
    background = Background()
    for _ in range(2):
        body = Body()
        kept = weakref.ref(body)
        background(partial(isinstance, body, Body))
        del body
        eventually(lambda: background._idle, 30, "the thread to be idle again")
        eventually(lambda kept=kept: kept() is None, 30, "the body to be gone")  # type: ignore[misc]
