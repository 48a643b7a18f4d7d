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


@pytest.fixture(name="processes")
def _processes(tmp_path: Path) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(tmp_path)
    try:
        yield processes.open()
        processes.check_books()
    finally:
        processes.close()


def offered(processes: WorkerProcesses) -> set[str]:
    return {each["name"] for each in processes.door("GET", "/manifest").json["capabilities"]}


def hire(processes: WorkerProcesses, capability: str) -> str:
    """Hires once and pays; returns the execution's id after completion."""
    hired = processes.seeker().hire(capability, PRICES[capability])
    task: str = hired.pay(None, Prefer="respond-async").json["task_id"]
    ended = hired.ended(task, 60).json
    assert ended["status"] == "completed", ended
    return task


def hire_everything(processes: WorkerProcesses) -> None:
    """Hires every agent at once; each hire completes with one run and one payment."""
    with ThreadPoolExecutor(8) as pool:
        tasks = list(pool.map(lambda name: hire(processes, name), [*PRICES] * 4))
    for task in tasks:
        assert processes.runs(task) == 1 or processes.kinds(task).count("execution.reset")
        assert processes.kinds(task).count("payment.settled") == 1


def test_a_tree_takes_only_what_it_can_run(processes: WorkerProcesses) -> None:
    """All hires of a new agent succeed beside an old tree; its restart removes nothing from the manifest."""
    assert offered(processes) == {"echo", "thrice", "early", "long", "by-length"}
    processes.start("new-work", "worker", "work", WORKER_AGENTS=NEWER)
    everything = offered(processes) | {"brandnew", "brandnew-long"}
    eventually(lambda: offered(processes) == everything, 30, "the new agents on the manifest")
    hire_everything(processes)

    processes.end("work")
    processes.start("work", "worker", "work")
    eventually(lambda: processes.parts.store.takers("express") >= 3, 30, "the old tree again")
    assert offered(processes) == everything
    hire_everything(processes)


def test_agents_that_nobody_runs_any_more_are_withdrawn(processes: WorkerProcesses) -> None:
    """Once the only tree with an agent has ended, hires of it are refused before payment."""
    processes.start("new-work", "worker", "work", WORKER_AGENTS=NEWER)
    eventually(lambda: "brandnew" in offered(processes), 30, "the new agents on the manifest")
    hired = processes.seeker().hire("brandnew", "0.01")
    processes.end("new-work")
    processes.jump(25)
    eventually(lambda: "brandnew" not in offered(processes), 30, "the agent withdrawn")
    refused = hired.execute()
    assert (refused.status, refused.code) == (503, "CAPABILITY_UNAVAILABLE")
    assert refused.header("Retry-After") and hire(processes, "echo")
