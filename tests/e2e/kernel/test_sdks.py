"""The official clients, unmodified, at one web process while their callers use another."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.deployment import AGENT_KEYS, Deployment
from tests.e2e.kernel.sdks import SDKS, Sdk
from tests.waiting import eventually


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
        """The output with which a scenario completes."""
        return self.ended(self.run(do, **input), seconds)["output"]

    def ended(self, id: str, seconds: float = 15.0) -> dict[str, Any]:
        execution = self.callers.until(id, "completed", "failed", "cancelled", seconds=seconds)
        assert execution["status"] == "completed", (self.callers.events(id), self.log.read_text()[-2000:])
        return execution


@pytest.fixture(name="pair", scope="module", params=SDKS, ids=[sdk.version for sdk in SDKS])
def _pair(request: pytest.FixtureRequest, deployment: Deployment) -> Iterator[Pair]:
    """An agent and a runner connected at the first web process."""
    sdk: Sdk = request.param
    name, log = f"sdk-{sdk.version}", deployment.home / f"sdk-{sdk.version}.log"
    programs = [
        sdk.program("agent", name, deployment.address(0), log),
        sdk.program("runner", f"runner-{sdk.version}", deployment.address(0), log),
    ]
    for program in programs:
        program.start()
    pair = Pair(sdk, name, deployment.api(1), log)
    try:
        yield pair
    finally:
        for program in programs:
            program.stop()


def test_local_tool(pair: Pair) -> None:
    """The agent's own tool is allowed and run, and its result is returned."""
    assert pair.output("local") == {"sum": 5}


def test_unusual_line_separators_do_not_split_messages(pair: Pair) -> None:
    """SDK readers split lines at more than line feeds: no label or input may split a message."""
    odd = "a\u2028b\u2029c\x85d"
    id = pair.callers.create(pair.name, {"do": "local"}, note=odd)["id"]
    assert pair.ended(str(id))["output"] == {"sum": 5}
    assert pair.callers.kinds(str(id)).count("execution.started") == 1


def test_tool_error(pair: Pair) -> None:
    """A failing tool raises inside the handler, which may catch it."""
    assert "the tool is broken" in pair.output("tool-error")["caught"]


def test_handler_error(pair: Pair) -> None:
    """A handler that raises fails its execution with its message."""
    id = pair.run("handler-error")
    assert pair.callers.until(id, "failed")["output"] is None
    assert pair.callers.event(id, "execution.failed")["payload"]["error"] == "the handler is broken"


def test_policy_denial(pair: Pair) -> None:
    """A call denied by policy raises inside the handler and is recorded."""
    id = pair.run("denied")
    assert "Shell commands denied by default" in pair.ended(id)["output"]["denied"]
    assert pair.callers.event(id, "intent.denied")["payload"]["rule_id"] == "no-shell"


@pytest.mark.parametrize("do", ["approval", "approval-remote"])
def test_approval(pair: Pair, do: str) -> None:
    """A call that needs approval waits for it, then continues."""
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


def test_other_steps_finish_while_one_waits_for_approval(pair: Pair) -> None:
    """Local and remote siblings finish meanwhile, and all results are returned together."""
    id = pair.run("gather")
    pair.callers.until(id, "blocked")
    eventually(lambda: pair.callers.kinds(id).count("step.completed") == 2, 10)
    assert pair.callers.status(id) == "blocked"
    step = pair.callers.event(id, "execution.blocked")["payload"]["ref"]
    assert pair.callers.signal(id, "step.approve", {"step_id": step, "approved": True}).status == 200
    assert pair.ended(id)["output"] == {"both": ["deployed example", 5, 8]}


def test_two_approvals_are_decided_separately(pair: Pair) -> None:
    """Each is decided by its own signal."""
    id = pair.run("gather-approvals")
    eventually(lambda: pair.callers.kinds(id).count("step.approval_required") == 2, 10)
    waiting = [e["step_id"] for e in pair.callers.events(id) if e["type"] == "step.approval_required"]
    for step in reversed(waiting):
        signal = pair.callers.signal(id, "step.approve", {"step_id": step, "approved": True})
        assert signal.status == 200
    assert sorted(pair.ended(id)["output"]["both"]) == ["deployed one", "deployed two"]


def test_handler_fails_while_a_step_waits_for_approval(pair: Pair) -> None:
    """The execution fails at once, with the error of the failed tool."""
    id = pair.run("gather-fails")
    pair.callers.until(id, "failed")
    error = pair.callers.event(id, "execution.failed")["payload"]["error"]
    assert "the tool is broken" in error
    assert "step.cancelled" in pair.callers.kinds(id)


def test_remote_tool(pair: Pair) -> None:
    """A runner runs a remote tool."""
    assert pair.output("remote") == {"double": 42}


def test_remote_tool_is_retried(pair: Pair) -> None:
    """After two transient failures and two pauses the third try succeeds."""
    began = time.monotonic()
    assert pair.output("shaky", seconds=20) == {"shaky": 3}
    assert time.monotonic() - began >= 6


def test_parallel_local_tools(pair: Pair) -> None:
    """Several steps of one execution run at once."""
    assert pair.output("parallel-local") == {"sums": [1, 2, 3, 4, 5]}


def test_parallel_remote_tools_share_one_runner(pair: Pair) -> None:
    """All jobs of one execution that wait for the same runner are done."""
    assert pair.output("parallel-remote") == {"doubles": [0, 2, 4]}


def test_sequential_remote_tools(pair: Pair) -> None:
    """A runner is free for the next job, whether or not it sends its consumer id."""
    assert pair.output("remote-twice") == {"doubles": [2, 4]}


def test_wait_for_a_signal(pair: Pair) -> None:
    """A handler that waits for a signal gets its payload."""
    id = pair.run("wait")
    pair.callers.until(id, "blocked")
    assert pair.callers.signal(id, "go", {"by": "a person"}).status == 200
    assert pair.ended(id)["output"] == {"signal": {"by": "a person"}}


def test_signal_stored_before_the_wait(pair: Pair) -> None:
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


def test_session_outlives_the_agent_timeout_without_calls(pair: Pair) -> None:
    """The open stream keeps the session alive; API calls are not needed."""
    assert pair.ended(pair.run("think", seconds=4.5))["output"] == {"thought": 4.5}


@pytest.mark.soak
def test_handler_works_35_seconds_without_a_call(pair: Pair) -> None:
    """35 seconds exceeds the original's limit."""
    id = pair.run("think", seconds=35)
    assert pair.ended(id, seconds=60)["output"] == {"thought": 35}


@pytest.mark.parametrize("sdk", SDKS, ids=[sdk.version for sdk in SDKS])
def test_agent_and_runner_use_separate_keys(deployment: Deployment, sdk: Sdk) -> None:
    """Each has a key for its role, the runner's limited to its tools; together they complete a job."""
    log = deployment.home / f"keyed-{sdk.version}.log"
    programs = [
        sdk.program(role, f"keyed-{role}", deployment.address(0), log, key=AGENT_KEYS[f"keyed-{role}"])
        for role in ("agent", "runner")
    ]
    for program in programs:
        program.start()
    try:
        pair = Pair(sdk, "keyed-agent", deployment.api(1), log)
        assert pair.output("local", seconds=30) == {"sum": 5}
        assert pair.output("remote", seconds=30) == {"double": 42}
    finally:
        for program in programs:
            program.stop()


@pytest.mark.parametrize("version", ["0.5.0", "0.29.2"])
def test_newer_sdks_are_told_the_protocol_version(
    deployment: Deployment, version: str, tmp_path: Path
) -> None:
    """As a client of another kernel's routes, and as an agent that signs instead of sending a token."""
    log = tmp_path / "later.log"
    program = Sdk(version, "sdk_later.py").program("client", "later", deployment.address(0), log)
    program.start()
    assert program.ends(60) == 0, log.read_text()
    for error in json.loads(log.read_text().splitlines()[-1]):
        assert "the Rebuno kernel protocol of v0.1 to v0.5 (SDK 0.2 to 0.4.8)" in error
