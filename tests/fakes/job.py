"""A job without an engine that records an agent's actions and answers its calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class GivenFile:
    name: str
    data: bytes
    mime: str | None
    ready: bool


@dataclass
class FakeJob:
    """The author's side of a job, with everything observable."""

    input: Any = None
    profile: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)
    terms: Any = None
    stage: str | None = None
    attempt_id: str | None = None
    seed: Any = None
    swarm: Any = None
    output_schema: Any = None
    labels: dict[str, str] = field(default_factory=dict)
    attempt: int = 1
    seconds: float | None = 30.0
    tools: dict[str, Callable[..., Any]] = field(default_factory=dict)
    steps: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    output_text: list[str] = field(default_factory=list)
    progressed: list[tuple[float, str]] = field(default_factory=list)
    files: list[GivenFile] = field(default_factory=list)
    once_values: dict[str, Any] = field(default_factory=dict)

    def progress(self, fraction: float, message: str = "") -> None:
        self.progressed.append((fraction, message))

    def say(self, text: str) -> None:
        self.output_text.append(text)

    def file(self, name: str, data: bytes | str, mime: str | None = None, ready: bool = False) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self.files.append(GivenFile(name, raw, mime, ready))

    def tool(self, id: str, key: str | None = None, **arguments: Any) -> Any:
        self.steps.append((id, key, arguments))
        return self.tools[id](**arguments)

    def once(self, name: str, fn: Callable[[], Any]) -> Any:
        if name not in self.once_values:
            self.once_values[name] = fn()
        return self.once_values[name]

    def seconds_left(self) -> float | None:
        return self.seconds


def run(agent: Callable[[Any], Any], job: FakeJob) -> Any:
    """Calls an agent as the engine does: a generator is drained into a list of its chunks."""
    result = agent(job)
    return list(result) if inspect.isgenerator(result) else result
