"""The benchmarks run, complete their work and write their figures. Nothing here tests speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTENDERS = {
    "paid": {"worker", "plain", "by-hand", "journaled", "flask"},
    "cores": {"worker", "plain", "flask"},
    "answers": {"402", "402-floor", "402-flask", "replay", "replay-floor"},
    "slow": {"plain"},
    "growth": {"empty", "grown"},
    "followers": {"followers"},
    "webhooks": {"worker", "requests"},
    "throughput": {"rq-worker", "rq-simple", "queue", "express", "paid-queue"},
    "latency": {"express", "rq-simple"},
    "web": {"web", "work"},
    "serving": {"gevent", "gthread-8", "gthread-64"},
    "swarm": {"floor", "verify", "execute"},
    "kernel": {"full-1", "full-8", "full-8-two", "create-16"},
}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module", name="report")
def _report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of one quick run of all benchmarks, written into a new folder."""
    path = tmp_path_factory.mktemp("bench") / "results" / "quick.json"
    done = bench(*CONTENDERS, "--quick", "--json", str(path))
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in CONTENDERS)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_benchmark_names_its_contenders(report: dict[str, Any]) -> None:
    """Each measurement names its contenders, marks the run as quick, and says where it was made."""
    found = {each["name"]: set(each["contenders"]) for each in report["measurements"]}
    assert found == CONTENDERS
    assert report["quick"] is True
    assert report["machine"]["cpus"] and report["machine"]["libraries"]["rq"]


def test_every_contender_completed_its_work(report: dict[str, Any]) -> None:
    """Every contender had work, and all of it was verified as complete."""
    for measurement in report["measurements"]:
        for name, contender in measurement["contenders"].items():
            figures = contender["median"]
            assert contender["rounds"] == 1
            assert figures["done"] == figures["asked"] > 0, f"{measurement['name']} {name}"


def test_every_figure_is_non_negative(report: dict[str, Any]) -> None:
    """No figure is missing or negative; only CPU time may be too short to measure."""
    for measurement in report["measurements"]:
        for contender in measurement["contenders"].values():
            assert set(contender["median"]) == set(contender["spread"])
            for name, figure in contender["median"].items():
                low, high = contender["spread"][name]
                assert 0 <= low <= figure <= high
                assert figure > 0 or name.endswith(("_us", "_bytes", "_share"))


def test_every_goal_has_a_verdict(report: dict[str, Any]) -> None:
    """Each goal has the measured value, the target and whether it is met; serving has none."""
    goals = {each["name"]: each["goals"] for each in report["measurements"]}
    assert {name: len(found) for name, found in goals.items()} == {
        "paid": 9,
        "cores": 2,
        "answers": 2,
        "slow": 2,
        "growth": 13,
        "followers": 2,
        "webhooks": 1,
        "throughput": 5,
        "latency": 1,
        "web": 4,
        "serving": 0,
        "swarm": 1,
        "kernel": 3,
    }
    for goal in sum(goals.values(), []):
        wanted = (
            goal["found"] >= goal["limit"] if goal["kind"] == "at least" else goal["found"] <= goal["limit"]
        )
        assert goal["met"] is wanted


def test_unknown_benchmark_is_refused() -> None:
    """An unknown benchmark is named in the error, and nothing is measured."""
    done = bench("throughput", "throughputs", "--quick")
    assert done.returncode == 2
    assert "throughputs" in done.stderr and not done.stdout
