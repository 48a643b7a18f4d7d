"""Reading a task's stream."""

from __future__ import annotations

import json

from worker.seeker.stream import Event, events


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_events_and_heartbeats_are_told_apart() -> None:
    """Comments are heartbeats; other fields of the format are passed over."""
    data = json.dumps({"type": "progress.updated", "payload": {"fraction": 0.5}})
    text = f"retry: 5000\n\n:heartbeat\n\nid: 7\nevent: progress.updated\ndata: {data}\n\n"
    assert list(events(lines(text))) == [None, Event(7, "progress.updated", {"fraction": 0.5})]


def test_junk_is_passed_over() -> None:
    """What is no event of ours neither ends the stream nor shows up."""
    good = json.dumps({"type": "execution.sealed", "payload": None})
    text = "\n\n".join(
        ["data: {", "data: []", "data: 5", 'data: {"payload": {}}', f"id: x\ndata: {good}", "id: 1", ""]
    )
    assert list(events(lines(text))) == [Event(0, "execution.sealed", {})]


def test_an_event_cut_in_the_middle_is_not_shown() -> None:
    """Without the blank line at its end it has not arrived."""
    assert list(events(['data: {"type": "x"}'])) == []


def test_what_turns() -> None:
    """Progress and steps only pass by; everything that may change the state is worth a look."""
    for quiet in ("progress.updated", "output.chunk", "step.completed", "file.written", "execution.started"):
        assert not Event(1, quiet, {}).turn
    for turn in ("execution.sealed", "execution.completed", "execution.reset", "payment.refused", "new.kind"):
        assert Event(1, turn, {}).turn
