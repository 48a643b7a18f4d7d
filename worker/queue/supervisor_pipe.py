"""A work process's link to its parent: a pipe for requests, and a page that the parent looks at."""

from __future__ import annotations

import os
from collections.abc import Sequence

from worker.engine.record import Execution
from worker.queue.status_page import StatusPage

REPLACE, KILL, SIGNED_ON = b"replace", b"kill", b"signed on"


class SupervisorPipe:
    """The parent acts at once on what is written to the pipe, and kills a child that closes it."""

    def __init__(self, fd: int, page: StatusPage) -> None:
        self._fd = fd
        self._page = page
        self._signed_on = False

    def running(self, execution: Execution, seconds: float) -> None:
        self._page.running(execution.id, execution.fence, seconds)
        self._page.beat()

    def asks(self, runs: Sequence[tuple[str, str]]) -> None:
        """The leases of the next runs are asked for with the seal of this one."""
        self._page.asks(runs)

    def idle(self) -> None:
        self._page.idle()

    def beat(self) -> None:
        self._page.beat()

    def signed_on(self) -> None:
        """The store lists this process among those that take work; the parent is told once."""
        if not self._signed_on:
            self._signed_on = True
            self._write(SIGNED_ON)

    @property
    def relieved(self) -> bool:
        """Whether the process that replaces this one takes work."""
        return self._page.relieved

    def replace_me(self) -> None:
        self._write(REPLACE)

    def kill_me(self) -> None:
        self._write(KILL)

    def _write(self, request: bytes) -> None:
        os.write(self._fd, request + b"\n")
