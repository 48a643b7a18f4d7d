"""Tool call arguments are stored once: short ones in the log, long ones in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine import Engine, in_thread
from tests.integration.test_remote_scripts import Kernel, done, job
from tests.waiting import eventually
from worker.core.errors import Conflict
from worker.engine.events import MOST_LOG_BYTES
from worker.files.store import DiskFiles
from worker.policy.judge import Decision
from worker.remote.payloads import REPEATED_ARGUMENTS, SHOWN_ARGUMENTS

MARK = "only here"


@pytest.fixture(name="kernel")
def _kernel(engine: Engine) -> Kernel:
    return Kernel(engine)


def arguments(size: int) -> dict[str, str]:
    return {"text": MARK + "x" * (size - len(MARK))}


def copies(kernel: Kernel) -> int:
    """How many copies of the arguments the store has."""
    return str(kernel.engine.whole()).count(MARK)


def stored(kernel: Kernel) -> list[Path]:
    assert isinstance(kernel.engine.files, DiskFiles)
    return [path for path in kernel.engine.files.directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("size", [SHOWN_ARGUMENTS - 100, 30_000, 40_000])
def test_500_calls_fit_with_any_arguments(kernel: Kernel, size: int) -> None:
    """The log is limited by its events, not by the arguments of tools."""
    connection, id = kernel.working()
    for n in range(500):
        kernel.result(id, kernel.invoke(id, has_arguments=True, arguments={**arguments(size), "n": n}))
        assert len(kernel.mail(connection)) == 1
    kernel.intent(id, "complete")
    assert kernel.states(id) == ["completed"]


def test_log_limit_counts_stored_bytes_only(kernel: Kernel) -> None:
    """Only events count towards the limit, and the call that exceeds it leaves no file."""
    _, id = kernel.working()
    before = kernel.engine.stored(id, "log_bytes")
    kernel.invoke(id, has_arguments=True, arguments=arguments(30_000))
    booked = kernel.engine.stored(id, "log_bytes") - before
    assert booked < 1_000
    kernel.engine.client.hset(kernel.engine.keys.record(id), "log_bytes", MOST_LOG_BYTES - booked + 1)
    files = stored(kernel)
    with pytest.raises(Conflict, match="the log of execution .* is full"):
        kernel.invoke(id, has_arguments=True, arguments=arguments(30_000))
    assert stored(kernel) == files


@pytest.mark.parametrize(
    ("size", "in_store", "in_files"),
    [(REPEATED_ARGUMENTS - 100, 2, 0), (SHOWN_ARGUMENTS - 100, 1, 0), (5_000, 0, 1), (40_000, 0, 1)],
)
def test_arguments_are_stored_once(kernel: Kernel, size: int, in_store: int, in_files: int) -> None:
    """Only short ones are repeated; the file is removed with the execution."""
    _, id = kernel.working()
    about: dict[str, Any] = {"has_arguments": True, "arguments": arguments(size), "key": "k"}
    step = kernel.invoke(id, **about)
    assert kernel.invoke(id, **about) == step
    # An intent's response is stored under the digest of its arguments.
    assert (copies(kernel), len(stored(kernel))) == (in_store, in_files)
    kernel.result(id, step)
    kernel.intent(id, "complete")
    clock = kernel.engine.clock(retention=1)
    kernel.engine.advance(100)
    for _ in range(5):
        clock.tick()
    assert kernel.engine.store.get(id) is None and stored(kernel) == []


@pytest.mark.parametrize("size", [1_000, 30_000, 40_000])
def test_runner_and_later_run_get_the_full_arguments(kernel: Kernel, size: int) -> None:
    """The job has the full arguments, and so has the history of a later run."""
    connection, id = kernel.working()
    runner = kernel.runner()
    kernel.invoke(id, remote=True, has_arguments=True, arguments=arguments(size))
    job_message = job(kernel, runner)
    assert job_message["arguments"] == arguments(size)
    done(kernel, job_message)
    kernel.connections.close(connection)
    [(_, assigned)] = kernel.mail(kernel.agent("a", "c2"))
    assert [step["arguments"] for step in assigned["history"]] == [arguments(size)]


def test_approval_event_shows_the_arguments(kernel: Kernel) -> None:
    """Up to 32 kB are in step.approval_required, and nowhere else in the log."""
    _, id = kernel.working()
    kernel.decision = Decision("require_approval", "ask", "ask first")
    kernel.invoke(id, has_arguments=True, arguments=arguments(30_000))
    [asked] = kernel.engine.log(id, "step.approval_required")
    assert asked.data()["arguments"] == arguments(30_000)
    [blocked] = kernel.engine.log(id, "execution.blocked")
    omitted = blocked.data()["arguments_omitted"]
    assert blocked.data()["arguments"] is None and omitted["size"] > 30_000
    assert copies(kernel) == 1


def test_run_after_an_approval_reuses_the_stored_arguments(kernel: Kernel) -> None:
    """It sends the job created by the approval, with the arguments that its runner has."""
    engine, runner = kernel.engine, kernel.runner()
    engine.decide = lambda call: Decision("require_approval", "ask", "ask first")
    id = engine.agent(lambda running: running.tool("t", remote=True, text="x" * 10_000))
    assert engine.runner().run(id)
    assert len(stored(kernel)) == 1
    engine.executions.signal(id, "approval", {"approved": True})

    def answer() -> None:
        # The second run has started by then: its step's deadline is running.
        eventually(lambda: kernel.states(id) == ["running"], 10)
        done(kernel, job(kernel, runner), data="done")

    with in_thread(answer):
        assert engine.runner().run(id)
    assert engine.executions.output(engine.get(id)) == "done"
    assert len(stored(kernel)) == 1
