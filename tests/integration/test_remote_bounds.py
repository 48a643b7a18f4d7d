"""What strangers' names and texts may do to remote work, and how far it may grow."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine import SECOND, Crash, Engine
from tests.integration.test_remote_scripts import Kernel
from worker.ids import new_id
from worker.queue.clock import Clock


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


def ticking(engine: Engine, **more: Any) -> Clock:
    """The clock as the work tree has it."""
    return Clock(
        engine.store,
        engine.queue,
        files=engine.files,
        tree="t1",
        retention_us=10**15,
        **{"attend": engine.assignment.attend, **more},
    )


# The clock


@pytest.mark.parametrize("kind", ["the job", " job", "x value", "x args", "x status", "@ job", "file:x"])
def test_a_signals_name_is_not_taken_for_a_step(kernel: Kernel, kind: str) -> None:
    """Whatever a signal is called, the clock sees to the end of its execution, and removes it later."""
    agent, id = kernel.working()
    kernel.invoke(id, remote=True)
    kernel.engine.signals.send(id, kind, {"a": 1})
    kernel.engine.cancel(id)
    ticking(kernel.engine).tick()
    assert [event for event, _ in kernel.mail(agent)][-1] == "execution.cancelled"
    assert not kernel.engine.client.zcard(kernel.engine.keys.timers)
    kernel.engine.advance(10)
    kernel.engine.clock(retention=1).tick()
    assert kernel.engine.store.get(id) is None


def test_a_local_functions_names_are_not_taken_for_steps(engine: Engine) -> None:
    """A step's key and a file's name may end in any word, beside a job of a runner."""

    def work(job: Any) -> None:
        job.file("annual job", b"x")
        job.once("the job", lambda: 1)
        raise Crash

    id = engine.agent(work)
    engine.crash(id)
    taken = engine.take(id)
    step = engine.begin(taken, key="a job")[1].decode()
    sent = [id, taken.fence, step, new_id(), "null", SECOND]
    assert engine.remote_store.local("send_job", id, [engine.keys.jobs("t")], sent) == b"ok"
    engine.cancel(id)
    ticking(engine).tick()
    assert not engine.client.exists(engine.keys.timers, engine.keys.jobs("t"))


def test_what_cannot_be_helped_keeps_nobody_waiting(engine: Engine) -> None:
    """An item or a chore that fails in any way is told of, and the others have their turn."""
    one, other = (engine.new(timeout_us=SECOND) for _ in range(2))
    seen: list[str] = []

    def attend(id: str) -> None:
        raise KeyError(id)

    def chore(at: int) -> None:
        raise ValueError(at)

    engine.client.hset(engine.keys.record(one), "lane", "remote")
    engine.client.zadd(engine.keys.timers, {one: 1})
    engine.advance(2)
    clock = ticking(engine, chores=[chore, lambda at: seen.append("chore")], attend=attend)
    clock.tick()
    assert engine.get(other).state == "failed" and seen == ["chore"]
