"""Local functions that wait for signals, ask for approval and call runners through the kernel door."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.deployment import Deployment
from tests.waiting import eventually
from worker.store.data_model import Keys


def words(trace: Path) -> list[str]:
    return [line.split(" ")[1] for line in trace.read_text().splitlines()] if trace.exists() else []


def said(callers: Api, id: str) -> list[str]:
    """The texts between resets, as a streaming client sees them."""
    found = [""]
    for event in callers.events(id):
        if event["type"] == "output.reset":
            found.append("")
        elif event["type"] == "output.chunk":
            found[-1] += event["payload"]["text"]
    return found


def test_wait_releases_the_process_and_replays_from_the_record(callers: Api, tmp_path: Path) -> None:
    """The function runs twice, its tool once; `finally` runs at suspension; no attempt is used."""
    trace = tmp_path / "trace"
    id = callers.create("patient", {"trace": str(trace)})["id"]
    callers.until(id, "blocked")
    # The function is left when its suspension is recorded.
    eventually(lambda: words(trace) == ["begin", "tool", "finally"], 5, "the end of the suspended function")
    free = callers.create("echo", {"still": "free"})["id"]
    assert callers.until(free, "completed")["output"] == {"still": "free"}
    assert callers.signal(id, "approval", {"approved": True, "by": "me"}).status == 200
    found = callers.until(id, "completed")
    assert found["output"] == {"length": 4, "answer": {"approved": True, "by": "me"}, "attempt": 1}
    assert words(trace) == ["begin", "tool", "finally", "begin", "finally"]
    kinds = callers.kinds(id)
    assert kinds.count("step.created") == 1 and kinds.count("execution.started") == 2
    order = ["execution.blocked", "signal.received", "execution.resumed", "output.reset", "execution.started"]
    at = kinds.index("execution.blocked")
    assert kinds[at : at + 5] == order
    assert said(callers, id) == ["before the wait\n", "before the wait\nafter the wait\n"]


def test_stored_signal_answers_a_later_wait(callers: Api) -> None:
    """Signals are stored and answer waits in their order of arrival."""
    id = callers.create("asking")["id"]
    callers.until(id, "blocked")
    assert callers.signal(id, "other", 0).status == 200
    assert callers.status(id) == "blocked"
    assert callers.signal(id, "word", "first").status == 200
    assert callers.signal(id, "word", "second").status == 200
    assert callers.until(id, "completed")["output"] == ["first", "second"]


def test_wait_times_out(callers: Api) -> None:
    """After its limit a wait raises inside the function; uncaught, it ends the execution."""
    caught, uncaught = callers.create("impatient")["id"], callers.create("abandoned")["id"]
    assert callers.until(caught, "completed")["output"] == {"answer": None}
    callers.until(uncaught, "failed")
    assert callers.event(uncaught, "execution.failed")["payload"]["code"] == "WAIT_EXPIRED"


def test_output_stream_restarts_after_a_wait(callers: Api) -> None:
    """Text sent before the wait is sent again after it, following a reset marker."""
    id = callers.create("telling")["id"]
    callers.until(id, "blocked")
    callers.signal(id, "middle", "two")
    callers.until(id, "completed")
    assert said(callers, id) == ["one ", "one two three"]


@pytest.mark.parametrize("kind", ["step.approve", "approval"])
@pytest.mark.parametrize("approved", [True, False])
def test_local_tool_waits_for_approval(callers: Api, tmp_path: Path, kind: str, approved: bool) -> None:
    """The execution blocks until the decision; a denial raises inside the function."""
    trace = tmp_path / "trace"
    id = callers.create("deployer", {"trace": str(trace)})["id"]
    callers.until(id, "blocked")
    assert words(trace) == []
    blocked = callers.event(id, "execution.blocked")["payload"]
    assert blocked["reason"] == "approval" and blocked["tool_id"] == "deploy.local"
    payload = {"approved": approved, "reason": "too late"}
    if kind == "step.approve":
        assert callers.signal(id, kind, {**payload, "step_id": "another"}).status == 400
        payload["step_id"] = blocked["ref"]
    assert callers.signal(id, kind, payload).status == 200
    output = callers.until(id, "completed")["output"]
    assert output == ({"said": "deployed example"} if approved else {"denied": "too late"})
    assert words(trace) == (["deploy"] if approved else [])
    assert callers.kinds(id).count("step.retried") == 0


def test_local_function_calls_a_runners_tool(agents: Api, callers: Api) -> None:
    """`remote=True` dispatches the call to a runner with the tool; transient failures are retried there."""
    id = callers.create("delegating", {"n": 5})["id"]
    eventually(lambda: "step.dispatched" in callers.kinds(id))
    runner = agents.runner("far", "c1", "far.away")
    job = runner.next("job.assigned")
    assert job["arguments"] == {"n": 5} and job["attempt"] == 1
    assert agents.job_result("far", job, success=False, error="busy", retryable=True).status == 200
    again = runner.next("job.assigned")
    assert again["attempt"] == 2 and again["id"] != job["id"]
    assert agents.job_result("far", again, success=True, data={"n": 25}).status == 200
    assert callers.until(id, "completed")["output"] == {"value": {"n": 25}}
    runner.close()


def test_local_function_sees_a_runners_error(agents: Api, callers: Api) -> None:
    """The function sees the runner's error."""
    runner = agents.runner("far", "c2", "far.away")
    id = callers.create("delegating", {"n": 5})["id"]
    job = runner.next("job.assigned")
    assert agents.job_result("far", job, success=False, error="it is broken").status == 200
    assert callers.until(id, "completed")["output"] == {"failed": "it is broken"}
    runner.close()


def test_approved_remote_call_runs_on_the_runner(agents: Api, callers: Api) -> None:
    """The call is approved, the runner runs it, then the function is replayed and gets the result."""
    runner = agents.runner("far", "c3", "deploy.far")
    id = callers.create("delegating", {"n": 5, "tool": "deploy.far"})["id"]
    callers.until(id, "blocked")
    assert runner.quiet(0.3)
    assert callers.signal(id, "approval", {"approved": True}).status == 200
    job = runner.next("job.assigned")
    assert agents.job_result("far", job, success=True, data="done").status == 200
    assert callers.until(id, "completed")["output"] == {"value": "done"}
    runner.close()


def test_waits_survive_a_restart_of_the_work_processes(
    own_deployment: Callable[..., Deployment], tmp_path: Path
) -> None:
    """The tree that ran the work is gone when the signal arrives; another one continues."""
    deployment = own_deployment().start()
    callers, trace = deployment.api(1), tmp_path / "trace"
    id = callers.create("patient", {"trace": str(trace)})["id"]
    asked = callers.create("deployer", {"trace": str(trace)})["id"]
    callers.until(id, "blocked")
    callers.until(asked, "blocked")
    deployment.work.signal(signal.SIGTERM)
    deployment.work.ends()
    assert callers.signal(id, "approval", {"approved": True}).status == 200
    assert callers.signal(asked, "approval", {"approved": True}).status == 200
    deployment.work.start()
    assert callers.until(id, "completed", seconds=20)["output"]["length"] == 4
    assert callers.until(asked, "completed", seconds=20)["output"] == {"said": "deployed example"}


def test_rate_limits_use_the_stores_test_clock(own_deployment: Callable[..., Deployment]) -> None:
    """When a test moves the store's clock past a window, the work processes see it too."""
    deployment = own_deployment(WORKER_ENV="test").start()
    callers, agents = deployment.api(0), deployment.api(1)
    for _ in range(2):
        id = callers.create("hasty")["id"]
        assert callers.until(id, "completed")["output"] == 2
        stream = agents.agent("remote-hasty", "c1")
        callers.create("remote-hasty")
        assignment = stream.next("execution.assigned")
        answers = [agents.intent(assignment, "invoke_tool", tool_id="limited").body for _ in range(3)]
        assert [answer["accepted"] for answer in answers] == [True, True, False]
        callers.ok("POST", f"/v0/executions/{assignment['execution_id']}/cancel")
        stream.close()
        deployment.client().incrby(Keys().test_clock, 61_000_000)
        deployment.wait()


def test_work_process_sweeps_abandoned_part_files(own_deployment: Callable[..., Deployment]) -> None:
    """An old part file is deleted soon after the start."""
    deployment = own_deployment()
    parts = deployment.home / "state" / "files" / "tmp"
    parts.mkdir(parents=True)
    old = parts / "old.part"
    old.write_bytes(b"left")
    os.utime(old, (0, 0))
    deployment.work.start()
    eventually(lambda: not old.exists(), 30, deployment.logs())
