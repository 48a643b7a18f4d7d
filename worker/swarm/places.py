"""Room for the swarm's work: what a kernel may have in a day and at a time, never the last place of a lane.

A place is kept by one script from the moment a request is admitted until its work has ended. Whoever sees the
end gives it back; what a lost process kept is found when it is missed.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker.errors import BadRequest, Problem, Unavailable
from worker.executions.load import CLOCK_STOPPED_US, LoadMeter
from worker.executions.states import Lane, Phase, State
from worker.executions.store import PRESENT_US, ExecutionStore
from worker.ids import new_id
from worker.queue.rq import QUEUE
from worker.swarm.kernels import Kernel

DOOR = "swarm"
# An admitted request creates its record within this time, or never.
_LOST_US = 60_000_000
_ASK_AGAIN = 0.05
_LOOK_AGAIN = 1.0
_MOST_RUNNING = 500


@dataclass(frozen=True, slots=True)
class Taken:
    """The execution that a request is about. `known`: it has a record; if not, `at` is the store's time."""

    id: str
    known: bool
    at: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """What admission has to know of a request; `counted` ones use up the kernel's day."""

    kernel: Kernel
    lane: Lane
    scope: str
    key: str
    expires_us: int = 0
    counted: bool = True


class Busy(Unavailable):
    """No place became free in time. To a kernel 503 means: run the task again, as a new one."""

    code = "OVERLOADED"
    message = "the runtime is busy"
    advice = "Try again; the task was not run."


class DayUsedUp(Unavailable):
    """The kernel had its executions for today."""

    code = "DAILY_LIMIT"
    message = "the kernel has used up its executions for today"
    advice = "Try again tomorrow (UTC), or ask the operator for a higher limit; the task was not run."


class Expired(BadRequest):
    """The task's time is over."""

    code, status = "TASK_EXPIRED", 422
    message = "the task has expired"
    advice = "Create a new task with a later expiry_ms; this one was not run."


class Places:
    """Admission, and the way back."""

    def __init__(self, store: ExecutionStore, load: LoadMeter, *, patience: float) -> None:
        self._store = store
        self._load = load
        self._patience = patience
        self._freed = threading.Condition()
        self._lines: dict[tuple[str, Lane], threading.Lock] = defaultdict(threading.Lock)

    def known(self, scope: str, key: str) -> str | None:
        """The execution that was made for this key before."""
        found: Any = self._store.client.get(self._store.keys.idempotency(scope, key))
        return found.decode() if found else None

    def take(self, request: Request) -> Taken:
        """A place, or the execution that is there already; waits for a while when there is no place now."""
        until = time.monotonic() + self._patience
        taken = self._ask(request, heal=True)
        if taken is not None:
            return taken
        # One request of a kernel asks again, the others wait behind it.
        line = self._lines[request.kernel.name, request.lane]
        if not line.acquire(timeout=self._patience):
            raise _busy()
        try:
            return self._keep_asking(request, until)
        finally:
            line.release()

    def release(self, lane: Lane, id: str, kernel: str) -> None:
        """Gives back the place of an execution that has ended."""
        self._forget(lane, [f"{id} {kernel}".encode()])
        with self._freed:
            self._freed.notify_all()

    def _keep_asking(self, request: Request, until: float) -> Taken:
        look = 0.0
        while True:
            now = time.monotonic()
            taken = self._ask(request, heal=now >= look)
            look = now + _LOOK_AGAIN if now >= look else look
            if taken is not None:
                return taken
            if now >= until:
                raise _busy()
            with self._freed:
                self._freed.wait(min(_ASK_AGAIN, until - now))

    def _ask(self, request: Request, *, heal: bool) -> Taken | None:
        if self._load.memory_full():
            raise Busy("the runtime has no memory for new work", retry_after=60)
        reply = self._admit(request)
        match reply[0]:
            case b"known":
                return Taken(reply[1].decode(), True)
            case b"admitted":
                return Taken(reply[1].decode(), False, int(reply[2]))
            case b"full":
                if heal and self._forget_ended(request.lane, int(reply[1]), reply[2:]):
                    return self._ask(request, heal=False)
                return None
            case b"expired":
                raise Expired(field="task_contract.expiry_ms", expected="a time to come")
            case b"spent":
                raise DayUsedUp(retry_after=int(reply[1]), expected=f"at most {request.kernel.per_day} a day")
            case b"stopped":
                raise Busy("the runtime cannot finish work right now", retry_after=10)
            case _:
                raise Busy("nobody takes work from this lane", retry_after=10)

    def _admit(self, request: Request) -> list[bytes]:
        keys, lane, kernel = self._store.keys, request.lane, request.kernel
        bounded = lane is not Lane.REMOTE
        reply: list[bytes] = self._store.scripts(
            "swarm_admit",
            [
                keys.idempotency(request.scope, request.key),
                keys.swarm("at", keys.idempotency(request.scope, request.key)),
                keys.swarm("places", lane),
                keys.swarm("day", kernel.name),
                keys.express if lane is Lane.EXPRESS else f"rq:queue:{QUEUE}",
                keys.takers(lane),
                keys.ticks,
            ],
            [
                new_id(),
                kernel.name,
                kernel.per_day if request.counted else 0,
                kernel.share,
                PRESENT_US,
                CLOCK_STOPPED_US,
                request.expires_us,
                "1" if bounded else "",
                self._others(lane) if bounded else 0,
            ],
        )
        return reply

    def _others(self, lane: Lane) -> int:
        """How many processes of the lane run something that is not the swarm's."""
        client, keys = self._store.client, self._store.keys
        running: Any = client.zrange(keys.by_state(State.RUNNING), 0, _MOST_RUNNING - 1)
        if not running:
            return 0
        with client.pipeline(transaction=False) as pipe:
            for id in running:
                pipe.hmget(keys.record(id.decode()), "lane", "phase", "door")
            rows = pipe.execute()
        # Work that only waits for its settlement holds no process.
        busy = [lane.encode(), Phase.WORKING.encode()]
        return sum([in_lane, phase] == busy and door != DOOR.encode() for in_lane, phase, door in rows)

    def _forget_ended(self, lane: Lane, at: int, held: Sequence[bytes]) -> bool:
        """Frees places whose executions have ended without a witness, or were never made."""
        rows = [(member, int(float(since))) for member, since in zip(held[::2], held[1::2], strict=True)]
        with self._store.client.pipeline(transaction=False) as pipe:
            for member, _ in rows:
                pipe.hget(self._store.keys.record(member[:36].decode()), "state")
            states = pipe.execute()
        gone = [
            member
            for (member, since), state in zip(rows, states, strict=True)
            if (at - since > _LOST_US if state is None else State(state.decode()).terminal)
        ]
        return bool(gone) and self._forget(lane, gone)

    def _forget(self, lane: Lane, members: Sequence[bytes]) -> bool:
        return bool(self._store.client.zrem(self._store.keys.swarm("places", lane), *members))


def _busy() -> Problem:
    return Busy(retry_after=2)
