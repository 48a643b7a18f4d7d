"""Names of states, phases and lanes."""

from __future__ import annotations

import pytest

from worker.core.states import TERMINAL, Lane, Phase, State
from worker.engine.events import TERMINAL_KINDS, Kind


def test_each_terminal_state_has_its_event() -> None:
    """Each of the three terminal states has its own terminal event."""
    assert {state for state in State if state.terminal} == TERMINAL
    assert {kind.value for kind in TERMINAL_KINDS} == {f"execution.{end}" for end in TERMINAL}


@pytest.mark.parametrize("words", [State, Phase, Lane, Kind])
def test_states_serialise_as_text(words: type[State]) -> None:
    """A state, phase, lane or kind serialises as its own text, in keys and on the wire."""
    for word in words:
        assert f"{word}" == word.value == str(word)
        assert words(word.value) is word
