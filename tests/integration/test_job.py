"""The job API for author functions and its replay after a crash, on a real store."""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from tests.engine import LEASE, SECOND, Crash, Engine
from worker.agents.job import Job
from worker.agents.lease import LeaseLost
from worker.agents.output_buffer import CHUNK_BYTES, MOST_CHARACTERS
from worker.core.errors import Failed, ToolDenied, ToolFailed, Transient
from worker.core.states import State
from worker.engine import events as limits
from worker.engine.record import Execution
from worker.files.names import safe_name
from worker.policy.judge import Decision, PolicyCall


def text_of(engine: Engine, id: str) -> str:
    """The text chunks of a log joined, each checked against its offset."""
    joined = ""
    for event in engine.log(id, "output.chunk"):
        chunk = event.data()
        assert chunk["offset"] == len(joined)
        joined += chunk["text"]
    return joined


def job_of(engine: Engine, execution: Execution, *, lease_us: int = LEASE) -> Job:
    """A job without a lease keeper: only the test writes."""
    engine.registry.capabilities.pop("a", None)
    engine.registry.agent("a")(lambda job: None)
    job = Job(
        execution,
        engine.registry.capabilities["a"],
        store=engine.store,
        files=engine.files,
        tools=engine.registry.tools,
        decide=lambda call: engine.decide(call),
        at=execution.started,
        lease_us=lease_us,
        step_timeout_us=60 * SECOND,
    )
    engine.closing.append(job.close)
    return job


def fails(engine: Engine, id: str) -> dict[str, Any]:
    execution = engine.get(id)
    assert execution.state == State.FAILED
    return execution.error


# Output and progress


def test_small_chunks_are_joined(engine: Engine) -> None:
    """A thousand words at once become a few events, and their text is complete."""

    def function(job: Job) -> None:
        for number in range(1000):
            job.say(f"{number} ")

    execution = engine.run(function)
    assert text_of(engine, execution.id) == "".join(f"{number} " for number in range(1000))
    assert len(engine.log(execution.id, "output.chunk")) < 12


def test_full_chunk_is_written_at_once(engine: Engine) -> None:
    """Four kilobytes are written immediately, less waits; the limit counts bytes, not characters."""
    job = job_of(engine, engine.running())
    job.say("é" * (CHUNK_BYTES // 2 - 1))
    assert engine.log(job.id, "output.chunk") == []
    job.say("é")
    assert len(engine.log(job.id, "output.chunk")) == 1


def test_lease_keeper_flushes_waiting_text(engine: Engine) -> None:
    """A word before a long pause reaches the log in about 50 ms, without another call."""
    reference, seen = threading.Event(), threading.Event()

    def function(job: Job) -> None:
        job.say("first")
        reference.set()
        assert seen.wait(10)

    id = engine.agent(function)
    thread = threading.Thread(target=engine.runner().run, args=(id,), daemon=True)
    thread.start()
    assert reference.wait(5)
    until = time.monotonic() + 5
    while not engine.log(id, "output.chunk") and time.monotonic() < until:
        time.sleep(0.005)
    assert text_of(engine, id) == "first"
    seen.set()
    thread.join(10)
    assert engine.get(id).state == State.COMPLETED


def test_long_text_is_split_into_events(engine: Engine) -> None:
    """A long text is split at the event size limit without loss."""
    text = "äb" * 50_000
    execution = engine.run(lambda job: job.say(text))
    assert text_of(engine, execution.id) == text
    assert all(
        len(event.data()["text"]) <= MOST_CHARACTERS for event in engine.log(execution.id, "output.chunk")
    )


@pytest.mark.parametrize("text", ["\ud800", b"bytes", 5, None])
def test_invalid_text_is_the_agents_error(engine: Engine, text: Any) -> None:
    """A lone surrogate or a number fails the execution immediately, and the process keeps working."""
    runner = engine.runner()
    id = engine.agent(lambda job: (job.say("ok"), job.say(text), time.sleep(0.2)))
    assert runner.run(id)
    assert fails(engine, id)["code"] == "OUTPUT_INVALID"
    following = engine.agent(lambda job: (job.say("next"), time.sleep(0.15), 1)[2])
    assert runner.run(following)
    assert (engine.get(following).state, text_of(engine, following)) == (State.COMPLETED, "next")


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [(-1, 0.0), (2, 1.0), (float("nan"), 0.0), (float("inf"), 1.0), (float("-inf"), 0.0), (0.25, 0.25)],
)
def test_progress_is_clamped(engine: Engine, fraction: float, shown: float) -> None:
    """Any given fraction is shown as a value from 0 to 1."""
    execution = engine.run(lambda job: job.progress(fraction, "m"))
    assert execution.progress == shown
    [event] = engine.log(execution.id, "progress.updated")
    assert event.data() == {"fraction": shown, "message": "m"}


def test_progress_messages_are_truncated_and_valid(engine: Engine) -> None:
    """A message of any length and with broken Unicode is stored short and valid."""
    execution = engine.run(lambda job: job.progress(0.5, "\ud800" + "x" * 9000))
    assert execution.message == "?" + "x" * 499


def test_seconds_left_counts_down(engine: Engine) -> None:
    """seconds_left counts down from the run limit and never below zero."""
    job = job_of(engine, engine.running(run_limit_us=2 * SECOND))
    assert 1.5 < job.seconds_left() <= 2.0
    assert job_of(engine, engine.running(run_limit_us=0)).seconds_left() == 0.0


# Log limits


def test_text_beyond_the_log_limit_goes_to_a_file(engine: Engine) -> None:
    """Past the limit the log says so once, progress continues in the record, and the full text is a file."""
    piece = "x" * 900_000
    runs = itertools.count()

    def function(job: Job) -> dict[str, int]:
        next(runs)
        for number in range(6):
            job.say(f"{number}{piece}")
        job.progress(0.9, "nearly")
        return {"a": 1}

    execution = engine.run(function)
    [overflow] = engine.log(execution.id, "output.overflow")
    written = text_of(engine, execution.id)
    whole = "".join(f"{number}{piece}" for number in range(6))
    assert overflow.data() == {"offset": len(written)}
    assert whole.startswith(written) and 0 < len(written) < len(whole)
    assert engine.stored(execution.id, "log_bytes") <= limits.MOST_LOG_BYTES
    assert (execution.progress, execution.result["type"]) == (0.9, "json")
    reference = execution.result["said_ref"]
    assert b"".join(engine.files.open(reference["key"])).decode() == whole
    [completed] = engine.log(execution.id, "execution.completed")
    assert completed.data()["said_file"] == {k: v for k, v in reference.items() if k != "key"}
    assert "key" not in completed.data()["said_file"]


def test_stream_beyond_the_log_limit_is_complete_in_its_deliverable(engine: Engine) -> None:
    """A generator's text is stored as a file in any case; only the log ends earlier."""

    def function(job: Job) -> Any:
        for number in range(6):
            yield f"{number}" + "x" * 900_000

    execution = engine.run(function)
    [file] = execution.result["files"]
    assert file["size"] == 6 * 900_001
    assert "said_ref" not in execution.result
    assert len(engine.log(execution.id, "output.overflow")) == 1


def test_no_text_is_logged_after_an_overflow(engine: Engine) -> None:
    """After the first text that did not fit no more is logged, so that a log has no gaps."""
    text = "x" * (limits.MOST_LOG_BYTES - limits.RESERVED_BYTES - 100_000)
    runs = itertools.count()

    def function(job: Job) -> int:
        job.say("begin ")
        job.tool("flush")
        if next(runs) == 0:
            job.say(text + text)
            raise Crash
        # Chunked differently than before: the first would fit.
        job.say(text)
        job.tool("flush")
        job.say(text + "end")
        return 1

    engine.registry.tool("flush")(lambda: None)
    id = engine.agent(function)
    engine.crash(id)
    assert engine.runner().run(id)
    assert text_of(engine, id) == "begin "
    assert len(engine.log(id, "output.overflow")) == 1
    reference = engine.get(id).result["said_ref"]
    assert reference["size"] == len("begin end") + 2 * len(text)


def test_log_full_of_steps_ends_the_execution(engine: Engine) -> None:
    """An agent that calls tools endlessly fails with a code instead of filling the store."""
    id = engine.agent(lambda job: [job.tool("t", n=n) for n in range(10)])
    engine.registry.tool("t")(lambda n: n)
    pipe = engine.client.pipeline(transaction=False)
    for _ in range(limits.MOST_EVENTS - 8):
        pipe.rpush(engine.keys.log(id), "1 signal.received - 0 0 {}")
    pipe.execute()
    assert engine.runner().run(id)
    assert fails(engine, id)["code"] == "LOG_FULL"


# After a crash


def test_output_and_progress_are_not_repeated_after_a_crash(engine: Engine) -> None:
    """A crash during a stream leaves one text and each progress once, however the chunks were split."""
    crash_at = iter([3, 7, 99])

    def function(job: Job) -> str:
        stop = next(crash_at)
        for number in range(10):
            job.progress(number / 10)
            job.say(f"word {number}, ")
            if number % 3 == 0:
                job.flush()
            if number == stop:
                raise Crash
        return "done"

    id = engine.agent(function)
    engine.crash(id)
    engine.crash(id)
    assert engine.runner().run(id)
    assert text_of(engine, id) == "".join(f"word {number}, " for number in range(10))
    shown = [event.data()["fraction"] for event in engine.log(id, "progress.updated")]
    assert shown == sorted(set(shown))
    assert engine.get(id).attempt == 3


def test_files_are_written_once(engine: Engine) -> None:
    """A file from before the crash is reused and reported once; its data is not generated again."""
    runs: list[int] = []
    crashed = threading.Event()

    def data() -> Any:
        runs.append(1)
        yield b"content"

    def function(job: Job) -> None:
        ref = job.file("a.txt", data(), mime="text/plain")
        if not crashed.is_set():
            crashed.set()
            raise Crash
        assert b"".join(engine.files.open(ref.key)) == b"content"
        job.file("b.txt", "second", mime="text/plain", ready=True)

    id = engine.agent(function)
    engine.crash(id)
    assert engine.runner().run(id)
    assert runs == [1]
    written = [event.data() for event in engine.log(id, "file.written")]
    assert [(each["name"], each["ready"]) for each in written] == [("a.txt", False), ("b.txt", True)]
    assert "key" not in written[0]
    result = engine.get(id).result
    assert (result["type"], [file["name"] for file in result["files"]]) == ("multiple", ["a.txt", "b.txt"])


@pytest.mark.parametrize("names", [("a.txt", "a.txt"), ("a/b.txt", "a_b.txt"), ("", "file")])
def test_duplicate_file_names_are_refused(engine: Engine, names: tuple[str, str]) -> None:
    """Names are compared in their delivered form, so none can shadow another."""
    id = engine.agent(lambda job: [job.file(name, b"x") for name in names])
    assert engine.runner().run(id)
    error = fails(engine, id)
    assert (error["code"], error["details"]) == ("DUPLICATE_FILE", {"field": safe_name(names[1])})


def test_once_keeps_the_first_value(engine: Engine) -> None:
    """Time and randomness of the first run are replayed in later ones, including large values."""
    values = itertools.count()
    crashed = threading.Event()

    def function(job: Job) -> list[Any]:
        seen = [job.once("n", lambda: {"n": next(values), "t": (1, 2)}), job.once("n", lambda: next(values))]
        large = job.once("large", lambda: "x" * 100_000)
        if not crashed.is_set():
            crashed.set()
            raise Crash
        return [*seen, len(large), next(values)]

    id = engine.agent(function)
    engine.crash(id)
    assert engine.runner().run(id)
    assert json.loads(engine.get(id).output) == [{"n": 0, "t": [1, 2]}] * 2 + [100_000, 1]
    assert len(engine.store.steps(id)["once:large"]) < 500


def test_finished_steps_are_replayed_from_the_record(engine: Engine) -> None:
    """After a crash a tool that had answered is not called again; an open one is."""
    calls: list[tuple[str, str | None]] = []
    crashed = threading.Event()

    @engine.registry.tool("ok")
    def ok(job: Job, q: str) -> Any:
        calls.append(("ok", job.step_key))
        return {"q": (q, [])}

    @engine.registry.tool("bad", attempts=1)
    def bad() -> None:
        calls.append(("bad", None))
        raise ValueError("secret text")

    @engine.registry.tool("open")
    def opened(job: Job) -> str:
        calls.append(("open", job.step_key))
        if not crashed.is_set():
            crashed.set()
            raise Crash
        return "x" * 50_000

    def function(job: Job) -> list[Any]:
        seen = [job.tool("ok", q="a")]
        with pytest.raises(ToolFailed) as failed:
            job.tool("bad")
        seen += [failed.value.reason, len(job.tool("open")), job.tool("ok", q="b")["q"], job.step_key]
        return seen

    id = engine.agent(function)
    engine.crash(id)
    assert engine.runner().run(id)
    expected = [{"q": ["a", []]}, "the tool raised ValueError", 50_000, ["b", []], None]
    assert json.loads(engine.get(id).output) == expected
    assert [name for name, _ in calls] == ["ok", "bad", "open", "open", "ok"]
    assert calls[2][1] == calls[3][1] == f"{id}:open#1"
    kinds = engine.kinds(id)
    assert (kinds.count("intent.accepted"), kinds.count("step.created")) == (4, 4)
    assert (kinds.count("step.completed"), kinds.count("step.failed"), kinds.count("step.retried")) == (
        3,
        1,
        1,
    )
    large = engine.log(id, "step.completed")[1].data()
    assert (large["result"], large["result_file"]["size"]) == (None, 50_002)
    assert max(len(value) for value in engine.store.steps(id).values()) < 1000


def test_step_value_is_the_same_before_and_after_a_crash(engine: Engine) -> None:
    """A tool's result is in JSON form from the start, so every run sees the same shape."""
    engine.registry.tool("t")(lambda: {1: (2, 3)})
    execution = engine.run(lambda job: [job.tool("t"), job.tool("t", key="t#1")])
    assert json.loads(execution.output) == [{"1": [2, 3]}] * 2


@pytest.mark.parametrize("change", ["tool", "arguments"])
def test_changed_call_under_a_key_is_not_replayable(engine: Engine, change: str) -> None:
    """A function that takes another path after a crash is stopped before a wrong call."""
    ran: list[int] = []
    engine.registry.tool("one")(lambda n: ran.append(n))
    engine.registry.tool("two")(lambda n: ran.append(n))
    runs = itertools.count()

    def function(job: Job) -> None:
        if next(runs) == 0:
            job.tool("one", key="k", n=1)
            raise Crash
        job.tool("one" if change == "arguments" else "two", key="k", n=2 if change == "arguments" else 1)

    id = engine.agent(function)
    engine.crash(id)
    assert engine.runner().run(id)
    assert fails(engine, id)["code"] == "NOT_REPLAYABLE"
    assert ran == [1]


def test_argument_order_does_not_matter(engine: Engine) -> None:
    """The same arguments in another order are the same call."""
    engine.registry.tool("t")(lambda **arguments: len(arguments))
    execution = engine.run(
        lambda job: [
            job.tool("t", key="k", a=1, b={"x": 1, "y": 2}),
            job.tool("t", key="k", b={"y": 2, "x": 1}, a=1),
        ]
    )
    assert json.loads(execution.output) == [2, 2]


# Tools


def test_transient_tool_failures_are_retried(engine: Engine) -> None:
    """A tool may fail transiently until its tries are used up; each try is in the log."""
    tries: list[str | None] = []

    @engine.registry.tool("t", attempts=3)
    def flaky(job: Job) -> str:
        tries.append(job.step_key)
        if len(tries) < 3:
            raise Transient("busy", retry_after=0.01)
        return "ok"

    execution = engine.run(lambda job: job.tool("t"))
    assert (execution.output, execution.attempt, len(set(tries))) == (b'"ok"', 1, 1)
    failed = [event.data() for event in engine.log(execution.id, "step.failed")]
    assert failed == [{"error": "busy", "retryable": True}] * 2
    retried = [event.data()["next_attempt"] for event in engine.log(execution.id, "step.retried")]
    assert retried == [2, 3]


def test_exhausted_tool_retries_fail_the_caller(engine: Engine) -> None:
    """After its last try the tool's failure is reported once, and becomes the execution's error."""
    ran: list[int] = []

    @engine.registry.tool("t", attempts=2)
    def broken() -> None:
        ran.append(1)
        raise Transient("always busy", retry_after=-5)

    execution = engine.run(lambda job: job.tool("t"))
    assert len(ran) == 2
    assert (execution.error["code"], execution.error["details"]) == ("TOOL_FAILED", {"tool": "t"})
    assert [event.data()["retryable"] for event in engine.log(execution.id, "step.failed")] == [True, False]


@pytest.mark.parametrize("value", [object(), b"x", float("nan"), {"a": {1}}])
def test_non_json_tool_values_fail_the_tool(engine: Engine, value: Any) -> None:
    """A result or an argument that is not JSON is a failed tool, not a broken execution."""
    engine.registry.tool("t", attempts=1)(lambda **keywords: value)

    def function(job: Job) -> list[str]:
        seen = []
        for arguments in ({}, {"x": value}):
            with pytest.raises(ToolFailed) as failed:
                job.tool("t", **arguments)
            seen.append(failed.value.reason)
        return seen

    execution = engine.run(function)
    assert json.loads(execution.output) == [
        "the tool returned something that is not JSON",
        "the arguments are not JSON",
    ]


def test_unusual_error_messages_are_stored_safely(engine: Engine) -> None:
    """A message of any type and length is stored as short, valid text."""
    odd = iter([Transient("\ud800" + "x" * 9000, retry_after=0), Transient(object(), retry_after=0)])  # type: ignore[arg-type]

    @engine.registry.tool("t")
    def flaky() -> int:
        for fault in odd:
            raise fault
        return 1

    execution = engine.run(lambda job: job.tool("t"))
    errors = [event.data()["error"] for event in engine.log(execution.id, "step.failed")]
    assert errors[0] == "?" + "x" * 1999 and errors[1].startswith("<object")
    assert execution.output == b"1"


def test_outage_in_a_policy_check_is_retried(engine: Engine) -> None:
    """Rate limits are counted in the store; a store outage delays a call and does not fail it."""
    outages = iter([redis.ConnectionError("away")])

    def decide(call: PolicyCall) -> Decision:
        for outage in outages:
            raise outage
        return Decision("allow", "r", "")

    engine.decide = decide
    engine.registry.tool("t")(lambda: 1)
    assert engine.run(lambda job: job.tool("t")).output == b"1"


def test_unknown_tool_leaves_no_intent(engine: Engine) -> None:
    """An unregistered name raises in the function; no intent is recorded."""
    execution = engine.run(lambda job: job.tool("nobody"))
    assert (execution.error["code"], execution.error["details"]) == ("TOOL_FAILED", {"tool": "nobody"})
    assert "intent.accepted" not in engine.kinds(execution.id)


def test_denied_call_is_recorded_with_its_rule(engine: Engine) -> None:
    """The policy sees the call and its history; a denial names the rule and the tool is not run."""
    calls: list[PolicyCall] = []
    ran: list[int] = []
    engine.registry.tool("t")(lambda n: ran.append(n))

    def decide(call: PolicyCall) -> Decision:
        calls.append(call)
        if call.step_count < 2:
            return Decision("allow", "first-two", "", timeout_ms=1500)
        return Decision("deny", "no-more", "two are enough")

    engine.decide = decide

    def function(job: Job) -> str:
        job.tool("t", n=0)
        job.tool("t", key="own", n=1)
        job.tool("t", key="own", n=1)
        with pytest.raises(ToolDenied) as denied:
            job.tool("t", n=2)
        return denied.value.reason

    execution = engine.run(function)
    assert json.loads(execution.output) == "policy denied: two are enough (rule: no-more)"
    assert [(call.step_count, call.tool_id, call.arguments) for call in calls] == [
        (0, "t", {"n": 0}),
        (1, "t", {"n": 1}),
        (2, "t", {"n": 2}),
    ]
    assert all(0 <= call.age_ms < 60_000 and call.agent_id == "a" for call in calls)
    [denied] = engine.log(execution.id, "intent.denied")
    assert denied.data() == {
        "intent_type": "invoke_tool",
        "tool_id": "t",
        "arguments": {"n": 2},
        "idempotency_key": "t#2",
        "reason": "two are enough",
        "rule_id": "no-more",
    }
    assert ran == [0, 1]
    created = engine.log(execution.id, "step.created")[0]
    assert created.data()["max_attempts"] == 3


def test_uncaught_denial_fails_the_execution(engine: Engine) -> None:
    """Uncaught, a denied call fails the execution with TOOL_DENIED, as does a denied approval."""
    engine.registry.tool("t")(lambda: None)
    engine.decide = lambda call: Decision("deny", "r", "no")
    execution = engine.run(lambda job: job.tool("t"))
    assert (execution.error["code"], execution.error["details"]) == ("TOOL_DENIED", {"tool": "t"})
    engine.decide = lambda call: Decision("require_approval", "r", "ask")
    execution = engine.run(lambda job: job.tool("t"))
    assert execution.state == "blocked"
    engine.executions.signal(execution.id, "approval", {"approved": False})
    assert engine.runner().run(execution.id)
    execution = engine.get(execution.id)
    assert (execution.error["code"], execution.error["details"]) == ("TOOL_DENIED", {"tool": "t"})


def test_policy_timeout_sets_the_step_deadline(engine: Engine) -> None:
    """A rule's timeout_ms replaces the worker's default, for the deadline in event and store."""
    engine.decide = lambda call: Decision("allow", "r", "", timeout_ms=1500)
    seen: list[float] = []

    @engine.registry.tool("t")
    def slow() -> None:
        seen.extend(
            score for _, score in engine.client.zrange(engine.keys.step_deadlines, 0, -1, withscores=True)
        )

    execution = engine.run(lambda job: job.tool("t"))
    [created] = engine.log(execution.id, "step.created")
    assert seen == [created.at + 1_500_000]


def test_long_arguments_are_logged_as_size_and_digest(engine: Engine) -> None:
    """Arguments over 4 kB reach the tool in full and the log as a digest."""
    engine.registry.tool("t")(lambda text: len(text))
    execution = engine.run(lambda job: job.tool("t", text="x" * 40_000))
    assert execution.output == b"40000"
    [created] = engine.log(execution.id, "step.created")
    assert (created.data()["arguments"], created.data()["arguments_omitted"]["size"]) == (None, 40_011)


# Lease lost


def test_cancelled_job_stops_at_its_next_call(engine: Engine) -> None:
    """After a cancellation the function's calls write nothing, and LeaseLost ends it."""
    ended: list[BaseException] = []

    def function(job: Job) -> None:
        engine.cancel(job.id)
        try:
            for _ in range(1000):
                job.say("late")
                time.sleep(0.01)
        except BaseException as error:
            ended.append(error)
            raise

    execution = engine.run(function)
    assert execution.state == State.CANCELLED
    assert isinstance(ended[0], LeaseLost)
    assert engine.kinds(execution.id) == ["execution.created", "execution.started", "execution.cancelled"]


@pytest.mark.parametrize("call", ["say", "progress", "file", "once", "tool"])
def test_every_call_of_a_stopped_job_raises(engine: Engine, call: str) -> None:
    """After the lease is lost, any call raises without contacting the store."""
    engine.registry.tool("t")(lambda: pytest.fail("ran"))
    job = job_of(engine, engine.running())
    job.stop("lost")
    job.stop("other")
    arguments: dict[str, tuple[Any, ...]] = {
        "say": ("x",),
        "progress": (0.5,),
        "file": ("a", b"x"),
        "once": ("n", lambda: pytest.fail("ran")),
        "tool": ("t",),
    }
    before = engine.whole()
    with pytest.raises(LeaseLost, match="lost"):
        getattr(job, call)(*arguments[call])
    assert engine.whole() == before


def test_retry_pause_ends_with_the_lease(engine: Engine) -> None:
    """A tool waiting for its next try is not called again once the execution was cancelled."""
    ran: list[int] = []
    id = engine.new()
    job = job_of(engine, engine.take(id))

    @engine.registry.tool("t")
    def busy() -> None:
        ran.append(1)
        threading.Timer(0.1, job.stop, ["cancelled"]).start()
        raise Transient("busy", retry_after=30)

    began = time.monotonic()
    with pytest.raises(LeaseLost):
        job.tool("t")
    assert (ran, time.monotonic() - began < 10) == ([1], True)


def test_expired_job_cannot_write(engine: Engine) -> None:
    """A process that slept past its lease is stopped at its first write; the next run is undisturbed."""
    id = engine.new()
    late = job_of(engine, engine.take(id))
    late.say("late")
    engine.advance(6)
    engine.lapse(id)
    job = job_of(engine, engine.take(id))
    for act in (late.flush, lambda: late.once("n", lambda: 1), lambda: late.file("f", b"x")):
        with pytest.raises(LeaseLost):
            act()
    job.say("in time")
    job.flush()
    assert text_of(engine, id) == "in time"
    assert engine.store.steps(id) == {}


# Store outages


class Flaky:
    """A store whose next calls fail, before they arrive or after they were executed."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.store
        self.fails: list[str] = []
        self.error: Exception = redis.ConnectionError("away")

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if not callable(real):
            return real

        def call(*args: Any, **options: Any) -> Any:
            how = self.fails.pop(0) if self.fails else ""
            if how == "before":
                raise self.error
            answer = real(*args, **options)
            if how == "after":
                raise self.error
            return answer

        return call


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("before", redis.ConnectionError("gone")),
        ("after", redis.ConnectionError("gone")),
        ("after", redis.TimeoutError("slow")),
        ("before", redis.exceptions.BusyLoadingError("loading")),
        ("before", redis.exceptions.ReadOnlyError("READONLY replica")),
    ],
    ids=lambda arguments: arguments if isinstance(arguments, str) else type(arguments).__name__,
)
def test_writes_are_retried_through_an_outage(engine: Engine, how: str, error: Exception) -> None:
    """Whether a write or only its response was lost, it is stored exactly once."""
    flaky = Flaky(engine)
    flaky.error = error
    ran: list[int] = []
    engine.registry.tool("t")(lambda: ran.append(1))
    execution = engine.running()
    store, engine.store = engine.store, flaky  # type: ignore[assignment]
    job = job_of(engine, execution)
    engine.store = store
    for act in (
        lambda: (job.say("text"), job.flush()),
        lambda: job.file("f.txt", b"x"),
        lambda: job.once("n", lambda: 7),
        lambda: job.tool("t"),
        lambda: job.insist(
            lambda: flaky.seal(job.id, 1, "completed", output=b"1", result=b"{}", error=b"", payload=b"{}")
        ),
    ):
        flaky.fails = [how]
        act()
    assert text_of(engine, job.id) == "text"
    assert engine.kinds(job.id)[2:] == [
        "output.chunk",
        "file.written",
        "intent.accepted",
        "step.created",
        "step.completed",
        "execution.completed",
    ]
    assert ran == [1]


def test_long_outage_stops_the_job(engine: Engine) -> None:
    """When its lease must have expired, a job gives up instead of hanging."""
    flaky = Flaky(engine)
    flaky.fails = ["before"] * 1000
    execution = engine.running()
    store, engine.store = engine.store, flaky  # type: ignore[assignment]
    job = job_of(engine, execution, lease_us=SECOND // 2)
    engine.store = store
    job.say("x")
    began = time.monotonic()
    with pytest.raises(LeaseLost):
        job.flush()
    assert 0.4 < time.monotonic() - began < 5
    assert job.stopped == "lost"


def test_text_survives_a_failed_flush(engine: Engine) -> None:
    """A store error other than an outage loses no text: the next flush writes it."""
    flaky = Flaky(engine)
    flaky.error = redis.ResponseError("something is wrong")
    execution = engine.running()
    store, engine.store = engine.store, flaky  # type: ignore[assignment]
    job = job_of(engine, execution)
    engine.store = store
    job.say("one ")
    flaky.fails = ["before"]
    with pytest.raises(redis.ResponseError):
        job.flush()
    job.say("two")
    job.flush()
    assert text_of(engine, job.id) == "one two"


def test_two_author_threads_lose_nothing(engine: Engine) -> None:
    """Concurrent text and files from several threads are all stored, each once."""

    def function(job: Job) -> int:
        def work(number: int) -> None:
            for turn in range(40):
                job.say(f"<{number}.{turn}>")
                if turn % 10 == 0:
                    job.file(f"{number}-{turn}.txt", b"x")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 1

    execution = engine.run(function)
    words = text_of(engine, execution.id)
    assert sorted(words.replace("><", ">|<").split("|")) == sorted(
        f"<{number}.{turn}>" for number in range(4) for turn in range(40)
    )
    assert len(engine.log(execution.id, "file.written")) == 16


def test_author_cannot_swallow_lease_loss(engine: Engine) -> None:
    """The lease-loss exception is not an Exception, so `except Exception` does not swallow it."""
    assert not issubclass(LeaseLost, Exception)
    assert issubclass(Failed, Exception)


def test_tool_exception_is_logged_for_the_operator(engine: Engine) -> None:
    """The caller learns only the kind of error; the operator sees its text, its place and the step."""

    def broken() -> None:
        raise KeyError("the text of the error")

    engine.registry.tool("broken")(broken)
    with capture_logs() as logs:
        failed = engine.run(lambda job: job.tool("broken"))
    [shown] = engine.log(failed.id, "step.failed")
    assert shown.data()["error"] == "the tool raised KeyError" and "the text" not in str(failed.error)
    [record] = [line for line in logs if line["event"] == "tool.raised"]
    assert (record["tool"], record["execution_id"], record["log_level"]) == ("broken", failed.id, "error")
    assert record["exc_info"] and record["step_id"] == shown.step_id
