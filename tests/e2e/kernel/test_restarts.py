"""No execution is lost when processes shut down or are killed."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.kernel.conftest import POLICY
from tests.e2e.kernel.deployment import Deployment
from tests.e2e.kernel.sdks import SDKS, Sdk
from tests.waiting import eventually


@pytest.fixture(name="patched", scope="module")
def _patched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One deployment for all tests here."""
    deployment = Deployment(tmp_path_factory.mktemp("patched"), POLICY=str(POLICY))
    yield deployment.start()
    deployment.close()


@pytest.fixture(name="broken")
def _broken(patched: Deployment) -> Deployment:
    """A deployment whose processes may be killed; restored for the next test, with new names."""
    for program in (*patched.web, patched.work):
        if program.process is not None and program.process.poll() is not None:
            program.start()
    patched.wait()
    patched.tag = uuid.uuid4().hex[:8]
    return patched


def test_stopping_web_process_hands_over_its_streams(broken: Deployment) -> None:
    """Its streams end cleanly; the consumer reconnects elsewhere with the same session and its messages."""
    leaving, staying = broken.api(0), broken.api(1)
    stream, runner = (
        leaving.agent(broken.name("a"), "c1"),
        leaving.runner(broken.name("r"), "c1", broken.name("far")),
    )
    id = staying.create(broken.name("a"))["id"]
    assignment = stream.next("execution.assigned")
    step = leaving.accepted(assignment, "invoke_tool", tool_id=broken.name("far"), remote=True)["step_id"]
    job = runner.next("job.assigned")
    broken.web[0].signal(signal.SIGTERM)
    assert stream.closed.wait(10) and runner.closed.wait(10)
    # While no agent is connected, its results are stored for it.
    assert staying.job_result(broken.name("r"), job, success=True, data=7).status == 200
    back = staying.agent(broken.name("a"), "c1")
    assert back.next("tool.result") == {
        "execution_id": id,
        "step_id": step,
        "status": "succeeded",
        "result": 7,
    }
    again = staying.runner(broken.name("r"), "c1", broken.name("far"))
    assert staying.accepted(assignment, "invoke_tool", tool_id=broken.name("far"), remote=True)
    assert staying.job_result(broken.name("r"), again.next("job.assigned"), success=True).status == 200
    assert staying.accepted(assignment, "complete", output="done")
    assert staying.get(id)["output"] == "done"
    kinds = staying.kinds(id)
    assert "execution.reset" not in kinds and kinds.count("execution.started") == 1
    assert broken.web[0].ends(20) == 0
    back.close()
    again.close()


def test_absent_consumer_is_replaced_after_the_agent_timeout(broken: Deployment) -> None:
    """After the agent timeout its work goes to another consumer; new work does not wait for that."""
    leaving, staying = broken.api(0), broken.api(1)
    stream = leaving.agent(broken.name("a"), "c1")
    id = staying.create(broken.name("a"))["id"]
    stream.next("execution.assigned")
    broken.web[0].signal(signal.SIGTERM)
    assert stream.closed.wait(10)
    other = staying.agent(broken.name("a"), "c2")
    new = staying.create(broken.name("a"))["id"]
    assert other.next("execution.assigned")["execution_id"] == new
    assert other.next("execution.assigned")["execution_id"] == id
    other.close()


@pytest.mark.parametrize("consumer", ["c1", "c2"])
def test_killed_web_process_loses_no_executions(broken: Deployment, consumer: str) -> None:
    """The agent's work continues elsewhere: at once if the agent reconnects, else after its time-out."""
    dying, staying = broken.api(0), broken.api(1)
    stream, runner = (
        dying.agent(broken.name("a"), "c1"),
        dying.runner(broken.name("r"), "c1", broken.name("far")),
    )
    id = staying.create(broken.name("a"))["id"]
    assignment = stream.next("execution.assigned")
    step = staying.accepted(assignment, "invoke_tool", tool_id=broken.name("far"), remote=True)["step_id"]
    assert runner.next("job.assigned")["step_id"] == step
    broken.web[0].kill()
    back = staying.agent(broken.name("a"), consumer)
    again = back.next("execution.assigned", 12)
    assert again["execution_id"] == id and again["session_id"] != assignment["session_id"]
    assert again["history"][0]["status"] == "cancelled"
    assert staying.intent(assignment, "complete").status == 401
    assert staying.accepted(again, "complete")
    back.close()


def test_runners_job_survives_a_killed_web_process(broken: Deployment) -> None:
    """A job whose runner was on a killed process is dispatched to another runner."""
    dying, staying = broken.api(0), broken.api(1)
    stream, runner = (
        staying.agent(broken.name("a"), "c1"),
        dying.runner(broken.name("r"), "c1", broken.name("far")),
    )
    staying.create(broken.name("a"))
    assignment = stream.next("execution.assigned")
    staying.accepted(assignment, "invoke_tool", tool_id=broken.name("far"), remote=True)
    first = runner.next("job.assigned")
    broken.web[0].kill()
    other = staying.runner(broken.name("r2"), "c1", broken.name("far"))
    second = other.next("job.assigned", 12)
    assert second["step_id"] == first["step_id"] and second["id"] != first["id"]
    assert staying.job_result(broken.name("r2"), second, success=True, data=1).status == 200
    assert stream.next("tool.result")["result"] == 1
    stream.close()
    other.close()


def test_full_restart_keeps_running_blocked_and_retrying_work(broken: Deployment) -> None:
    """Blocked work stays blocked, running work returns to its agent, retries fire, approvals count."""
    api = broken.api(0)
    stream = api.agent(broken.name("a"), "c1")
    names = ("waiting", "asking", "running", "retrying")
    ids = {name: api.create(broken.name("a"), name)["id"] for name in names}
    assignments = {each["input"]: each for each in (stream.next("execution.assigned") for _ in names)}
    assert api.accepted(assignments["waiting"], "wait", signal_type="go")
    assert api.accepted(assignments["asking"], "invoke_tool", tool_id="deploy.x", arguments={"a": 1})[
        "pending_approval"
    ]
    done = api.accepted(assignments["running"], "invoke_tool", tool_id="t")["step_id"]
    api.step_result(assignments["running"], done, success=True, data="kept")
    local = api.create("delegating", {"n": 1})["id"]
    eventually(lambda: "step.dispatched" in api.kinds(local))
    far = api.runner(broken.name("f"), "c1", "far.away")
    job = far.next("job.assigned")
    assert api.job_result(broken.name("f"), job, success=False, error="later", retryable=True).status == 200
    for program in (*broken.web, broken.work):
        program.kill()
    broken.restart_store()
    for program in (*broken.web, broken.work):
        program.start()
    broken.wait()
    assert [api.status(ids[name]) for name in ("waiting", "asking")] == ["blocked", "blocked"]
    far.close()
    far = api.runner(broken.name("f"), "c2", "far.away")
    again = far.next("job.assigned", 15)
    assert (again["step_id"], again["attempt"]) == (job["step_id"], 2)
    assert api.job_result(broken.name("f"), again, success=True, data="at last").status == 200
    assert api.until(local, "completed", seconds=20)["output"] == {"value": "at last"}
    back = api.agent(broken.name("a"), "c1-restarted")
    got = {}
    for _ in range(2):
        each = back.next("execution.assigned", 12)
        got[each["input"]] = each
    assert set(got) == {"running", "retrying"}
    assert [step["result"] for step in got["running"]["history"]] == ["kept"]
    assert api.signal(ids["waiting"], "go", 1).status == 200
    assert api.signal(ids["asking"], "approval", {"approved": True}).status == 200
    for _ in range(2):
        each = back.next("execution.assigned", 12)
        got[each["input"]] = each
    assert api.accepted(got["waiting"], "wait", signal_type="go")
    assert back.next("signal.received")["payload"] == 1
    asked = api.accepted(got["asking"], "invoke_tool", tool_id="deploy.x", arguments={"a": 1})
    assert "pending_approval" not in asked
    api.step_result(got["asking"], asked["step_id"], success=True)
    for each in got.values():
        assert api.accepted(each, "complete")
    assert {api.status(id) for id in ids.values()} == {"completed"}
    back.close()
    far.close()


def test_store_restart_under_open_streams_loses_nothing(broken: Deployment) -> None:
    """During the outage requests get 503 and idle connections stay open; afterwards nothing is lost."""
    agents, callers = broken.api(0), broken.api(1)
    stream = agents.agent(broken.name("a"), "c1")
    id = callers.create(broken.name("a"))["id"]
    assignment = stream.next("execution.assigned")
    broken.restart_store()
    eventually(lambda: callers.call("GET", f"/v0/executions/{id}").status == 200)
    assert agents.accepted(assignment, "complete", output=1)
    assert callers.get(id)["output"] == 1
    new = callers.create(broken.name("a"))["id"]
    assert stream.next("execution.assigned")["execution_id"] == new
    stream.close()


@pytest.mark.parametrize("sdk", SDKS, ids=[sdk.version for sdk in SDKS])
def test_official_agent_survives_a_rolling_deploy(
    own_deployment: Callable[..., Deployment], sdk: Sdk, tmp_path: Path
) -> None:
    """The web process is replaced while a handler works: the handler's session continues and it runs once."""
    # A process takes a while to stop and to start again; the default time-out is thirty seconds.
    deployment = own_deployment(AGENT_TIMEOUT="20s").start()
    program = sdk.program("agent", deployment.name("deployed"), deployment.address(0), tmp_path / "log")
    program.start()
    callers = deployment.api(1)
    try:
        id = callers.create(deployment.name("deployed"), {"do": "work", "seconds": 3.0})["id"]
        eventually(lambda: "step.completed" in callers.kinds(id), 15)
        deployment.web[0].signal(signal.SIGTERM)
        deployment.web[0].ends(20)
        deployment.web[0].start()
        found = callers.until(id, "completed", "failed", seconds=30)
        assert found["output"] == {"sum": 4, "history": 0}, (callers.events(id), program.log.read_text())
        assert callers.kinds(id).count("execution.started") == 1
        again = callers.create(deployment.name("deployed"), {"do": "local"})["id"]
        assert callers.until(again, "completed", seconds=15)["output"] == {"sum": 5}
    finally:
        program.stop()


def test_killed_agent_process_is_replaced(broken: Deployment, tmp_path: Path) -> None:
    """Its executions restart, with their history, at the agent's next process."""
    sdk = SDKS[-1]
    programs = [
        sdk.program("agent", broken.name("mortal"), broken.address(n), tmp_path / f"log{n}") for n in (0, 1)
    ]
    callers = broken.api(1)
    programs[0].start()
    try:
        id = callers.create(broken.name("mortal"), {"do": "work", "seconds": 2.0})["id"]
        eventually(lambda: "step.completed" in callers.kinds(id), 15)
        programs[0].kill()
        programs[1].start()
        found = callers.until(id, "completed", "failed", seconds=20)
        assert found["output"] == {"sum": 4, "history": 1}
    finally:
        for program in programs:
            program.stop()


def test_streams_opened_during_an_outage_end_without_errors(broken: Deployment) -> None:
    """The streams end, their clients reconnect, and no log reports it as an internal error."""
    api, pid = broken.api(1), broken.store.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        stream = api.agent(broken.name("early"), "c1")
        assert stream.closed.wait(20)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "stream.store_unavailable" in (broken.home / "web-1.log").read_text()
    assert "Error handling request" not in (broken.home / "web-1.log").read_text()
    broken.wait()
    api.agent(broken.name("early"), "c1").close()


def test_execution_streams_close_cleanly_at_a_deploy(broken: Deployment) -> None:
    """Watchers are disconnected cleanly and resume at another process where they stopped."""
    leaving, staying = broken.api(0), broken.api(1)
    id = staying.create("nobody")["id"]
    watcher = leaving.sse(f"/v0/executions/{id}/stream")
    assert watcher.next()["sequence"] == 1
    began = time.monotonic()
    broken.web[0].signal(signal.SIGTERM)
    assert watcher.closed.wait(10)
    assert broken.web[0].ends(20) == 0 and time.monotonic() - began < 15
    other = staying.sse(f"/v0/executions/{id}/stream", Last_Event_ID="1")
    staying.ok("POST", f"/v0/executions/{id}/cancel")
    assert [sent.event for sent in other.all()] == ["execution.cancelled"]
