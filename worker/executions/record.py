"""The record of one execution, as read from the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.executions.states import Lane, Phase, State

# What a list of executions shows.
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
)


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a capability. JSON of others is kept as bytes until somebody asks for it."""

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
    ended: int = 0
    session: str = ""
    worker: str = ""
    digest: str = ""
    progress: float | None = None
    message: str = ""
    said: int = 0
    marks: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    raw: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def input(self) -> bytes:
        """The input's JSON, or a reference to a file that holds it: see `Blobs`."""
        return self.raw.get("input", b"null")

    @property
    def output(self) -> bytes:
        return self.raw.get("output", b"")

    @property
    def result(self) -> dict[str, Any]:
        """What was delivered: a type and its deliverables. Empty until the work is sealed."""
        return _object(self.raw.get("result", b""))

    @property
    def error(self) -> dict[str, Any]:
        return _object(self.raw.get("error", b""))

    @property
    def context(self) -> dict[str, Any]:
        """What the door told the agent beside the input: terms, profile, stage and the like."""
        return _object(self.raw.get("context", b""))


def decode(flat: Sequence[bytes]) -> Execution:
    """A record from the flat field, value, ... answer of the store."""
    return from_mapping({flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)})


def from_values(names: Sequence[str], values: Sequence[bytes | None]) -> Execution | None:
    """A record of which only these fields were read; None when there is no record."""
    raw = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return from_mapping(raw) if raw else None


def from_mapping(raw: Mapping[str, bytes]) -> Execution:
    def text(name: str) -> str:
        return raw.get(name, b"").decode()

    def whole(name: str) -> int:
        return int(raw.get(name) or 0)

    progress = text("progress")
    return Execution(
        id=text("id"),
        agent=text("agent"),
        door=text("door"),
        lane=Lane(text("lane")),
        state=State(text("state")),
        phase=Phase(text("phase")),
        attempt=whole("attempt"),
        attempts=whole("attempts"),
        fence=whole("fence"),
        created=whole("created"),
        updated=whole("updated"),
        ends_by=whole("ends_by"),
        run_until=whole("run_until"),
        started=whole("started"),
        first_started=whole("first_started"),
        ended=whole("ended"),
        session=text("session"),
        worker=text("worker"),
        digest=text("digest"),
        progress=float(progress) if progress else None,
        message=text("message"),
        said=whole("said"),
        marks=whole("marks"),
        labels=_object(raw.get("labels", b"")),
        raw=raw,
    )


def _object(blob: bytes) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(blob) if blob else {}
    return decoded or {}
