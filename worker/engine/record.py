"""The record of one execution, as read from the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.core.states import Lane, Phase, State
from worker.store.data_model import HIRE_LABELS

# Fields shown in a list of executions.
SUMMARY = (
    "id",
    "agent",
    "door",
    "lane",
    "state",
    "phase",
    "attempt",
    "attempts",
    "fence",
    "created",
    "updated",
    "ends_by",
    "started",
    "first_started",
    "ended",
    "progress",
    "message",
    "labels",
    "contract",
)

# Fields of a row in the API's list.
ROW = ("id", "agent", "door", "state", "created", "updated", "labels", "contract")


# How a stored field is read. One that is empty or absent has its attribute's default.
_READERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("id", "agent", "door", "session", "worker", "digest", "version"), bytes.decode),
    **dict.fromkeys(("message", "scope", "key", "sealed_by", "contract", "parked"), bytes.decode),
    **dict.fromkeys(("attempt", "attempts", "fence", "created", "updated", "ends_by", "run_until"), int),
    **dict.fromkeys(("started", "first_started", "sealed", "ended", "said", "marks"), int),
    **dict.fromkeys(("contract_created", "retries", "retries_used", "inputs_used"), int),
    **dict.fromkeys(("input", "input_ref", "context", "output", "result", "error", "body", "hooks"), bytes),
    "lane": {lane.encode(): lane for lane in Lane}.__getitem__,
    "state": {state.encode(): state for state in State}.__getitem__,
    "phase": {phase.encode(): phase for phase in Phase}.__getitem__,
    "progress": float,
    "resumed": b"1".__eq__,
    "before_work": bool,
}
_ATTRIBUTES = {"said": "streamed", "context": "context_json", "result": "result_json", "error": "error_json"}
_FIELDS = {name: (_ATTRIBUTES.get(name, name), read) for name, read in _READERS.items()}
_REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("id", "agent", "door"), ""),
    **dict.fromkeys(("attempt", "attempts", "fence", "created", "updated", "ends_by"), 0),
}


@dataclass(frozen=True, slots=True)
class ExecutionRow:
    """An execution in the API's list: reading one costs a quarter of reading a summary."""

    id: str
    agent: str
    door: str
    state: State
    created: int
    updated: int
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a capability, as far as Python reads it; scripts keep more fields in the record.

    Times are in microseconds. JSON stays bytes until its value is requested. A summary has only the fields
    in `SUMMARY`; the others keep their defaults.
    """

    id: str
    agent: str
    door: str
    lane: Lane
    state: State
    phase: Phase
    attempt: int
    attempts: int
    fence: int
    created: int
    updated: int
    ends_by: int
    run_until: int = 0
    started: int = 0
    first_started: int = 0
    sealed: int = 0
    ended: int = 0
    session: str = ""
    worker: str = ""
    digest: str = ""
    version: str = ""
    progress: float | None = None
    message: str = ""
    streamed: int = 0
    marks: int = 0
    labels: dict[str, str] = field(default_factory=dict)

    # Input: its JSON, or a reference to the file that holds it (see `stored_files.input_of`).
    input: bytes = field(default=b"null", repr=False)
    input_ref: bytes = field(default=b"", repr=False)
    context_json: bytes = field(default=b"", repr=False)
    scope: str = ""
    key: str = ""

    # Output. `sealed_by` is empty until the work is sealed.
    output: bytes = field(default=b"", repr=False)
    result_json: bytes = field(default=b"", repr=False)
    error_json: bytes = field(default=b"", repr=False)
    sealed_by: str = ""
    resumed: bool = False

    # Contract fields; empty for unsold work. `parked`: "retry" or "input" while waiting for the seeker's
    # next attempt. `body`: how an identical input is recognised, see `hiring.task`.
    contract: str = ""
    contract_created: int = 0
    before_work: bool = False
    body: bytes = field(default=b"", repr=False)
    hooks: bytes = field(default=b"", repr=False)
    parked: str = ""
    retries: int = 0
    retries_used: int = 0
    inputs_used: int = 0

    @property
    def result(self) -> dict[str, Any]:
        """What was delivered: a type and its deliverables. Empty until the work is sealed."""
        return _object(self.result_json)

    @property
    def output_bytes(self) -> int:
        """The size of the output value, wherever it is stored."""
        ref = self.result.get("value_ref")
        return int(ref["size"]) if ref else len(self.output)

    @property
    def error(self) -> dict[str, Any]:
        return _object(self.error_json)

    @property
    def context(self) -> dict[str, Any]:
        """What the door passed to the agent besides the input: terms, profile, stage and the like."""
        return _object(self.context_json)


def decode(flat: Sequence[bytes]) -> Execution:
    """Reads a record from the store's flat field, value, ... reply."""
    return from_mapping({flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)})


def from_values(names: Sequence[str], values: Sequence[bytes | None]) -> Execution | None:
    """Reads a record from these fields only; None when there is no record."""
    raw = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return from_mapping(raw) if raw else None


def row_from_values(values: Sequence[bytes | None]) -> ExecutionRow | None:
    """Reads a record from the fields in `ROW`; None when there is no record."""
    id, agent, door, state, created, updated, labels, contract = values
    if not id:
        return None
    return ExecutionRow(
        id=id.decode(),
        agent=(agent or b"").decode(),
        door=(door or b"").decode(),
        state=State((state or b"").decode()),
        created=int(created or 0),
        updated=int(updated or 0),
        labels=_labels(labels, door, contract),
    )


def from_mapping(raw: Mapping[str, bytes]) -> Execution:
    """Reads all of a record's fields that Python knows."""
    known = dict(_REQUIRED)
    for name, value in raw.items():
        known_field = _FIELDS.get(name)
        if known_field is not None and value:
            attribute, read = known_field
            known[attribute] = read(value)
    known["labels"] = _labels(raw.get("labels"), raw.get("door"), raw.get("contract"))
    return Execution(**known)


def _labels(labels: bytes | None, door: bytes | None, contract: bytes | None) -> dict[str, str]:
    """Bought work that has no other labels than its door and its contract does not repeat them."""
    if labels is None and contract is not None:
        return dict(zip(HIRE_LABELS, ((door or b"").decode(), contract.decode()), strict=True))
    return _object(labels or b"")


def _object(blob: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(blob) if blob else {}
    return decoded or {}
