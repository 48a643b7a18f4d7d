"""Busy worker: the client reports the reason and when it will retry."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path
from typing import Any

from tests.fakes.fake_worker import SEEKER_KEY, URL, FakeWorker, answer, status
from worker.cli.hire import HireProgress, Text
from worker.seeker import Order, PurchaseStore, Seeker, SpendLimits, Wallet

BUSY = {
    "status": "failed",
    "error": {"code": "QUEUE_FULL", "message": "too many executions wait already", "details": {}},
}


def hired(plan: list[Any], directory: Path) -> str:
    """Return the messages a user sees while hiring a worker that returns these responses."""
    fake_worker, out = FakeWorker(), io.StringIO()
    fake_worker.plan = deque(plan)
    view = HireProgress(out, Text(io.StringIO()))
    limits = SpendLimits(most=1_000_000)
    seeker = Seeker(
        Wallet(SEEKER_KEY),
        PurchaseStore(directory),
        limits,
        http=fake_worker,
        sleep=lambda seconds: None,
        tell=view.tell,
    )
    seeker.hire(URL, Order("logo-design"), {"brief": "A logo"})
    return out.getvalue()


def test_busy_worker_says_why_and_when_it_is_asked_again(tmp_path: Path) -> None:
    """Each 503 with a reason and Retry-After prints one line with both."""
    busy = [lambda got: answer(503, BUSY, {"Retry-After": "30"})] * 2
    line = (
        "- the worker cannot do it now: too many executions wait already (QUEUE_FULL); asking again in 30 s"
    )
    assert hired(busy, tmp_path).splitlines().count(line) == 2


def test_silent_failures_are_told_as_before(tmp_path: Path) -> None:
    """A response without a reason is reported by its status only."""
    output = hired([status(502)], tmp_path)
    assert "no usable answer (status 502); retrying the same request" in output
