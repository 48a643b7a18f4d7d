"""What a work process tells its parent through the page of memory that they share."""

from __future__ import annotations

import itertools
import os
import signal
import time

import pytest

from tests.waiting import eventually
from worker.queue.status_page import MOST_ASKED, MOST_ID, AskedRun, StatusPage

PATIENCE = 30.0


@pytest.fixture(name="page")
def _page() -> StatusPage:
    return StatusPage()


def test_a_run_is_on_the_page_until_it_ends(page: StatusPage) -> None:
    """Its id, fence and end; the next run replaces it whole, also a shorter id."""
    assert page.run() is None and page.last_beat == 0.0
    before = time.monotonic()
    for id, fence in (("é" * (MOST_ID // 2), 2**62), ("b", 1), ("", 3)):
        page.running(id, fence, 60.0)
        run = page.run()
        assert run is not None and (run.execution_id, run.fence) == (id, fence)
        assert before + 60 <= run.ends_by <= time.monotonic() + 60
    page.idle()
    assert page.run() is None


def test_runs_asked_for_stay_on_the_page_through_the_next_question(page: StatusPage) -> None:
    """What became of them is known only then. The run under way is not among them, nor what does not fit."""
    assert page.asked() == []
    page.running("a", 1, 60.0)
    page.asks([("b c", "s1"), ("x" * MOST_ID, "s2"), ("d", "s3")])
    assert page.asked() == [AskedRun("b c", "s1"), AskedRun("d", "s3")]
    page.running("d", 1, 60.0)
    assert page.asked() == [AskedRun("b c", "s1")]
    page.asks([("e", "s4")])
    page.idle()
    assert {each.execution_id for each in page.asked()} == {"b c", "e"}
    page.asks([(f"{number:0{MOST_ID - 3}}", "s5") for number in range(MOST_ASKED)])
    assert sorted(each.session for each in page.asked()) == ["s4"] + ["s5"] * MOST_ASKED


def test_an_id_that_does_not_fit_is_refused(page: StatusPage) -> None:
    """The page never names another execution than the one that runs."""
    page.running("a", 1, 1.0)
    with pytest.raises(ValueError):
        page.running("x" * (MOST_ID + 1), 2, 1.0)
    run = page.run()
    assert run is not None and run.execution_id == "a"


def test_a_run_that_is_being_written_is_not_read(page: StatusPage) -> None:
    """A reader beside the writer sees a whole run or none."""
    page.running("a", 1, 1.0)
    page._page[80] ^= 1
    assert page.run() is None


def test_a_process_killed_at_any_moment_leaves_a_whole_run() -> None:
    """The parent of a process that writes runs as fast as it can reads one of them after its kill."""
    for _ in range(20):
        page = StatusPage()
        page.running("begun", 0, 0.0)
        begun = page.run()
        pid = os.fork()
        if pid == 0:
            try:
                for number in itertools.count(1):
                    page.running(f"run {number}", number, float(number))
            finally:
                os._exit(1)
        eventually(lambda before=begun, page=page: page.run() != before, PATIENCE, "another run")  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        run = page.run()
        assert run is not None and run.execution_id == f"run {run.fence}"
        page.close()


def test_a_beat_and_relief_cross_the_fork(page: StatusPage) -> None:
    """The child sees what the parent sets, and the other way round."""
    assert not page.last_beat and not page.relieved
    pid = os.fork()
    if pid == 0:
        try:
            page.beat()
            until = time.monotonic() + PATIENCE
            while not page.relieved and time.monotonic() < until:
                time.sleep(0.001)
        finally:
            os._exit(7 if page.relieved else 1)
    eventually(lambda: 0 < page.last_beat <= time.monotonic(), PATIENCE, "the child's beat")
    page.relieve()
    assert page.relieved
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
