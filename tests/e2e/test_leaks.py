"""Leaking author code: its processes are replaced, its children end with it, its prints are bounded."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.conftest import Measure
from tests.e2e.tree import Work, WorkTrees, gone
from tests.waiting import eventually

MODULES = "tests.e2e.agents_for_tests,tests.e2e.leaky_agents"
LANES = pytest.mark.parametrize("lane", ("", "-queued"), ids=["express", "queue"])


@pytest.fixture(name="tree", scope="module")
def _tree(work_trees: WorkTrees) -> Work:
    return work_trees.work(WORKER_AGENTS=MODULES, PROCESS_RUNS="20", PROCESS_MEMORY="60", PROCESS_FILES="200")


def outputs(work_trees: WorkTrees, agent: str, runs: int, **input: int) -> list[dict[str, int]]:
    """The outputs of so many concurrent runs, each of a first attempt."""
    ids = [work_trees.create(agent, **input) for _ in range(runs)]
    found = [work_trees.output(id, 60) for id in ids]
    assert [work_trees.kinds(id).count("execution.started") for id in ids] == [1] * runs
    return found


@LANES
@pytest.mark.parametrize(
    ("leak", "most_runs"), [({}, 20), ({"mb": 20}, 4), ({"files": 90}, 3)], ids=["runs", "memory", "files"]
)
def test_a_worn_process_is_replaced_between_two_runs(
    work_trees: WorkTrees, tree: Work, lane: str, leak: dict[str, int], most_runs: int
) -> None:
    """After a number of runs, an amount of memory or open files, the next run gets a new process."""
    found = outputs(work_trees, f"leaky{lane}", 3 * most_runs, **leak)
    by_process = Counter(each["pid"] for each in found)
    assert len(by_process) >= 3 and max(by_process.values()) <= most_runs, by_process
    if lane == "":
        # A process being replaced no longer counts as one that takes work.
        eventually(lambda: work_trees.parts.store.takers("express") == 1, 5, "one process on the lane")
    assert "work.process_ended" not in tree.log


@LANES
def test_what_a_run_started_ends_with_it(work_trees: WorkTrees, tree: Work, lane: str) -> None:
    """Children, ones in other sessions, and orphans are gone when the next run begins."""
    id = work_trees.create(f"orphans{lane}")
    process = work_trees.output(id)["pid"]
    left = [int(each.word.split(":")[1]) for each in work_trees.traces(id, "child:")]
    assert len(left) == 3
    eventually(lambda: all(gone(pid) for pid in left), 5, "the end of what was left")
    eventually(lambda: "work.leftovers_ended" in tree.log, 30, "a line about what was left")
    assert not gone(process)


@LANES
@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_a_copy_that_leaves_the_function_ends_there(
    work_trees: WorkTrees, tree: Work, lane: str, how: str
) -> None:
    """The original's result counts, whatever its copy does."""
    id = work_trees.create(f"returns-twice{lane}", how=how)
    output = work_trees.output(id)
    assert output["copy"] is False and len(work_trees.traces(id, "copy")) == 1
    assert work_trees.kinds(id).count("execution.started") == 1
    assert gone(int(work_trees.traces(id, "child:")[0].word.split(":")[1]))


@LANES
def test_prints_are_bounded(work_trees: WorkTrees, tree: Work, lane: str, measure: Measure) -> None:
    """The first words are logged; of 25 MB at most the allowance is kept, and the rest is counted."""
    before = len(tree.log)
    id = work_trees.create(f"chatty{lane}", mb=20)
    assert work_trees.output(id, 60) == {"printed": 20}
    eventually(lambda: "work.prints_dropped" in tree.log[before:], 30, "a report of what was dropped")
    printed = tree.log[before:]
    measure(f"log of 25 MB of prints ({lane[1:] or 'express'}, kB)", len(printed) / 1024)
    assert "first words" in printed and len(printed) < 600 << 10
    assert work_trees.output(work_trees.create(f"quick{lane}", n=1))["n"] == 1


@pytest.mark.soak
def test_memory_stays_flat_over_2000_leaking_runs(work_trees: WorkTrees, measure: Measure) -> None:
    """With the default limits, 2,000 runs that leak 5 MB each never hold more than one allowance."""
    work_trees.end_trees()
    work_trees.work(WORKER_AGENTS=MODULES)
    found = [each for _ in range(20) for each in outputs(work_trees, "leaky", 100, mb=5)]
    resident = [each["resident"] for each in found]
    measure("most memory of a process over 2,000 runs that leak 10 GB (MB)", max(resident))
    assert max(resident) < min(resident) + 256 + 20
    halves = max(resident[:1000]), max(resident[1000:])
    assert abs(halves[0] - halves[1]) < 20, halves
