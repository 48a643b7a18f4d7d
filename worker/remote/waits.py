"""What blocked executions wait for: a signal, or a human's approval of tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker.engine.events import Event, Kind
from worker.remote.store import RemoteStore

SIGNAL, APPROVAL = "signal", "approval"


@dataclass(frozen=True, slots=True)
class OpenWait:
    """One wait: for the signal `ref`, or for approval of the step `ref`, which calls `tool`."""

    execution: str
    reason: str
    ref: str
    tool: str = ""

    def payload(self) -> dict[str, str]:
        """The same as the payload of `execution.blocked` has it."""
        return {"reason": self.reason, "ref": self.ref, **({"tool_id": self.tool} if self.tool else {})}


def open_waits(store: RemoteStore, id: str) -> list[OpenWait]:
    """What a blocked execution waits for now."""
    on, ref = store.fields(id, "blocked_on", "ref")
    if on == SIGNAL:
        return [OpenWait(id, on, ref)]
    steps = ref.split() if on == APPROVAL else []
    return [OpenWait(id, on, step, (store.step(id, step, "tool")[0] or b"").decode()) for step in steps]


def approval_reasons(events: Sequence[Event]) -> dict[str, dict[str, object]]:
    """What the log says to whoever approves: by step, the payload of its `step.approval_required`."""
    return {event.step_id: event.data() for event in events if event.kind == Kind.STEP_APPROVAL_REQUIRED}
