"""Parsing stored lines into events, and rendering events for streams."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.ids import event_id
from worker.engine.events import Kind, decode, iso

ID = "019a0b1c-2d3e-7f00-8a1b-2c3d4e5f6071"
STEP = "019a0b1c-2d3e-7f00-8a1b-2c3d4e5f6072"


@given(
    st.integers(0, 2**52),
    st.sampled_from(list(Kind)),
    st.sampled_from(["", STEP]),
    st.integers(0, 10_000),
    st.recursive(st.none() | st.booleans() | st.text(st.characters(exclude_categories=["Cs"])), st.lists),
)
def test_event_line_round_trips(at: int, kind: Kind, step: str, cause: int, payload: object) -> None:
    """Whatever the payload contains, spaces and line feeds included, the event round-trips."""
    body = json.dumps({"p": payload}, ensure_ascii=False).encode()
    line = f"{at} {kind} {step or '-'} {cause} {cause} ".encode() + body
    event = decode(ID, 3, line)
    assert (event.at, event.kind, event.step_id, event.cause, event.correlation) == (
        at,
        kind,
        step,
        cause,
        cause,
    )
    assert (event.sequence, event.payload, event.data()) == (3, body, {"p": payload})


def test_event_is_rendered_in_the_protocols_form() -> None:
    """All fields are present; an event without a cause is its own, and step_id is empty outside steps."""
    event = decode(ID, 5, b'1763461203123456 step.created - 0 2 {"a":[]}')
    assert event.shown() == {
        "id": event_id(ID, 5),
        "execution_id": ID,
        "step_id": "",
        "type": "step.created",
        "schema_version": 1,
        "timestamp": "2025-11-18T10:20:03.123456Z",
        "payload": {"a": []},
        "causation_id": event_id(ID, 5),
        "correlation_id": event_id(ID, 2),
        "idempotency_key": "",
        "sequence": 5,
    }


@pytest.mark.parametrize("kind", list(Kind))
def test_three_event_types_are_terminal(kind: Kind) -> None:
    """completed, failed and cancelled are terminal; no other kind is."""
    ends = {"execution.completed", "execution.failed", "execution.cancelled"}
    assert decode(ID, 1, f"1 {kind} - 0 0 {{}}".encode()).terminal == (kind.value in ends)


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (999_999, "1970-01-01T00:00:00.999999Z"),
        (951_782_400_000_001, "2000-02-29T00:00:00.000001Z"),
    ],
)
def test_times_are_rfc_3339_with_microseconds(at: int, text: str) -> None:
    """No digit is rounded, and the zone is UTC."""
    assert iso(at) == text
