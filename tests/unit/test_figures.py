"""What the store's counters say about the work done so far."""

from __future__ import annotations

from worker.engine.figures import Figures, MeasuredFigures


def test_a_new_worker_has_no_figures() -> None:
    """Before anything has ended there is no success rate and no typical time."""
    assert Figures.of({}) == Figures(0, 0, None, {})


def test_figures_are_read_from_the_counters() -> None:
    """Settlements of all agents are added, cancelled work counts neither way, medians lie in their bucket."""
    stats = {
        b'worker_settlements_total{agent="a"}': 3,
        b'worker_settlements_total{agent="b"}': 4,
        b'worker_executions_total{status="completed"}': 9,
        b'worker_executions_total{status="failed"}': 1,
        b'worker_executions_total{status="cancelled"}': 5,
        b"run count a": 4,
        b"run le 100000 a": 1,
        b"run le 250000 a": 2,
        b"run le 500000 a": 1,
        b"run count slow b": 2,
    }
    found = Figures.of({name.decode(): str(value).encode() for name, value in stats.items()})
    assert (found.settled, found.completed, found.success_rate) == (7, 9, 0.9)
    assert found.typical_us["a"] == 175_000
    # Above the last bucket only its limit is known; names of agents may contain spaces.
    assert found.typical_us["slow b"] == 1_800_000_000


def test_figures_are_read_seldom() -> None:
    """Many visitors at once cost the store one read."""
    reads: list[int] = []

    def read() -> dict[str, bytes]:
        reads.append(1)
        return {}

    figures = MeasuredFigures(read)
    for _ in range(100):
        figures.now()
    assert len(reads) == 1
