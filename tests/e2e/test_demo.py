"""What `make run` shows: the worker is hired and paid before anybody's eyes, or the start fails."""

from __future__ import annotations

import os
import re
import signal
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
SHIPPED = {"WORKER_AGENTS": "worker.agents.shipped"}


def test_a_fresh_directory_proves_itself_and_ends(own: Own) -> None:
    """`--once` hires the logo agent for 0.50, says every step, and ends well; again in the same directory."""
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


def test_a_worker_that_cannot_be_hired_does_not_start_well(own: Own) -> None:
    """With nothing to hire the proof fails, and so does the start, also where it was to serve on."""
    local = own("--prove", FACILITATOR_URL="")
    program = local.launch()
    assert program.ends(60) == 1
    assert "NOT PROVEN  NOT_PROVEN: nothing on offer can be hired" in program.log
    assert local.members() == []


@pytest.mark.parametrize("page", ["README.md", "docs/authors.md"])
def test_an_authors_own_agent_is_hired_with_its_example(own: Own, tmp_path: Path, page: str) -> None:
    """The pages' agents sell as they stand: the logo agent is not there, so theirs proves the worker."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    (tmp_path / "page_agents.py").write_text("\n".join(blocks))
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    local = own("--once", FACILITATOR_URL="", PYTHONPATH=path, WORKER_AGENTS="page_agents")
    program = local.launch()
    assert program.ends(60) == 0, program.log
    assert "Proven in" in program.log


def test_after_its_proof_it_serves_on(own: Own, measure: Measure) -> None:
    """`--prove` without `--once` stays up; the second start in a directory is the quick one."""
    local = own("--prove", FACILITATOR_URL="", **SHIPPED)
    local.start()
    program = local.program
    assert program is not None
    eventually(lambda: "Proven in" in program.log, 40, "the proof")
    assert local.request("GET", "/health").status == 200
    program.signal(signal.SIGTERM)
    assert program.ends(40) == 0
    measure("second start with chain and facilitator -> ready", local.start())


def test_a_proof_does_not_hold_up_the_end() -> None:
    """SIGTERM in the middle of a proof that waits ends the proof at once; before one, none begins."""
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


def test_what_is_hired_is_the_logo_else_an_example() -> None:
    """A capability without an example cannot be hired by somebody who does not know it."""
    silent = {"name": "route", "pricing": {"amount": "0.05"}}
    example = {"name": "count", "pricing": {"amount": "0.02"}, "example_input": {"text": "a b"}}
    logo = {"name": "logo-design", "pricing": {"amount": "0.50"}, "example_input": {}}
    assert chosen({"capabilities": [silent, example, logo]}) is LOGO
    work = chosen({"capabilities": [silent, example]})
    assert (work.capability, work.price, work.input) == ("count", "0.02", {"text": "a b"})
    with pytest.raises(NotProven) as none:
        chosen({"capabilities": [silent]})
    assert none.value.details["received"] == "route"
