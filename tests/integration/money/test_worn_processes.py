"""Paid requests while the only process of the express lane is replaced again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.paid_worker import PaidWorker, in_threads
from worker.local.valkey import EmbeddedStore

# From 23 runs on the successor is certainly started before the last one.
_RUNS, _SEEKERS, _HIRES = 24, 4, 30


@pytest.fixture(name="paid_worker")
def _paid_worker(tmp_path: Path) -> Iterator[PaidWorker]:
    store = EmbeddedStore(tmp_path)
    with FacilitatorServer() as facilitator:
        paid_worker = PaidWorker(tmp_path, store, facilitator, PROCESS_RUNS=str(_RUNS))
        try:
            paid_worker.start_work()
            yield paid_worker
            paid_worker.check_books()
        finally:
            paid_worker.stop_work()
            store.stop()


def test_no_paid_request_is_refused_while_a_worn_process_is_replaced(paid_worker: PaidWorker) -> None:
    """It stays on its lane until its successor takes work, so no request finds the lane empty."""

    def hire_often() -> list[int]:
        seeker = paid_worker.seeker()
        return [seeker.hire().pay({"text": "a"}).status for _ in range(_HIRES)]

    answers = in_threads(*[hire_often] * _SEEKERS)
    assert answers == [[200] * _HIRES] * _SEEKERS
    log = (paid_worker.home / "work.log").read_text()
    assert log.count("work.process_worn") >= _SEEKERS * _HIRES // _RUNS - 1
    assert "work.process_ended" not in log and "work.process_failed" not in log
