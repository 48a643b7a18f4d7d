"""`make run` and `worker local --prove`: the worker is hired and paid, or the start fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Measure
from tests.e2e.tree import Local
from tests.waiting import eventually
from worker.local.demo import LOGO, NotProven, chosen
from worker.local.tree import LocalTree, NotReady

Own = Callable[..., Local]
ROOT = Path(__file__).parents[2]
SHIPPED = {"WORKER_AGENTS": "worker.shipped"}


def test_prove_once_hires_and_exits_from_a_fresh_directory(own: Own) -> None:
    """`--once` hires the logo agent for 0.50, reports every step and exits with 0; so does a second run."""
    local = own("--once", FACILITATOR_URL="", **SHIPPED)
    first = local.launch()
    assert first.ends(60) == 0, first.log
    shown = first.log
    for words in (
        "before     the seeker has 1000, the worker 0 test dollars",
        "signed by the worker",
        "signed by the seeker too",
        "402        it asks for 0.5 USDC",
        "the work is done and the payment has settled",
        "logo_v3.svg",
        "after      the seeker has 999.5, the worker 0.5 test dollars",
        "task_completed arrived",
        "receipt    signed by the worker's wallet",
        "curl -s http",
    ):
        assert words in shown, words
    assert local.members() == []
    second = local.launch()
    assert second.ends(60) == 0, second.log
    assert "after      the seeker has 999, the worker 1 test dollars" in second.log


def test_prove_tells_its_story_without_log_lines(own: Own) -> None:
    """Only the story is printed; then what to open, where token and log are, how to stop and how to move."""
    local = own("--prove", FACILITATOR_URL="", **SHIPPED)
    local.start()
    eventually(lambda: "another port" in local.log_file.read_text(), 60, "the end of the story")
    output = local.log_file.read_text()
    assert output.startswith("A seeker hires logo-design")
    assert not re.search(r"\[info|\blocal\.ready|gunicorn|work\.started|facilitator\.", output), output
    for words in (
        "/docs",
        "/dashboard",
        "^C",
        "PORT=8001 make run",
        str(local.about),
        str(local.state / "worker.log"),
    ):
        assert words in output, words
    assert local.facts["kernel_token"] not in output
    log = (local.state / "worker.log").read_text()
    assert "local.ready" in log and "work.started" in log
    command = re.search(r"operator +(curl .+)$", output, re.MULTILINE)
    assert command is not None
    done = subprocess.run(["bash", "-c", command[1]], capture_output=True, text=True, timeout=30)
    assert '"status"' in done.stdout and "ready" in done.stdout, done


def test_failed_start_shows_the_end_of_its_log(own: Own) -> None:
    """When the worker does not start, the reason is printed although log lines go to a file."""
    local = own("--prove", WORKER_AGENTS="no_such_module")
    program = local.launch()
    assert program.ends(60) != 0
    assert "no_such_module" in program.log


def test_start_fails_when_nothing_can_be_hired(own: Own) -> None:
    """With nothing to hire the proof fails, and so does the start, even without `--once`."""
    local = own("--prove", FACILITATOR_URL="")
    program = local.launch()
    assert program.ends(60) == 1
    assert "NOT PROVEN  NOT_PROVEN: nothing on offer can be hired" in program.log
    assert local.members() == []


@pytest.mark.parametrize("page", ["README.md", "docs/authors.md"])
def test_authors_agent_is_hired_with_its_example(own: Own, tmp_path: Path, page: str) -> None:
    """The pages' agents sell unchanged: without the logo agent, theirs prove the worker."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "page_agents.py").write_text("\n".join(blocks))
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    local = own("--once", FACILITATOR_URL="", PYTHONPATH=path, WORKER_AGENTS="page_agents")
    program = local.launch()
    assert program.ends(60) == 0, program.log
    assert "Proven in" in program.log


def test_prove_keeps_serving_without_once(own: Own, measure: Measure) -> None:
    """`--prove` without `--once` keeps serving; a second start in the same directory is the quick one."""
    local = own("--prove", FACILITATOR_URL="", **SHIPPED)
    local.start()
    program = local.program
    assert program is not None
    eventually(lambda: "Proven in" in program.log, 40, "the proof")
    assert local.request("GET", "/health").status == 200
    program.signal(signal.SIGTERM)
    assert program.ends(40) == 0
    measure("second start with chain and facilitator -> ready", local.start())


def test_sigterm_stops_a_running_proof() -> None:
    """SIGTERM during a waiting proof ends it at once; SIGTERM before a proof prevents it."""
    tree, began = LocalTree({}), time.monotonic()
    before = signal.signal(signal.SIGTERM, tree._on_stop)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(NotReady):
            tree._prove(lambda facts: time.sleep(30) or 0, {})
        assert time.monotonic() - began < 15
        assert tree._prove(lambda facts: 7, {}) == 0
    finally:
        signal.signal(signal.SIGTERM, before)


def test_proof_hires_the_logo_agent_or_an_example() -> None:
    """A capability without an example cannot be hired without knowing its input."""
    silent = {"name": "route", "pricing": {"amount": "0.05"}}
    example = {"name": "count", "pricing": {"amount": "0.02"}, "example_input": {"text": "a b"}}
    logo = {"name": "logo-design", "pricing": {"amount": "0.50"}, "example_input": {}}
    assert chosen({"capabilities": [silent, example, logo]}) is LOGO
    work = chosen({"capabilities": [silent, example]})
    assert (work.capability, work.price, work.input) == ("count", "0.02", {"text": "a b"})
    with pytest.raises(NotProven) as none:
        chosen({"capabilities": [silent]})
    assert none.value.details["received"] == "route"
