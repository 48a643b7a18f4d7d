"""Approved executions without a connected agent; the agent's options while an approval waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine import SECOND, Engine
from tests.integration.test_remote_limits import ticking
from tests.integration.test_remote_scripts import Kernel, done, job
from worker.core.errors import BadRequest, Conflict
from worker.policy.judge import Decision


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


def blocked_alone(kernel: Kernel, **changes: Any) -> str:
    """An execution that waits for a signal and whose agent has disconnected."""
    connection = kernel.agent()
    id = kernel.new(**changes)
    kernel.intent(id, "wait", signal_type="go")
    kernel.connections.close(connection)
    assert kernel.states(id) == ["blocked"]
    return id


def go(kernel: Kernel, id: str) -> None:
    kernel.engine.signals.send(id, "go", 5)


def test_approved_execution_runs_without_a_session_until_assigned(kernel: Kernel) -> None:
    """The next consumer to connect gets it, under any name; the wait used no attempt."""
    id = blocked_alone(kernel)
    go(kernel, id)
    clock = ticking(kernel.engine)
    for _ in range(3):
        clock.tick()
        kernel.engine.advance(9)
    kernel.connections.sweep(kernel.engine.now())
    found = kernel.engine.get(id)
    assert (found.state, found.session, found.attempt) == ("running", "", 1)
    assert kernel.engine.kinds(id)[-1] == "execution.resumed"
    back = kernel.agent("a", "another")
    assert [event for event, _ in kernel.mail(back)] == ["execution.assigned"]
    found = kernel.engine.get(id)
    assert (found.state, found.attempt, found.fence) == ("running", 1, 2)
    assert kernel.engine.kinds(id)[-2:] == ["execution.reset", "execution.started"]
    kernel.intent(id, "wait", signal_type="go")
    assert kernel.states(id) == ["running"]
    kernel.intent(id, "complete")


def test_unclaimed_execution_is_reset_after_a_timeout(kernel: Kernel) -> None:
    """It then waits in its queue like any other, once, and with no attempt used."""
    id = blocked_alone(kernel)
    go(kernel, id)
    clock = ticking(kernel.engine)
    clock.tick()
    kernel.engine.advance(29)
    clock.tick()
    assert kernel.states(id) == ["running"]
    kernel.engine.advance(2)
    for _ in range(3):
        clock.tick()
    assert kernel.states(id) == ["pending"]
    assert kernel.engine.kinds(id).count("execution.reset") == 1
    kernel.agent("a", "c2")
    found = kernel.engine.get(id)
    assert (found.state, found.attempt) == ("running", 1)


def test_connected_agent_gets_it_at_once(kernel: Kernel) -> None:
    """Another consumer of the same agent need not reconnect."""
    id = blocked_alone(kernel)
    other = kernel.agent("a", "c2")
    assert kernel.mail(other) == []
    go(kernel, id)
    ticking(kernel.engine).tick()
    assert [event for event, _ in kernel.mail(other)] == ["execution.assigned"]
    assert kernel.engine.get(id).attempt == 1


def test_run_limit_continues_while_unclaimed(kernel: Kernel) -> None:
    """A run whose limit ends meanwhile fails by overtime and is not assigned again."""
    id = blocked_alone(kernel, run_limit_us=10 * SECOND)
    go(kernel, id)
    clock = ticking(kernel.engine)
    clock.tick()
    kernel.engine.advance(11)
    clock.tick()
    assert kernel.states(id) == ["failed"]
    clock.tick()
    assert kernel.mail(kernel.agent()) == []


def test_expired_connection_releases_work_once(kernel: Kernel) -> None:
    """The signal precedes the clock's cleanup of the agent: one reset, by the next to connect."""
    kernel.agent()
    id = kernel.new()
    kernel.intent(id, "wait", signal_type="go")
    kernel.engine.advance(31)
    go(kernel, id)
    assert kernel.states(id) == ["running"]
    kernel.connections.sweep(kernel.engine.now())
    assert kernel.states(id) == ["running"]
    ticking(kernel.engine).tick()
    kernel.agent("a", "c2")
    assert kernel.engine.kinds(id).count("execution.reset") == 1
    assert kernel.engine.get(id).attempt == 1


def test_cancel_while_unclaimed(kernel: Kernel) -> None:
    """The queue has no entry left for the next agent."""
    id = blocked_alone(kernel)
    go(kernel, id)
    clock = ticking(kernel.engine)
    clock.tick()
    assert kernel.engine.cancel(id) == "cancelled"
    clock.tick()
    assert kernel.mail(kernel.agent()) == [] and kernel.store.length("a") == 0


# While an approval waits


def asking(kernel: Kernel, *tools: str) -> tuple[Any, str, list[str]]:
    """An agent, its execution, and its steps that wait for approval."""
    connection, id = kernel.working()
    kernel.decision = Decision("require_approval", "ask", "ask first")
    steps = [kernel.invoke(id, tool) for tool in tools]
    kernel.decision = Decision("allow", "all", "")
    assert kernel.states(id) == ["blocked"]
    return connection, id, steps


def approve(kernel: Kernel, id: str, step: str | None, *, yes: bool = True) -> None:
    payload = {"approved": yes} if step is None else {"step_id": step, "approved": yes}
    kernel.engine.signals.send(id, "step.approve" if step else "approval", payload)


def test_other_tools_run_while_an_approval_waits(kernel: Kernel) -> None:
    """Local and remote ones; the execution stays blocked, and completes after the approval."""
    connection, id, [deploy] = asking(kernel, "deploy")
    local, remote = kernel.invoke(id, "search"), kernel.invoke(id, "t", remote=True)
    kernel.result(id, local, data=1)
    done(kernel, job(kernel, kernel.runner()))
    assert kernel.states(id) == ["blocked"]
    for refused in ({"type": "complete"}, {"type": "wait", "signal_type": "go"}):
        with pytest.raises(Conflict, match="blocked pending approval"):
            kernel.intent(id, **refused)
    approve(kernel, id, deploy)
    assert kernel.states(id) == ["running"]
    messages = [data["step_id"] for event, data in kernel.mail(connection) if event == "tool.result"]
    assert messages == [local, remote]
    kernel.result(id, deploy)
    kernel.intent(id, "complete")
    assert kernel.states(id) == ["completed"]


def test_call_is_denied_while_an_approval_waits(kernel: Kernel) -> None:
    """A policy's denial is a result, not a conflict."""
    _, id, _ = asking(kernel, "deploy")
    kernel.decision = Decision("deny", "no", "no shell")
    assert kernel.intent(id, "invoke_tool", tool="shell")["accepted"] is False


def test_agent_may_fail_while_an_approval_waits(kernel: Kernel) -> None:
    """Its open steps end with the execution, whether waiting or running; no key is left behind."""
    _, id, [deploy] = asking(kernel, "deploy")
    other = kernel.invoke(id, "search")
    kernel.intent(id, "fail", error="search is broken")
    found = kernel.engine.get(id)
    assert found.state == "failed" and found.error["error"] == "search is broken"
    assert [event.step_id for event in kernel.engine.log(id, "step.cancelled")] == [deploy, other]
    assert kernel.engine.client.zscore(kernel.engine.keys.by_state("blocked"), id) is None
    with pytest.raises(Conflict):
        approve(kernel, id, deploy)


def test_two_approvals_wait_at_once(kernel: Kernel) -> None:
    """Each is decided by its own signal, in any order; a signal without a step is refused if two wait."""
    connection, id, [first, second] = asking(kernel, "deploy.a", "deploy.b")
    kernel.mail(connection)
    with pytest.raises(BadRequest, match="several steps wait for approval") as caught:
        approve(kernel, id, None)
    assert caught.value.details["expected"] == [first, second]
    approve(kernel, id, second)
    assert kernel.states(id) == ["blocked"]
    kernel.result(id, second)
    with pytest.raises(Conflict):
        kernel.result(id, first)
    approve(kernel, id, None, yes=False)
    assert kernel.states(id) == ["running"]
    messages = [data for event, data in kernel.mail(connection) if event == "approval.resolved"]
    assert [(each["step_id"], each["approved"]) for each in messages] == [(second, True), (first, False)]
    kernel.intent(id, "complete")


def test_another_session_is_refused_while_an_approval_waits(kernel: Kernel) -> None:
    """Only the session that has the execution may call; during a wait for a signal nobody may."""
    _, id = kernel.working()
    kernel.intent(id, "wait", signal_type="go")
    for refused in ({"type": "invoke_tool", "tool": "t"}, {"type": "fail", "error": "x"}):
        with pytest.raises(Conflict, match="until a signal arrives"):
            kernel.intent(id, **refused)
