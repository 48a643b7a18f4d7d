"""Agents and runners disconnect and processes are killed at random: every execution still ends once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.kernel.client import TERMINAL, Api, Sse
from tests.e2e.kernel.deployment import Deployment
from tests.waiting import eventually


class RandomDisconnects:
    """Agents and runners that work and disconnect at random."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self.deployment = deployment
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, who: Callable[[int], None], number: int) -> None:
        thread = threading.Thread(target=self._live, args=(who, number), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _live(self, who: Callable[[int], None], number: int) -> None:
        while not self.over.is_set():
            with contextlib.suppress(AssertionError, OSError, KeyError, ValueError):
                who(number)
            time.sleep(0.05)

    def agent(self, number: int) -> None:
        """One connection of an agent: some executions, each with one local tool and one of a runner."""
        api = self.deployment.api(self.random.randrange(2))
        stream = api.agent("turmoil", f"c{number}-{self.random.randrange(3)}")
        try:
            for _ in range(self.random.randrange(1, 8)):
                assignment = stream.next("execution.assigned", 2)
                if self.random.random() < 0.15:
                    return
                self._work(api, stream, assignment)
        finally:
            stream.close()

    def _work(self, api: Api, stream: Sse, assignment: dict[str, Any]) -> None:
        local = api.accepted(assignment, "invoke_tool", tool_id="local", arguments=assignment["input"])[
            "step_id"
        ]
        assert api.step_result(assignment, local, success=True, data=1).status == 200
        far = api.accepted(assignment, "invoke_tool", tool_id="turmoil.far", remote=True)["step_id"]
        until = time.monotonic() + 10
        while time.monotonic() < until:
            result = stream.next("tool.result", 10)
            if result["step_id"] == far:
                break
        api.accepted(
            assignment, "complete", output={"n": assignment["input"]["n"], "far": result.get("result")}
        )

    def runner(self, number: int) -> None:
        """One connection of a runner."""
        api = self.deployment.api(self.random.randrange(2))
        stream = api.runner("turmoil-r", f"c{number}", "turmoil.far")
        try:
            for _ in range(self.random.randrange(1, 10)):
                job = stream.next("job.assigned", 2)
                if self.random.random() < 0.15:
                    return
                api.job_result("turmoil-r", job, success=True, data=job["step_id"])
        finally:
            stream.close()

    def killer(self, number: int) -> None:
        """Kills a web process at intervals and restarts it."""
        time.sleep(self.random.uniform(2.0, 4.0))
        program = self.deployment.web[self.random.randrange(2)]
        program.kill()
        time.sleep(0.3)
        program.start()
        time.sleep(2.0)

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(15)


@pytest.fixture(name="disconnects")
def _disconnects(own_deployment: Callable[..., Deployment]) -> Iterator[RandomDisconnects]:
    disconnects = RandomDisconnects(own_deployment(AGENT_TIMEOUT="2s").start(), seed=7)
    yield disconnects
    disconnects.end()


def check_log(events: list[dict[str, Any]]) -> None:
    """One terminal event, and it is last; sessions are consecutive; all steps are closed before the end."""
    kinds = [event["type"] for event in events]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert [kind in TERMINAL for kind in kinds] == [False] * (len(kinds) - 1) + [True], kinds
    running, open_steps = False, set()
    for event in events:
        kind, step = event["type"], event["step_id"]
        if kind == "execution.started":
            assert not running, kinds
            running = True
        elif kind == "execution.reset":
            assert running and not open_steps, kinds
            running = False
        elif kind == "step.created":
            open_steps.add(step)
        elif kind in ("step.completed", "step.cancelled") or event["payload"].get("retryable") is False:
            assert step in open_steps, (kind, kinds)
            open_steps.discard(step)
    assert not open_steps, kinds


def survive(disconnects: RandomDisconnects, count: int, seconds: float, *, kills: bool) -> None:
    deployment = disconnects.deployment
    for number in range(4):
        disconnects.start(disconnects.agent, number)
    for number in range(3):
        disconnects.start(disconnects.runner, number)
    ids = [deployment.api(0).create("turmoil", {"n": n})["id"] for n in range(count)]
    if kills:
        disconnects.start(disconnects.killer, 0)

    def all_ended() -> bool:
        with contextlib.suppress(OSError, AssertionError):
            open_ones = any(
                deployment.api(1).ok("GET", f"/v0/executions?status={state}&limit=1")["executions"]
                for state in ("pending", "running", "blocked")
            )
            return not open_ones and all(deployment.api(1).status(id) == "completed" for id in ids)
        return False

    eventually(all_ended, seconds, "all executions to end")
    disconnects.end()
    if kills:
        # A process started by the killer's thread ends with that thread.
        for program in deployment.web:
            program.kill()
            program.start()
    deployment.wait()
    for n, id in enumerate(ids):
        execution = deployment.api(1).get(id)
        assert (execution["status"], execution["output"]["n"]) == ("completed", n)
        check_log(deployment.api(1).events(id))
    client = deployment.client()
    assert client.zcard("w:leases") == client.zcard("w:step-deadlines") == 0
    eventually(lambda: client.zcard("w:timers") == 0, 5, "nothing left to see to")
    assert not [key for key in client.scan_iter("w:jobs:*") if client.zcard(key)]


def test_executions_end_once_while_agents_and_runners_reconnect(disconnects: RandomDisconnects) -> None:
    """Forty executions among four agents and three runners that disconnect at random."""
    survive(disconnects, 40, 60, kills=False)


@pytest.mark.soak
def test_executions_end_once_while_web_processes_are_killed(disconnects: RandomDisconnects) -> None:
    """Six hundred executions, with repeated kill -9 of web processes."""
    survive(disconnects, 600, 400, kills=True)
