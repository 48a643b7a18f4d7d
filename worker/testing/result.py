"""Result of an agent's run: state, output, files, text, events and charge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.engine.events import Event


class AgentFailed(AssertionError):
    """Raised on reading the output of a run that failed or still waits."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file that the agent delivered."""

    name: str
    mime: str
    data: bytes = field(repr=False)

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(frozen=True, slots=True)
class Run:
    """A run up to its end or to an unanswered wait.

    `state` is completed, failed, cancelled, blocked (it waits for `waits_for`), or refused: the input was
    invalid, so nothing ran. `error` is what the seeker would see; `raised` is the exception behind it, which
    only the author sees. `charge` is what the seeker pays, in USDC.
    """

    agent: str
    state: str
    charge: str = "0"
    error: dict[str, Any] = field(default_factory=dict)
    raised: BaseException | None = None
    files: dict[str, RunFile] = field(default_factory=dict)
    said: str = ""
    events: Sequence[Event] = ()
    attempts: int = 0
    waits_for: str = ""
    id: str = ""
    value: Any = None

    @property
    def output(self) -> Any:
        """The value that the agent returned; raises AgentFailed unless the run completed."""
        if self.state == "completed":
            return self.value
        raise AgentFailed(self._reason()) from self.raised

    @property
    def progress(self) -> list[tuple[float, str]]:
        """The reported progress: pairs of fraction and message."""
        reported = [event.data() for event in self.events if event.kind == "progress.updated"]
        return [(each["fraction"], each["message"]) for each in reported]

    @property
    def kinds(self) -> list[str]:
        """The kinds of all events, in order."""
        return [event.kind for event in self.events]

    def _reason(self) -> str:
        if self.state == "blocked":
            return f"{self.agent} waits for {self.waits_for}: pass it in signals or approvals"
        error = self.error
        details = f" {error['details']}" if error.get("details") else ""
        return f"{self.agent} {self.state}: {error.get('code')}: {error.get('error')}{details}"
