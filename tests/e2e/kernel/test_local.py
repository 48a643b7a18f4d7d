"""Local functions that wait for people, ask for approval, and use runners, over the same door."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.site import Site
from tests.waiting import eventually


def words(trace: Path) -> list[str]:
    return [line.split(" ")[1] for line in trace.read_text().splitlines()] if trace.exists() else []


def said(callers: Api, id: str) -> list[str]:
    """The text between resets, as somebody who streams has it."""
    found = [""]
    for event in callers.events(id):
        if event["type"] == "output.reset":
            found.append("")
        elif event["type"] == "output.chunk":
            found[-1] += event["payload"]["text"]
    return found


def test_a_wait_frees_the_process_and_runs_again_from_the_record(callers: Api, tmp_path: Path) -> None:
    """The function runs twice, its tool once; `finally` runs when it is suspended; no attempt is used up."""
    trace = tmp_path / "trace"
    id = callers.create("patient", {"trace": str(trace)})["id"]
    callers.until(id, "blocked")
    assert words(trace) == ["begin", "tool", "finally"]
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


def test_a_signal_that_came_before_answers_at_once(callers: Api) -> None:
    """Signals are kept, and answer waits in the order in which they came."""
    id = callers.create("asking")["id"]
    callers.until(id, "blocked")
    assert callers.signal(id, "other", 0).status == 200
    assert callers.status(id) == "blocked"
    assert callers.signal(id, "word", "first").status == 200
    assert callers.signal(id, "word", "second").status == 200
    assert callers.until(id, "completed")["output"] == ["first", "second"]


def test_a_wait_expires(callers: Api) -> None:
    """After its limit a wait raises inside the function, or ends it when that is not caught."""
    caught, uncaught = callers.create("impatient")["id"], callers.create("abandoned")["id"]
    assert callers.until(caught, "completed")["output"] == {"answer": None}
    callers.until(uncaught, "failed")
    assert callers.event(uncaught, "execution.failed")["payload"]["code"] == "WAIT_EXPIRED"


def test_a_stream_is_told_anew(callers: Api) -> None:
    """What was said before the wait is said again after it, behind a mark that resets it."""
    id = callers.create("telling")["id"]
    callers.until(id, "blocked")
    callers.signal(id, "middle", "two")
    callers.until(id, "completed")
    assert said(callers, id) == ["one ", "one two three"]


@pytest.mark.parametrize("kind", ["step.approve", "approval"])
@pytest.mark.parametrize("approved", [True, False])
def test_a_local_tool_that_needs_approval(callers: Api, tmp_path: Path, kind: str, approved: bool) -> None:
    """The execution stands still until somebody decides; a denial raises inside the function."""
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


def test_a_runner_works_for_a_local_function(agents: Api, callers: Api) -> None:
    """`remote=True` sends the call to whoever offers the tool; passing failures are tried again there."""
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


def test_a_runner_that_fails_for_a_local_function(agents: Api, callers: Api) -> None:
    """The function sees the runner's error."""
    runner = agents.runner("far", "c2", "far.away")
    id = callers.create("delegating", {"n": 5})["id"]
    job = runner.next("job.assigned")
    assert agents.job_result("far", job, success=False, error="it is broken").status == 200
    assert callers.until(id, "completed")["output"] == {"failed": "it is broken"}
    runner.close()


def test_an_approved_call_of_a_runner(agents: Api, callers: Api) -> None:
    """Approval first, then the runner, then the function runs again and finds the result."""
    runner = agents.runner("far", "c3", "deploy.far")
    id = callers.create("delegating", {"n": 5, "tool": "deploy.far"})["id"]
    callers.until(id, "blocked")
    assert runner.quiet(0.3)
    assert callers.signal(id, "approval", {"approved": True}).status == 200
    job = runner.next("job.assigned")
    assert agents.job_result("far", job, success=True, data="done").status == 200
    assert callers.until(id, "completed")["output"] == {"value": "done"}
    runner.close()


def test_waits_survive_a_restart_of_the_work_tree(own_site: Callable[..., Site], tmp_path: Path) -> None:
    """The tree that took the work is gone when the answer comes; another one goes on."""
    site = own_site().start()
    callers, trace = site.api(1), tmp_path / "trace"
    id = callers.create("patient", {"trace": str(trace)})["id"]
    asked = callers.create("deployer", {"trace": str(trace)})["id"]
    callers.until(id, "blocked")
    callers.until(asked, "blocked")
    site.work.signal(signal.SIGTERM)
    site.work.ends()
    assert callers.signal(id, "approval", {"approved": True}).status == 200
    assert callers.signal(asked, "approval", {"approved": True}).status == 200
    site.work.start()
    assert callers.until(id, "completed", seconds=20)["output"]["length"] == 4
    assert callers.until(asked, "completed", seconds=20)["output"] == {"said": "deployed example"}
