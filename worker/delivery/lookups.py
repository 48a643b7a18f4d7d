"""Resolves strangers' webhook hosts in the web process: few at once, with a short time-out.

A host's owner decides how slowly it resolves, and lookups share a few threads with everything else that the
process resolves. This lookup only gives the seeker early feedback: each call of the webhook checks again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from worker.delivery.outbound import Resolver, SystemResolver, TimedOut, Unreachable

MOST_AT_ONCE = 2
SECONDS = 2.0
# An abandoned lookup keeps running and frees its place when it ends.
_ABANDONED_SECONDS = 120.0


class FewLookups:
    """A resolver that gives up when all places are taken or the answer takes too long."""

    def __init__(
        self, resolver: Resolver | None = None, *, most: int = MOST_AT_ONCE, seconds: float = SECONDS
    ) -> None:
        self._resolver = resolver or SystemResolver()
        self._places = threading.BoundedSemaphore(most)
        self._seconds = seconds

    def resolve(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """Returns all addresses; raises TimedOut where nothing is known about the host."""
        if not self._places.acquire(blocking=False):
            raise TimedOut()
        found: queue.SimpleQueue[Sequence[str] | Unreachable | TimedOut] = queue.SimpleQueue()

        def look_up() -> None:
            try:
                found.put(self._resolver.resolve(host, port, _ABANDONED_SECONDS))
            except (Unreachable, TimedOut) as fault:
                found.put(fault)
            finally:
                self._places.release()

        threading.Thread(target=look_up, name="webhook-lookup", daemon=True).start()
        try:
            answer = found.get(timeout=min(timeout, self._seconds))
        except queue.Empty as error:
            raise TimedOut() from error
        if isinstance(answer, Unreachable | TimedOut):
            raise answer
        return answer
