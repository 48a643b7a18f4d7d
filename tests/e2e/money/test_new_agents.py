"""A deploy that adds agents: old and new trees share the lanes, and each takes only what it can run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually

PRICES = {"echo": "0.01", "long": "0.03", "brandnew": "0.01", "brandnew-long": "0.03"}
NEWER = "tests.fakes.newer_agents"


@pytest.fixture(name="house")
def _house(tmp_path: Path) -> Iterator[WorkerProcesses]:
    house = WorkerProcesses(tmp_path)
    try:
        yield house.open()
        house.check_books()
    finally:
        house.close()


def offered(house: WorkerProcesses) -> set[str]:
    return {each["name"] for each in house.door("GET", "/manifest").json["capabilities"]}


def hire(house: WorkerProcesses, capability: str) -> str:
    """Hires once and pays; returns the execution's id after completion."""
    hired = house.seeker().hire(capability, PRICES[capability])
    task: str = hired.pay(None, Prefer="respond-async").json["task_id"]
    ended = hired.ended(task, 60).json
    assert ended["status"] == "completed", ended
    return task


def hire_everything(house: WorkerProcesses) -> None:
    """Hires every agent at once; each hire completes with one run and one payment."""
    with ThreadPoolExecutor(8) as pool:
        tasks = list(pool.map(lambda name: hire(house, name), [*PRICES] * 4))
    for task in tasks:
        assert house.runs(task) == 1 or house.kinds(task).count("execution.reset")
        assert house.kinds(task).count("payment.settled") == 1


def test_a_tree_takes_only_what_it_can_run(house: WorkerProcesses) -> None:
    """All hires of a new agent succeed beside an old tree; its restart removes nothing from the manifest."""
    assert offered(house) == {"echo", "early", "long", "by-length"}
    house.start("new-work", "worker", "work", WORKER_AGENTS=NEWER)
    everything = offered(house) | {"brandnew", "brandnew-long"}
    eventually(lambda: offered(house) == everything, 30, "the new agents on the manifest")
    hire_everything(house)

    house.end("work")
    house.start("work", "worker", "work")
    eventually(lambda: house.parts.store.takers("express") >= 3, 30, "the old tree again")
    assert offered(house) == everything
    hire_everything(house)


def test_agents_that_nobody_runs_any_more_are_withdrawn(house: WorkerProcesses) -> None:
    """Once the only tree with an agent has ended, hires of it are refused before payment."""
    house.start("new-work", "worker", "work", WORKER_AGENTS=NEWER)
    eventually(lambda: "brandnew" in offered(house), 30, "the new agents on the manifest")
    hired = house.seeker().hire("brandnew", "0.01")
    house.end("new-work")
    house.jump(25)
    eventually(lambda: "brandnew" not in offered(house), 30, "the agent withdrawn")
    refused = hired.execute()
    assert (refused.status, refused.code) == (503, "CAPABILITY_UNAVAILABLE")
    assert refused.header("Retry-After") and hire(house, "echo")
