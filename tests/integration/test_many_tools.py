"""Runners with the maximum number of tools, and connections whose cleanup fails."""

from __future__ import annotations

import pytest

from tests.engine import Engine
from tests.integration.test_remote_scripts import Kernel, done, job
from worker.doors.kernel_runners import MOST_TOOLS


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


@pytest.mark.parametrize("count", [17, 21, 22, 200, MOST_TOOLS])
def test_job_for_the_last_of_many_tools_arrives(kernel: Kernel, count: int) -> None:
    """The runner of the last tool gets it, then offers other tools, and leaves nothing behind."""
    _, id = kernel.working()
    tools = [f"tool-{n}" for n in range(count)]
    runner = kernel.runner("r", "c", *tools)
    step = kernel.invoke(id, tools[-1], remote=True)
    assignment = job(kernel, runner)
    assert assignment["step_id"] == step
    done(kernel, assignment)
    offering = kernel.store.connection(runner.epoch)
    assert offering is not None
    kernel.engine.runners.update(offering, [f"other-{n}" for n in range(count)])
    assert kernel.jobs.runner_for(tools[-1]) is None
    kernel.invoke(id, f"other-{count - 1}", remote=True)
    done(kernel, job(kernel, runner))
    kernel.connections.close(runner)
    assert kernel.store.connection(runner.epoch) is None
    assert kernel.jobs.runner_for(f"other-{count - 1}") is None


def test_failing_cleanup_of_a_connection_stops_no_other(kernel: Kernel) -> None:
    """The clock still cleans up the other connections."""
    stuck = kernel.runner("r", "c1", "t")
    fine = [kernel.runner(name, "c1", f"tool of {name}") for name in ("a", "z")]
    offers = kernel.engine.keys.offers("t")
    kernel.engine.client.delete(offers)
    kernel.engine.client.set(offers, "spoilt")
    kernel.engine.advance(31)
    kernel.connections.sweep(kernel.engine.now())
    assert [kernel.store.connection(each.epoch) for each in fine] == [None, None]
    assert kernel.store.connection(stuck.epoch) is not None
    kernel.engine.client.delete(offers)
    kernel.connections.sweep(kernel.engine.now())
    assert kernel.store.connection(stuck.epoch) is None
