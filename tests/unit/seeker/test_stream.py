"""Parsing a task's event stream."""

from __future__ import annotations

import json

from worker.seeker.stream import StreamEvent, events


def lines(text: str) -> list[str]:
    return text.split("\n")


def test_events_and_heartbeats_are_parsed() -> None:
    """Comments are heartbeats; other SSE fields are ignored."""
    data = json.dumps({"type": "progress.updated", "payload": {"fraction": 0.5}})
    text = f"retry: 5000\n\n:heartbeat\n\nid: 7\nevent: progress.updated\ndata: {data}\n\n"
    assert list(events(lines(text))) == [None, StreamEvent(7, "progress.updated", {"fraction": 0.5})]


def test_invalid_lines_are_ignored() -> None:
    """Invalid events are skipped and do not end the stream."""
    good = json.dumps({"type": "execution.sealed", "payload": None})
    text = "\n\n".join(
        ["data: {", "data: []", "data: 5", 'data: {"payload": {}}', f"id: x\ndata: {good}", "id: 1", ""]
    )
    assert list(events(lines(text))) == [StreamEvent(0, "execution.sealed", {})]


def test_incomplete_event_is_dropped() -> None:
    """An event without its terminating blank line is incomplete."""
    assert list(events(['data: {"type": "x"}'])) == []


def test_events_that_may_change_the_state() -> None:
    """Progress and step events do not trigger a poll; every other event may have changed the state."""
    for quiet in ("progress.updated", "output.chunk", "step.completed", "file.written", "execution.started"):
        assert not StreamEvent(1, quiet, {}).turn
    for turn in ("execution.sealed", "execution.completed", "execution.reset", "payment.refused", "new.kind"):
        assert StreamEvent(1, turn, {}).turn
