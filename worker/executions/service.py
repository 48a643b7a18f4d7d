"""What doors may do with executions: create, read, list, follow, signal, cancel."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis

from worker.agents.blobs import FILE, INLINE_BYTES, read
from worker.agents.catalog import Catalog
from worker.agents.declare import Capability
from worker.agents.output import encode
from worker.delivery.files import FileRef, Files
from worker.errors import BadRequest, Conflict, NotFound
from worker.executions.assignment import Assignment, Begun
from worker.executions.events import Event
from worker.executions.record import Execution
from worker.executions.refusals import ended
from worker.executions.signals import Signals
from worker.executions.states import Lane, Phase
from worker.executions.store import BATCH, ExecutionStore, New
from worker.executions.watch import Watcher
from worker.ids import is_id, new_id
from worker.store import unavailable

MOST_LABELS = 32
# A page looks at no more entries than this; the cursor goes on from there.
WALK = 1_000
MOST_LABEL_NAME, MOST_LABEL_VALUE = 256, 1024
_MOST_ROWS = 250
_HEARTBEAT = 5.0
# How often a store that went away is asked again, and how long.
_AWAY = 0.5
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Filter:
    """What a list is narrowed to."""

    state: str = ""
    agent: str = ""
    door: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, execution: Execution) -> bool:
        return (
            (not self.state or execution.state == self.state)
            and (not self.agent or execution.agent == self.agent)
            and (not self.door or execution.door == self.door)
            and all(execution.labels.get(name) == value for name, value in self.labels)
        )


@dataclass(frozen=True, slots=True)
class Page:
    executions: list[Execution]
    next_cursor: str


class Executions:
    """The engine as doors see it."""

    def __init__(
        self,
        store: ExecutionStore,
        *,
        catalog: Catalog,
        files: Files,
        watcher: Watcher,
        push: Callable[[str], None],
        timeout_us: int,
        remote: Assignment | None = None,
        signals: Signals | None = None,
    ) -> None:
        self._remote = remote
        self._signals = signals
        self._store = store
        self._catalog = catalog
        self._files = files
        self._watcher = watcher
        self._push = push
        self._timeout_us = timeout_us

    def create(
        self,
        agent: str,
        input: Any,
        *,
        door: str,
        labels: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
        scope: str = "",
        key: str = "",
        id: str | None = None,
        timeout_us: int | None = None,
    ) -> tuple[bool, str]:
        """A new execution, or (False, id) of the one that has this idempotency key.

        `timeout_us` bounds its whole life closer than the settings do.
        """
        new, ref = self._new(agent, input, door, labels, context, scope, key, id, timeout_us)
        if new.lane is Lane.REMOTE and self._remote is not None:
            begun = self._remote.create(new, self._store.creation(new))
            made, id = begun.made, begun.id
        else:
            made, id = self._store.create(new)
        if made and new.lane is Lane.QUEUE:
            self._push(id)
        if not made and ref is not None:
            self._files.delete(ref.key)
        return made, id

    def begin(self, agent: str, input: Any, *, door: str, labels: Mapping[str, str]) -> Begun:
        """A new execution, and whether an agent that is connected has it already."""
        new, _ = self._new(agent, input, door, labels, None, "", "", None, None)
        if new.lane is Lane.REMOTE and self._remote is not None:
            return self._remote.create(new, self._store.creation(new))
        self._store.create(new)
        if new.lane is Lane.QUEUE:
            self._push(new.id)
        return Begun(True, new.id, self.get(new.id).created)

    def _new(
        self,
        agent: str,
        input: Any,
        door: str,
        labels: Mapping[str, str] | None,
        context: Mapping[str, Any] | None,
        scope: str,
        key: str,
        id: str | None,
        timeout_us: int | None,
    ) -> tuple[New, FileRef | None]:
        """What is to be made, and the file that a long input was put into."""
        if id is not None and not is_id(id):
            raise BadRequest("the id is not a UUID", field="id", expected="a UUID in lower case")
        labels = _checked(dict(labels or {}))
        capability = self._catalog.get(agent)
        whole_life = self._timeout_us if timeout_us is None else min(timeout_us, self._timeout_us)
        # Before any work process has said what it offers, an unknown name may be one of theirs.
        lane = lane_of(capability) if capability or self._catalog.published else Lane.QUEUE
        packed = encode(input)
        blob, ref = self._pack(packed)
        new = New(
            id=id or new_id(),
            agent=agent,
            door=door,
            lane=lane,
            input=blob,
            input_ref=encode(asdict(ref)) if ref else b"",
            labels=labels,
            timeout_us=whole_life,
            run_limit_us=int(capability.time_limit * 1e6) if capability else whole_life,
            context=encode(dict(context)) if context else b"",
            digest=hashlib.sha256(packed).hexdigest(),
            attempts=capability.attempts if capability else 3,
            version=capability.version if capability else "",
            phase=Phase.WORKING,
            scope=scope,
            key=key,
        )
        return new, ref

    def get(self, id: str) -> Execution:
        found = self._store.get(id) if is_id(id) else None
        if found is None:
            raise NotFound(f"execution {id[:64]}")
        return found

    def many(self, ids: Sequence[str]) -> list[Execution]:
        return [found for found in self._store.get_many(ids) if found is not None]

    def last_sequence(self, id: str) -> int:
        """The sequence of the newest event."""
        return self._store.log_length(id)

    def input(self, execution: Execution) -> Any:
        ref = execution.raw.get("input_ref")
        return json.loads(read(self._files, FileRef(**json.loads(ref))) if ref else execution.input)

    def output(self, execution: Execution) -> Any:
        """The value that came out; None while there is none, or when only files did."""
        ref = execution.result.get("value_ref")
        if ref:
            content = read(self._files, FileRef(**ref))
            return content.decode() if execution.result["type"] == "text" else json.loads(content)
        return json.loads(execution.output) if execution.output else None

    def written(self, id: str, name: str) -> FileRef | None:
        """A file that the job wrote, also while the work goes on."""
        kept = self._store.steps(id).get(f"{FILE}{name}")
        return FileRef(**json.loads(kept)) if kept else None

    def cancel(self, id: str, reason: str = "cancelled by request", *, by: str = "operator") -> Execution:
        what, detail = self._store.cancel(self._known(id), encode({"reason": reason}), by=by)
        if what == "unknown":
            raise NotFound(f"execution {id}")
        if what == "terminal":
            raise ended(id, detail)
        if what == "sealed":
            raise Conflict(f"the work of execution {id} is done; only its payment is open")
        return self.get(id)

    def signal(self, id: str, signal_type: str, payload: Any) -> None:
        assert self._signals is not None, "whoever sends signals is given what they decide about"
        self._signals.send(self._known(id), signal_type, payload)

    def events(self, id: str, after: int = 0, limit: int = BATCH) -> list[Event]:
        return self._store.events(id, max(0, after), limit)

    def follow(self, id: str, after: int = 0, *, until: float | None = None) -> Iterator[list[Event]]:
        """New events as they come; an empty list is a heartbeat. Ends after the terminal event.

        A store that is away for a while is waited for. A stream that cannot go on, because the store stays
        away or this process is about to end, ends early: whoever reads it comes back.
        """
        away_until = 0.0
        with self._watcher.watch(self._store.keys.log(id)) as watch:
            while True:
                try:
                    found, over = self._news(id, after)
                    away_until = 0.0
                except redis.RedisError as error:
                    if unavailable(error) is None:
                        raise
                    away_until = away_until or time.monotonic() + _PATIENCE
                    if watch.closed or time.monotonic() > min(away_until, until or away_until):
                        return
                    watch.wait(_AWAY)
                    continue
                if found:
                    after = found[-1].sequence
                    yield found
                if over or (found and found[-1].terminal) or (watch.closed and until is None):
                    return
                if len(found) == BATCH:
                    continue
                left = _HEARTBEAT if until is None else min(_HEARTBEAT, until - time.monotonic())
                if left <= 0:
                    return
                if not watch.wait(left):
                    yield []

    def wait(self, id: str, seconds: float) -> bool:
        """Whether the execution ended within the time."""
        return any(
            batch and batch[-1].terminal for batch in self.follow(id, until=time.monotonic() + seconds)
        )

    def page(self, filter: Filter, *, cursor: str = "", limit: int = 50) -> Page:
        """Newest first. Walks the one list that narrows best, and checks the other filters on the way."""
        index = self._index(filter)
        at = _read_cursor(cursor) if cursor else None
        found: list[Execution] = []
        walked, step = 0, limit + 1
        while walked < WALK:
            most = min(step, WALK - walked)
            rows = self._store.page(index, cursor=at, most=most)
            shown = self._store.summaries([id for id, _ in rows])
            for (id, created), execution in zip(rows, shown, strict=True):
                if len(found) == limit:
                    return Page(found, _cursor(at))
                at = created, id
                if execution is not None and filter.matches(execution):
                    found.append(execution)
            if len(rows) < most:
                return Page(found, "")
            walked += len(rows)
            # Few of them matched: look at more at a time.
            step = min(2 * step, _MOST_ROWS)
        return Page(found, _cursor(at))

    def _index(self, filter: Filter) -> str:
        keys = self._store.keys
        lists = [keys.by_label(name, value) for name, value in filter.labels]
        lists += [keys.by_state(filter.state)] if filter.state else []
        lists += [keys.by_agent(filter.agent)] if filter.agent else []
        lists += [keys.by_door(filter.door)] if filter.door else []
        return self._store.smallest(lists or [keys.everything])

    def _known(self, id: str) -> str:
        if not is_id(id):
            raise NotFound(f"execution {id[:64]}")
        return id

    def _news(self, id: str, after: int) -> tuple[list[Event], bool]:
        """Events after this sequence, and whether none will follow them."""
        found = self._store.events(id, after)
        if found:
            return found, False
        state = self._store.state(id)
        if state is not None and not state.terminal:
            return [], False
        # The end may have been written between the two readings.
        return self._store.events(id, after), True

    def _pack(self, blob: bytes) -> tuple[bytes, FileRef | None]:
        if len(blob) <= INLINE_BYTES:
            return blob, None
        return b"null", self._files.put(blob, name="input.json", mime="application/json")


def lane_of(capability: Capability | None) -> Lane:
    """Where an execution of this capability waits."""
    if capability is None or capability.remote:
        return Lane.REMOTE
    return Lane.EXPRESS if capability.inline else Lane.QUEUE


def _checked(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MOST_LABELS:
        raise BadRequest(
            "too many labels", field="labels", expected=f"at most {MOST_LABELS}", received=len(labels)
        )
    for name, value in labels.items():
        if len(name.encode()) > MOST_LABEL_NAME or len(value.encode()) > MOST_LABEL_VALUE:
            raise BadRequest(
                "a label is too long",
                field="labels",
                expected=f"names of at most {MOST_LABEL_NAME} bytes, values of at most {MOST_LABEL_VALUE}",
            )
    return labels


def _cursor(at: tuple[int, str] | None) -> str:
    return base64.urlsafe_b64encode(f"{at[0]}|{at[1]}".encode()).decode() if at else ""


def _read_cursor(cursor: str) -> tuple[int, str]:
    try:
        created, id = base64.urlsafe_b64decode(cursor.encode()).decode().split("|")
        if not (created.isascii() and created.isdigit() and len(created) < 17 and is_id(id)):
            raise ValueError(cursor)
    except (binascii.Error, ValueError) as broken:
        raise BadRequest("the cursor is not one of ours", field="cursor") from broken
    return int(created), id
