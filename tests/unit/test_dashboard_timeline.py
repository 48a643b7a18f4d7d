"""The picture of an execution's log: what stands in which row, and to scale."""

from __future__ import annotations

import json
from typing import Any

from worker.doors.dashboard_timeline import LABELS, WIDTH, rows_of, seconds, timeline
from worker.engine.events import Event, Kind

SECOND = 1_000_000


def log(*facts: tuple[float, Kind, str, dict[str, Any]]) -> list[Event]:
    """Events at these seconds, each with a kind, a step and a payload."""
    return [
        Event("x", number, round(at * SECOND), kind, step, 0, 0, json.dumps(data).encode())
        for number, (at, kind, step, data) in enumerate(facts, 1)
    ]


RETRIED = log(
    (0, Kind.EXECUTION_CREATED, "", {}),
    (1, Kind.EXECUTION_STARTED, "", {}),
    (2, Kind.EXECUTION_RESET, "", {"reason": "transient"}),
    (4, Kind.EXECUTION_STARTED, "", {}),
    (5, Kind.STEP_CREATED, "s1", {"tool_id": "look_up"}),
    (6, Kind.STEP_RETRIED, "s1", {}),
    (8, Kind.STEP_COMPLETED, "s1", {}),
    (9, Kind.OUTPUT_CHUNK, "", {"text": "abc"}),
    (10, Kind.EXECUTION_COMPLETED, "", {}),
)


def test_waiting_running_and_retries_follow_one_another() -> None:
    """The execution's own row has no gap from its creation to its end."""
    states = rows_of(RETRIED, 10 * SECOND)[0]
    assert [span.kind for span in states.spans] == ["waiting", "running", "waiting", "running"]
    assert [(span.begins, span.ends) for span in states.spans] == [
        (0, SECOND), (SECOND, 2 * SECOND), (2 * SECOND, 4 * SECOND), (4 * SECOND, 10 * SECOND),
    ]  # fmt: skip
    assert "run 2" in states.spans[-1].title


def test_each_step_has_a_row_with_its_tries() -> None:
    """A retried step shows both tries, and output is a row of marks."""
    rows = {row.label: row for row in rows_of(RETRIED, 10 * SECOND)}
    assert [span.kind for span in rows["look_up"].spans] == ["step retry", "step good"]
    assert [(span.begins, span.title) for span in rows["output"].spans] == [
        (9 * SECOND, "output.chunk: 3 characters")
    ]


def test_places_are_to_scale() -> None:
    """A tenth of the time is a tenth of the width, and marks stay inside the picture."""
    drawn = timeline(RETRIED, 99 * SECOND)
    (_, states), *_ = drawn.rows
    tenth = (WIDTH - LABELS) / 10
    assert [round(span.width / tenth) for span in states] == [1, 1, 2, 6]
    assert all(span.x >= LABELS and span.x + span.width <= WIDTH for _, row in drawn.rows for span in row)
    assert [text for _, text in drawn.axis] == ["0 ms", "2.5 s", "5.0 s", "7.5 s", "10.0 s"]


def test_what_is_open_reaches_to_now() -> None:
    """A blocked execution and its open step end where the picture ends."""
    events = log(
        (0, Kind.EXECUTION_CREATED, "", {}),
        (1, Kind.EXECUTION_STARTED, "", {}),
        (2, Kind.STEP_CREATED, "s1", {"tool_id": "pay"}),
        (2, Kind.EXECUTION_BLOCKED, "", {"reason": "approval", "tool_id": "pay"}),
    )
    states, step = rows_of(events, 12 * SECOND)
    assert (states.spans[-1].kind, states.spans[-1].ends) == ("blocked", 12 * SECOND)
    assert (step.spans[-1].kind, step.spans[-1].ends) == ("step open", 12 * SECOND)
    assert timeline(events[:1], 0).rows[0][1][0].width > 0


def test_durations_are_written_for_people() -> None:
    """Small ones in milliseconds, large ones in hours and days."""
    found = [
        seconds(us) for us in (0, 999_000, 1_500_000, 150 * SECOND, 3 * 3600 * SECOND, 90 * 3600 * SECOND)
    ]
    assert found == ["0 ms", "999 ms", "1.5 s", "2 min 30 s", "3 h 0 min", "3 days"]
