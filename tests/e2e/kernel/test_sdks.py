"""The official clients, unmodified, at one web process while their callers use another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.sdks import SDKS, Sdk
from tests.e2e.kernel.site import Site


@dataclass
class Pair:
    """An agent and a runner of one generation, and the caller of their executions."""

    sdk: Sdk
    name: str
    callers: Api
    log: Path

    def run(self, do: str, **input: Any) -> str:
        return str(self.callers.create(self.name, {"do": do, **input})["id"])

    def output(self, do: str, *, seconds: float = 15.0, **input: Any) -> Any:
        """What a scenario completes with."""
        return self.ended(self.run(do, **input), seconds)["output"]

    def ended(self, id: str, seconds: float = 15.0) -> dict[str, Any]:
        execution = self.callers.until(id, "completed", "failed", "cancelled", seconds=seconds)
        assert execution["status"] == "completed", (self.callers.events(id), self.log.read_text()[-2000:])
        return execution


@pytest.fixture(name="pair", scope="module", params=SDKS, ids=[sdk.version for sdk in SDKS])
def _pair(request: pytest.FixtureRequest, site: Site) -> Iterator[Pair]:
    """Both connected at the first web process."""
    sdk: Sdk = request.param
    name, log = f"sdk-{sdk.version}", site.home / f"sdk-{sdk.version}.log"
    programs = [
        sdk.program("agent", name, site.address(0), log),
        sdk.program("runner", f"runner-{sdk.version}", site.address(0), log),
    ]
    for program in programs:
        program.start()
    pair = Pair(sdk, name, site.api(1), log)
    try:
        yield pair
    finally:
        for program in programs:
            program.stop()


def test_local_tool(pair: Pair) -> None:
    """A tool of the agent's own is allowed, run, and its result comes back."""
    assert pair.output("local") == {"sum": 5}


def test_odd_characters_do_not_end_the_stream(pair: Pair) -> None:
    """Their readers split lines at more than line feeds: no label or input may cut a message in two."""
    odd = "a\u2028b\u2029c\x85d"
    id = pair.callers.create(pair.name, {"do": "local"}, note=odd)["id"]
    assert pair.ended(str(id))["output"] == {"sum": 5}
    assert pair.callers.kinds(str(id)).count("execution.started") == 1


def test_tool_error(pair: Pair) -> None:
    """A tool that fails raises inside the handler, which may catch it."""
    assert "the tool is broken" in pair.output("tool-error")["caught"]


def test_handler_error(pair: Pair) -> None:
    """A handler that raises fails its execution with its message."""
    id = pair.run("handler-error")
    assert pair.callers.until(id, "failed")["output"] is None
    assert pair.callers.event(id, "execution.failed")["payload"]["error"] == "the handler is broken"


def test_policy_denial(pair: Pair) -> None:
    """A call that the policy denies raises inside the handler and is written down."""
    id = pair.run("denied")
    assert "Shell commands denied by default" in pair.ended(id)["output"]["denied"]
    assert pair.callers.event(id, "intent.denied")["payload"]["rule_id"] == "no-shell"


@pytest.mark.parametrize("do", ["approval", "approval-remote"])
def test_approval(pair: Pair, do: str) -> None:
    """A call that needs approval waits for it, then goes on."""
    id = pair.run(do)
    pair.callers.until(id, "blocked")
    step = pair.callers.event(id, "execution.blocked")["payload"]["ref"]
    assert pair.callers.signal(id, "step.approve", {"step_id": step, "approved": True}).status == 200
    assert pair.ended(id)["output"]["said"].startswith("deployed example")


def test_approval_denied(pair: Pair) -> None:
    """A denied call raises inside the handler."""
    id = pair.run("approval-denied")
    pair.callers.until(id, "blocked")
    assert pair.callers.signal(id, "approval", {"approved": False, "reason": "not today"}).status == 200
    assert "denied" in pair.ended(id)["output"]["denied"]
    assert pair.callers.event(id, "step.failed")["payload"]["error"] == "not today"


def test_remote_tool(pair: Pair) -> None:
    """A runner runs a remote tool."""
    assert pair.output("remote") == {"double": 42}


def test_remote_tool_is_tried_again(pair: Pair) -> None:
    """Two failures that pass, two pauses, and the third try succeeds."""
    began = time.monotonic()
    assert pair.output("shaky", seconds=20) == {"shaky": 3}
    assert time.monotonic() - began >= 6


def test_parallel_local_tools(pair: Pair) -> None:
    """Several steps of one execution run at once."""
    assert pair.output("parallel-local") == {"sums": [1, 2, 3, 4, 5]}


def test_parallel_remote_tools_with_one_runner(pair: Pair) -> None:
    """Jobs of one execution that wait for the same runner are all done."""
    assert pair.output("parallel-remote") == {"doubles": [0, 2, 4]}


def test_two_remote_tools_in_a_row(pair: Pair) -> None:
    """A runner is free for the next job, whether or not it says who it is."""
    assert pair.output("remote-twice") == {"doubles": [2, 4]}


def test_wait_for_a_signal(pair: Pair) -> None:
    """A handler that waits for a signal gets its payload."""
    id = pair.run("wait")
    pair.callers.until(id, "blocked")
    assert pair.callers.signal(id, "go", {"by": "a person"}).status == 200
    assert pair.ended(id)["output"] == {"signal": {"by": "a person"}}


def test_wait_for_a_signal_that_came_before(pair: Pair) -> None:
    """A stored signal answers a later wait."""
    name = f"late-{pair.sdk.version}"
    id = str(pair.callers.create(name, {"do": "wait"})["id"])
    assert pair.callers.signal(id, "go", 7).status == 200
    program = pair.sdk.program("agent", name, f"http://127.0.0.1:{pair.callers.port}", pair.log)
    program.start()
    try:
        assert pair.ended(id)["output"] == {"signal": 7}
    finally:
        program.stop()


def test_a_handler_that_thinks_longer_than_the_agent_timeout(pair: Pair) -> None:
    """The open stream keeps the session alive, not the calls that are made."""
    assert pair.ended(pair.run("think", seconds=4.5))["output"] == {"thought": 4.5}


@pytest.mark.soak
def test_a_handler_that_works_35_seconds_without_a_call(pair: Pair) -> None:
    """As long as the original's limit and more."""
    id = pair.run("think", seconds=35)
    assert pair.ended(id, seconds=60)["output"] == {"thought": 35}
