"""Execution ids sort by time, and event ids by sequence."""

from __future__ import annotations

import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.ids import event_id, is_id, new_id


def test_new_ids_are_uuids_of_version_seven() -> None:
    """An id contains the current millisecond, version 7 and the RFC variant, in lower case."""
    before = time.time_ns() // 1_000_000
    ids = [new_id() for _ in range(200)]
    after = time.time_ns() // 1_000_000
    for id in ids:
        parsed = uuid.UUID(id)
        assert (str(parsed), parsed.version, parsed.variant) == (id, 7, uuid.RFC_4122)
        assert before <= parsed.int >> 80 <= after
        assert is_id(id)
    assert len(set(ids)) == 200


def test_ids_of_later_milliseconds_sort_later() -> None:
    """Text order is time order."""
    first = new_id()
    time.sleep(0.003)
    assert first < new_id()


@given(st.integers(1, 65_000), st.integers(1, 65_000))
def test_event_ids_sort_like_sequences(one: int, other: int) -> None:
    """Within a log, event ids sort like sequences, and no two are equal."""
    id = "019a0b1c-2d3e-7f00-8a1b-2c3d4e5f6071"
    assert (event_id(id, one) < event_id(id, other)) == (one < other)
    assert (event_id(id, one) == event_id(id, other)) == (one == other)


def test_event_ids_are_derived_from_execution_and_sequence() -> None:
    """Log and sequence determine the id, other logs differ, and each has its execution's time."""
    id, other = new_id(), new_id()
    assert event_id(id, 7) == event_id(id, 7) != event_id(other, 7)
    event_uuid = uuid.UUID(event_id(id, 7))
    assert (event_uuid.version, event_uuid.variant, event_uuid.int >> 80) == (
        7,
        uuid.RFC_4122,
        uuid.UUID(id).int >> 80,
    )


@pytest.mark.parametrize(
    "text",
    ["", "x", "019A0B1C-2D3E-7F00-8A1B-2C3D4E5F6071", "019a0b1c2d3e7f008a1b2c3d4e5f6071", "../" + "0" * 33],
)
def test_non_ids_are_recognised(text: str) -> None:
    """Upper case, missing dashes, paths and the empty text are not ids."""
    assert not is_id(text)


def test_id_with_trailing_text_is_refused() -> None:
    """A trailing line feed is refused."""
    id = new_id()
    assert is_id(id)
    assert not any(is_id(text) for text in (id + "\n", "\n" + id, id + " ", id + "0"))
