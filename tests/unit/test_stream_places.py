"""Stream limits: per task, for newcomers, and in total."""

from __future__ import annotations

import pytest

from worker.core.errors import Unavailable
from worker.doors.stream_places import StreamPlaces


def refusal(places: StreamPlaces, task: str, *, newcomer: bool = False) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        places.take(task, newcomer=newcomer)
    assert caught.value.retry_after
    return caught.value


def test_newcomers_leave_room_for_customers() -> None:
    """However many streams wallets without a payment open, a customer's stream opens."""
    places = StreamPlaces(most=10, of_newcomers=4)
    for number in range(4):
        places.take(f"new{number}", newcomer=True)
    assert refusal(places, "new", newcomer=True).details["limit"] == "newcomers"
    for number in range(6):
        places.take(f"known{number}", newcomer=False)
    assert refusal(places, "known").details["limit"] == "all"


def test_a_task_has_only_its_own_places() -> None:
    """One more stream for the same task is refused, one for another task opens."""
    places = StreamPlaces(of_one_task=2)
    places.take("a", newcomer=False)
    places.take("a", newcomer=False)
    assert refusal(places, "a").details["limit"] == "task"
    places.take("b", newcomer=False)


def test_a_place_is_given_back_once() -> None:
    """Closing a response twice frees one place, not another's."""
    places = StreamPlaces(most=2)
    give_back = places.take("a", newcomer=True)
    places.take("b", newcomer=False)
    refusal(places, "c")
    give_back()
    give_back()
    places.take("c", newcomer=False)
    refusal(places, "d")
