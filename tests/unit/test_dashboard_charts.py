"""Bar charts: heights, stacks and axes."""

from __future__ import annotations

import pytest

from worker.doors.dashboard_charts import ceiling, stacked


def test_series_are_stacked_to_scale() -> None:
    """The second series stands on the first, and a column's height is its sum."""
    chart = stacked(["a", "b"], {"completed": [3, 0], "failed": [1, 2]})
    completed, failed, alone = chart.bars
    assert completed.y + completed.height == pytest.approx(chart.base)
    assert failed.y + failed.height == pytest.approx(completed.y)
    assert alone.height == pytest.approx(2 * failed.height, abs=0.2)
    assert completed.title == "a: 3 completed"


def test_empty_columns_have_an_axis_and_no_bars() -> None:
    """A worker without any work has a chart too."""
    chart = stacked(["a", "b"], {"completed": [0, 0]})
    assert not chart.bars and [level.text for level in chart.levels] == ["0", "1", "2"]
    assert stacked([], {"completed": []}).bars == ()


@pytest.mark.parametrize(("most", "top"), [(0, 2), (2, 2), (3, 4), (11, 20), (41, 100), (101, 200)])
def test_axis_ends_at_a_round_number(most: int, top: int) -> None:
    """Half of it is a whole number too."""
    assert ceiling(most) == top
