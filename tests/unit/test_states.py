"""What may follow what, as the table of the protocol has it."""

from __future__ import annotations

from itertools import product

import pytest

from worker.executions.events import TERMINAL_KINDS, Kind
from worker.executions.states import TERMINAL, Lane, Phase, State, may_follow

ALLOWED = {
    ("pending", "running"),
    ("pending", "failed"),
    ("pending", "cancelled"),
    ("running", "pending"),
    ("running", "blocked"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("blocked", "running"),
    ("blocked", "pending"),
    ("blocked", "failed"),
    ("blocked", "cancelled"),
}


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_transitions_are_those_of_the_protocol(before: State, after: State) -> None:
    """Every pair of states is allowed or refused exactly as the protocol's table says."""
    assert may_follow(before, after) == ((before.value, after.value) in ALLOWED)


def test_nothing_follows_an_end() -> None:
    """The three terminal states lead nowhere, and each has its own terminal event."""
    assert {state for state in State if state.terminal} == TERMINAL
    assert not any(may_follow(end, after) for end in TERMINAL for after in State)
    assert {kind.value for kind in TERMINAL_KINDS} == {f"execution.{end}" for end in TERMINAL}


@pytest.mark.parametrize("words", [State, Phase, Lane, Kind])
def test_words_travel_as_plain_text(words: type[State]) -> None:
    """A state, phase, lane or kind is its own text, in keys and on the wire."""
    for word in words:
        assert f"{word}" == word.value == str(word)
        assert words(word.value) is word
