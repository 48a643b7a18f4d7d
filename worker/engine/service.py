"""Operations that doors may perform on executions: create, read, list, follow, signal, cancel."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import redis

from worker.capabilities.catalog import Catalog
from worker.capabilities.declare import Capability
from worker.core.errors import BadRequest, NotFound
from worker.core.ids import is_id, new_id
from worker.core.json import encode
from worker.core.states import Lane, Phase
from worker.engine.answers import CancelAnswer
from worker.engine.creation import CreatedExecution, NewExecution
from worker.engine.decisions import Decisions, OwnChannel
from worker.engine.events import Event
from worker.engine.listing import Filter, Page, read_page
from worker.engine.reader import BATCH
from worker.engine.record import Execution, ExecutionRow
from worker.engine.refusals import not_cancelled
from worker.engine.step_fields import file_field
from worker.engine.stored_files import files_of, input_of
from worker.engine.transitions import ExecutionStore
from worker.engine.watch import Watcher
from worker.files.blobs import INLINE_BYTES, read
from worker.files.store import FileRef, Files
from worker.store.outage import is_outage
from worker.store.scripts import ScriptCall

MOST_LABELS = 32
MOST_LABEL_NAME, MOST_LABEL_VALUE = 256, 1024
_HEARTBEAT = 5.0
# Interval and time limit for retrying an unavailable store.
_AWAY = 0.5
_PATIENCE = 30.0


class RemoteQueue(Protocol):
    """Creates executions of remote agents and assigns them."""

    def create(self, new: NewExecution, creation: ScriptCall) -> CreatedExecution: ...


class SignalSender(Protocol):
    """Delivers signals, which end waits and decide approvals."""

    def send(self, id: str, kind: str, payload: Any) -> None: ...


class Executions:
    """The engine's interface for doors."""

    def __init__(
        self,
        store: ExecutionStore,
        *,
        catalog: Catalog,
        files: Files,
        watcher: Watcher,
        push: Callable[[str], None],
        timeout_us: int,
        remote: RemoteQueue | None = None,
        signals: SignalSender | None = None,
    ) -> None:
        self._remote = remote
        self._signals = signals
        self._store = store
        self._catalog = catalog
        self._files = files
        self._watcher = watcher
        self.own_channel = OwnChannel(watcher, store.keys.prefix)
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
        """Returns (True, id) of a new execution, or (False, id) of the one with this idempotency key.

        `timeout_us` limits its total lifetime more tightly than the settings do.
        """
        new, ref = self._new(agent, input, door, labels, context, scope, key, id, timeout_us)
        if new.lane is Lane.REMOTE and self._remote is not None:
            creation = self._remote.create(new, self._store.creation(new))
            is_new, id = creation.is_new, creation.id
        else:
            is_new, id = self._store.create(new)
        if is_new and new.lane is Lane.QUEUE:
            self._push(id)
        if not is_new and ref is not None:
            self._files.delete(ref.key)
        return is_new, id

    def begin(self, agent: str, input: Any, *, door: str, labels: Mapping[str, str]) -> CreatedExecution:
        """Creates an execution, and reports whether a connected agent already got it."""
        new, _ = self._new(agent, input, door, labels, None, "", "", None, None)
        if new.lane is Lane.REMOTE and self._remote is not None:
            return self._remote.create(new, self._store.creation(new))
        self._store.create(new)
        if new.lane is Lane.QUEUE:
            self._push(new.id)
        return CreatedExecution(True, new.id, self.get(new.id).created)

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
    ) -> tuple[NewExecution, FileRef | None]:
        """Builds the new execution, and returns the file of a long input."""
        if id is not None and not is_id(id):
            raise BadRequest("the id is not a UUID", field="id", expected="a UUID in lower case")
        labels = _checked(dict(labels or {}))
        capability = self._catalog.get(agent)
        whole_life = self._timeout_us if timeout_us is None else min(timeout_us, self._timeout_us)
        # Until a work process has published its capabilities, an unknown name may be one of them.
        lane = lane_of(capability) if capability or self._catalog.published else Lane.QUEUE
        packed = encode(input)
        blob, ref = self._pack(packed)
        new = NewExecution(
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
        """The sequence number of the newest event."""
        return self._store.log_length(id)

    def input(self, execution: Execution) -> Any:
        return json.loads(input_of(self._files, execution))

    def output(self, execution: Execution) -> Any:
        """The output value; None if there is none yet, or if only files were produced."""
        if execution.output:
            return json.loads(execution.output)
        result = execution.result
        ref = result.get("value_ref")
        if not ref:
            return None
        content = read(self._files, FileRef(**ref))
        return content.decode() if result["type"] == "text" else json.loads(content)

    def streamed_text(self, execution: Execution) -> str:
        """The whole text of a completed stream, which is the last of its files."""
        return read(self._files, FileRef(**execution.result["files"][-1])).decode()

    def written(self, id: str, name: str) -> FileRef | None:
        """A file that the job wrote; works while the job is running, too."""
        stored = self._store.steps(id).get(file_field(name))
        return FileRef(**json.loads(stored)) if stored else None

    def cancel(
        self, id: str, reason: str = "cancelled by request", *, by: str = "operator", forfeit: bool = False
    ) -> Execution:
        """Cancels an execution. Refuses a seeker who would lose money, unless `forfeit` is set."""
        payload = encode({"reason": reason})
        answer, detail = self._store.cancel(self._known(id), payload, by=by, forfeit=forfeit)
        if answer is not CancelAnswer.CANCELLED:
            raise not_cancelled(id, answer, detail)
        return self.get(id)

    def discard(self, execution: Execution) -> None:
        """Removes a finished execution that nobody will ask for again."""
        for key in files_of(execution, self._store.steps(execution.id)):
            self._files.delete(key)
        self._store.purge(execution, execution.ended)

    def signal(self, id: str, signal_type: str, payload: Any) -> None:
        if self._signals is None:
            raise RuntimeError("this process was composed without a signal sender")
        self._signals.send(self._known(id), signal_type, payload)

    def events(self, id: str, after: int = 0, limit: int = BATCH) -> list[Event]:
        return self._store.events(id, max(0, after), limit)

    def follow(self, id: str, after: int = 0, *, until: float | None = None) -> Iterator[list[Event]]:
        """Yields new events as they arrive; an empty list is a heartbeat. Ends after the terminal event.

        Waits out a short outage of the store. Ends early when the store stays unavailable or this process is
        about to exit; clients then reconnect.
        """
        away_until = 0.0
        with self._watcher.watch(self._store.keys.log(id)) as watch:
            while True:
                try:
                    found, over = self._news(id, after)
                    away_until = 0.0
                except redis.RedisError as error:
                    if not is_outage(error):
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

    def decisions(self, id: str, payment: int = 0) -> Decisions:
        """What is told to a request that waits for the execution; `payment`: the one that it has claimed."""
        if payment:
            return self.own_channel.decisions(id, payment)
        return Decisions(self._watcher, self._store.keys.record(id))

    def wait(self, id: str, seconds: float) -> bool:
        """Whether the execution ended within the time."""
        return any(
            batch and batch[-1].terminal for batch in self.follow(id, until=time.monotonic() + seconds)
        )

    def page(self, filter: Filter, *, cursor: str = "", limit: int = 50) -> Page[Execution]:
        return read_page(self._store, self._store.summaries, filter, cursor=cursor, limit=limit)

    def rows(self, filter: Filter, *, cursor: str = "", limit: int = 50) -> Page[ExecutionRow]:
        """The same page, with what the API shows of each execution."""
        return read_page(self._store, self._store.rows, filter, cursor=cursor, limit=limit)

    def _known(self, id: str) -> str:
        if not is_id(id):
            raise NotFound(f"execution {id[:64]}")
        return id

    def _news(self, id: str, after: int) -> tuple[list[Event], bool]:
        """Returns the events after this sequence, and whether none will follow them."""
        found = self._store.events(id, after)
        if found:
            return found, False
        state = self._store.state(id)
        if state is not None and not state.terminal:
            return [], False
        # The terminal event may have been written between the two reads.
        return self._store.events(id, after), True

    def _pack(self, blob: bytes) -> tuple[bytes, FileRef | None]:
        if len(blob) <= INLINE_BYTES:
            return blob, None
        return b"null", self._files.put(blob, name="input.json", mime="application/json")


def lane_of(capability: Capability | None) -> Lane:
    """The lane in which an execution of this capability waits."""
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
