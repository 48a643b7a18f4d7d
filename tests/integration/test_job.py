"""What an author's function can do, and what a run after a crash makes of it, on a real store."""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import pytest
import redis

from tests.engine import LEASE, SECOND, Crash, Engine
from worker.agents.hold import Stopped
from worker.agents.job import Job
from worker.agents.speech import CHUNK_BYTES, MOST_CHARACTERS
from worker.delivery.names import safe_name
from worker.errors import Failed, ToolDenied, ToolFailed, Transient
from worker.executions import store as limits
from worker.executions.policy import Call, Decision
from worker.executions.record import Execution
from worker.executions.states import State


def text_of(engine: Engine, id: str) -> str:
    """The chunks of a log joined, each where it says it belongs."""
    joined = ""
    for event in engine.log(id, "output.chunk"):
        chunk = event.data()
        assert chunk["offset"] == len(joined)
        joined += chunk["text"]
    return joined


def job_of(engine: Engine, execution: Execution, *, lease_us: int = LEASE) -> Job:
    """A job without a keeper: nothing is written but by the test."""
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


# Saying and showing


def test_small_chunks_are_joined(engine: Engine) -> None:
    """A thousand words in a moment are a few events, and their text is whole."""

    def function(job: Job) -> None:
        for number in range(1000):
            job.say(f"{number} ")

    execution = engine.run(function)
    assert text_of(engine, execution.id) == "".join(f"{number} " for number in range(1000))
    assert len(engine.log(execution.id, "output.chunk")) < 12


def test_a_chunk_is_written_when_it_is_large_enough(engine: Engine) -> None:
    """Four kilobytes go out at once, what is smaller waits; bytes count, not characters."""
    job = job_of(engine, engine.running())
    job.say("é" * (CHUNK_BYTES // 2 - 1))
    assert engine.log(job.id, "output.chunk") == []
    job.say("é")
    assert len(engine.log(job.id, "output.chunk")) == 1


def test_the_keeper_writes_what_has_waited(engine: Engine) -> None:
    """A word said before a long silence reaches the log in about 50 ms, without another call."""
    said, seen = threading.Event(), threading.Event()

    def function(job: Job) -> None:
        job.say("first")
        said.set()
        assert seen.wait(10)

    id = engine.agent(function)
    thread = threading.Thread(target=engine.runner().run, args=(id,), daemon=True)
    thread.start()
    assert said.wait(5)
    until = time.monotonic() + 5
    while not engine.log(id, "output.chunk") and time.monotonic() < until:
        time.sleep(0.005)
    assert text_of(engine, id) == "first"
    seen.set()
    thread.join(10)
    assert engine.get(id).state == State.COMPLETED


def test_a_huge_chunk_is_cut_into_events(engine: Engine) -> None:
    """No event holds more than its share of one long text, and nothing of it is lost."""
    text = "äb" * 50_000
    execution = engine.run(lambda job: job.say(text))
    assert text_of(engine, execution.id) == text
    assert all(
        len(event.data()["text"]) <= MOST_CHARACTERS for event in engine.log(execution.id, "output.chunk")
    )


@pytest.mark.parametrize("text", ["\ud800", b"bytes", 5, None])
def test_what_is_no_text_is_the_agents_error(engine: Engine, text: Any) -> None:
    """Half a surrogate or a number fails the execution at once, and the process can go on working."""
    runner = engine.runner()
    id = engine.agent(lambda job: (job.say("ok"), job.say(text), time.sleep(0.2)))
    assert runner.run(id)
    assert fails(engine, id)["code"] == "OUTPUT_INVALID"
    following = engine.agent(lambda job: (job.say("next"), time.sleep(0.15), 1)[2])
    assert runner.run(following)
    assert (engine.get(following).state, text_of(engine, following)) == (State.COMPLETED, "next")


@pytest.mark.parametrize(
    ("given", "shown"),
    [(-1, 0.0), (2, 1.0), (float("nan"), 0.0), (float("inf"), 1.0), (float("-inf"), 0.0), (0.25, 0.25)],
)
def test_progress_stays_between_nothing_and_all(engine: Engine, given: float, shown: float) -> None:
    """Whatever fraction is given, what is shown lies between 0 and 1."""
    execution = engine.run(lambda job: job.progress(given, "m"))
    assert execution.progress == shown
    [event] = engine.log(execution.id, "progress.updated")
    assert event.data() == {"fraction": shown, "message": "m"}


def test_progress_messages_are_cut_and_clean(engine: Engine) -> None:
    """A message of any length and with broken Unicode is stored short and valid."""
    execution = engine.run(lambda job: job.progress(0.5, "\ud800" + "x" * 9000))
    assert execution.message == "?" + "x" * 499


def test_time_left_is_the_run_limit_less_what_went_by(engine: Engine) -> None:
    """seconds_left counts down from the run limit and never below zero."""
    job = job_of(engine, engine.running(run_limit_us=2 * SECOND))
    assert 1.5 < job.seconds_left() <= 2.0
    assert job_of(engine, engine.running(run_limit_us=0)).seconds_left() == 0.0


# The limits of the log


def test_text_that_the_log_cannot_take_is_kept_in_a_file(engine: Engine) -> None:
    """Past the limit the log says so once, progress goes on in the record, and the whole text is a file."""
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
    assert int(execution.raw["log_bytes"]) <= limits.MOST_LOG_BYTES
    assert (execution.progress, execution.result["type"]) == (0.9, "json")
    said = execution.result["said_ref"]
    assert b"".join(engine.files.open(said["key"])).decode() == whole
    [completed] = engine.log(execution.id, "execution.completed")
    assert completed.data()["said_file"] == {k: v for k, v in said.items() if k != "key"}
    assert "key" not in completed.data()["said_file"]


def test_a_stream_past_the_limit_is_whole_in_its_deliverable(engine: Engine) -> None:
    """A generator's text is a file anyway; the log just ends earlier."""

    def function(job: Job) -> Any:
        for number in range(6):
            yield f"{number}" + "x" * 900_000

    execution = engine.run(function)
    [file] = execution.result["files"]
    assert file["size"] == 6 * 900_001
    assert "said_ref" not in execution.result
    assert len(engine.log(execution.id, "output.overflow")) == 1


def test_after_an_overflow_a_later_run_says_nothing_either(engine: Engine) -> None:
    """Text after the first that did not fit stays out of the log, so that a log never has a hole."""
    text = "x" * (limits.MOST_LOG_BYTES - limits.RESERVED_BYTES - 100_000)
    runs = itertools.count()

    def function(job: Job) -> int:
        job.say("begin ")
        job.tool("flush")
        if next(runs) == 0:
            job.say(text + text)
            raise Crash
        # In other pieces than before: the first would fit.
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
    said = engine.get(id).result["said_ref"]
    assert said["size"] == len("begin end") + 2 * len(text)


def test_a_log_full_of_steps_ends_the_execution(engine: Engine) -> None:
    """An agent that calls tools without end fails with a code instead of filling the store."""
    id = engine.agent(lambda job: [job.tool("t", n=n) for n in range(10)])
    engine.registry.tool("t")(lambda n: n)
    pipe = engine.client.pipeline(transaction=False)
    for _ in range(limits.MOST_EVENTS - 8):
        pipe.rpush(engine.keys.log(id), "1 signal.received - 0 0 {}")
    pipe.execute()
    assert engine.runner().run(id)
    assert fails(engine, id)["code"] == "LOG_FULL"


# After a crash


def test_what_was_said_and_shown_is_not_repeated(engine: Engine) -> None:
    """A crash in the middle of a stream leaves one text and each progress once, however the chunks fell."""
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
    """A file from before the crash is the same file afterwards, told of once; its data is not made again."""
    made: list[int] = []
    crashed = threading.Event()

    def data() -> Any:
        made.append(1)
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
    assert made == [1]
    told = [event.data() for event in engine.log(id, "file.written")]
    assert [(each["name"], each["ready"]) for each in told] == [("a.txt", False), ("b.txt", True)]
    assert "key" not in told[0]
    result = engine.get(id).result
    assert (result["type"], [file["name"] for file in result["files"]]) == ("multiple", ["a.txt", "b.txt"])


@pytest.mark.parametrize("names", [("a.txt", "a.txt"), ("a/b.txt", "a_b.txt"), ("", "file")])
def test_two_files_of_one_name_are_refused(engine: Engine, names: tuple[str, str]) -> None:
    """Names are compared as they will be delivered, so none can hide another."""
    id = engine.agent(lambda job: [job.file(name, b"x") for name in names])
    assert engine.runner().run(id)
    error = fails(engine, id)
    assert (error["code"], error["details"]) == ("DUPLICATE_FILE", {"field": safe_name(names[1])})


def test_once_keeps_the_first_value(engine: Engine) -> None:
    """Time and randomness of the first run are those of every later one, large values included."""
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


def test_finished_steps_answer_from_the_record(engine: Engine) -> None:
    """After a crash a tool that had answered is not called again; one that was open is."""
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


def test_a_step_gives_the_same_value_before_and_after_a_crash(engine: Engine) -> None:
    """What the tool returned is seen in its JSON form from the start, so no run meets another shape."""
    engine.registry.tool("t")(lambda: {1: (2, 3)})
    execution = engine.run(lambda job: [job.tool("t"), job.tool("t", key="t#1")])
    assert json.loads(execution.output) == [{"1": [2, 3]}] * 2


@pytest.mark.parametrize("change", ["tool", "arguments"])
def test_another_call_under_a_key_fails_as_not_replayable(engine: Engine, change: str) -> None:
    """A function that takes another path after a crash is stopped before it does the wrong thing."""
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


def test_the_order_of_arguments_does_not_matter(engine: Engine) -> None:
    """The same arguments in another order are the same call."""
    engine.registry.tool("t")(lambda **given: len(given))
    execution = engine.run(
        lambda job: [
            job.tool("t", key="k", a=1, b={"x": 1, "y": 2}),
            job.tool("t", key="k", b={"y": 2, "x": 1}, a=1),
        ]
    )
    assert json.loads(execution.output) == [2, 2]


# Tools


def test_passing_faults_of_a_tool_are_tried_again(engine: Engine) -> None:
    """A tool may fail in passing as often as it has tries left; each try is in the log."""
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


def test_a_tool_without_tries_left_fails_its_caller(engine: Engine) -> None:
    """After its last try the tool's failure is told once, and becomes the execution's error."""
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
def test_tools_speak_json(engine: Engine, value: Any) -> None:
    """A result or an argument that JSON has no form for is a failed tool, not a broken execution."""
    engine.registry.tool("t", attempts=1)(lambda **given: value)

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
        "its arguments are not JSON",
    ]


def test_a_fault_told_in_odd_words_is_told(engine: Engine) -> None:
    """A message of any kind and length is stored as short, valid text."""
    odd = iter([Transient("\ud800" + "x" * 9000, retry_after=0), Transient(object(), retry_after=0)])  # type: ignore[arg-type]

    @engine.registry.tool("t")
    def flaky() -> int:
        for fault in odd:
            raise fault
        return 1

    execution = engine.run(lambda job: job.tool("t"))
    told = [event.data()["error"] for event in engine.log(execution.id, "step.failed")]
    assert told[0] == "?" + "x" * 1999 and told[1].startswith("<object")
    assert execution.output == b"1"


def test_a_policy_that_cannot_be_asked_is_asked_again(engine: Engine) -> None:
    """Rate limits are counted in the store; an outage there delays a call and does not fail it."""
    outages = iter([redis.ConnectionError("away")])

    def decide(call: Call) -> Decision:
        for outage in outages:
            raise outage
        return Decision("allow", "r", "")

    engine.decide = decide
    engine.registry.tool("t")(lambda: 1)
    assert engine.run(lambda job: job.tool("t")).output == b"1"


def test_an_unknown_tool_fails_without_a_trace_of_a_call(engine: Engine) -> None:
    """A name that nobody registered is told to the function; no intent is recorded."""
    execution = engine.run(lambda job: job.tool("nobody"))
    assert (execution.error["code"], execution.error["details"]) == ("TOOL_FAILED", {"tool": "nobody"})
    assert "intent.accepted" not in engine.kinds(execution.id)


def test_a_denied_call_is_recorded_with_its_rule(engine: Engine) -> None:
    """The policy sees the call and its history; a denial names the rule and the tool never runs."""
    calls: list[Call] = []
    ran: list[int] = []
    engine.registry.tool("t")(lambda n: ran.append(n))

    def decide(call: Call) -> Decision:
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


def test_a_denial_ends_an_execution_that_does_not_expect_it(engine: Engine) -> None:
    """Uncaught, a refused call fails the execution with TOOL_DENIED; so does one that somebody denies."""
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


def test_the_policys_time_out_holds_for_the_step(engine: Engine) -> None:
    """A rule's timeout_ms replaces the worker's own, for the deadline in the event and in the store."""
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


def test_long_arguments_are_told_by_size_and_digest(engine: Engine) -> None:
    """Arguments over 32 kB reach the tool whole and the log as a digest."""
    engine.registry.tool("t")(lambda text: len(text))
    execution = engine.run(lambda job: job.tool("t", text="x" * 40_000))
    assert execution.output == b"40000"
    [created] = engine.log(execution.id, "step.created")
    assert (created.data()["arguments"], created.data()["arguments_omitted"]["size"]) == (None, 40_011)


# The lease is gone


def test_a_cancelled_job_stops_at_its_next_call(engine: Engine) -> None:
    """After a cancellation nothing the function says is written, and it is ended by Stopped."""
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
    assert isinstance(ended[0], Stopped)
    assert engine.kinds(execution.id) == ["execution.created", "execution.started", "execution.cancelled"]


@pytest.mark.parametrize("call", ["say", "progress", "file", "once", "tool"])
def test_every_call_of_a_stopped_job_stops(engine: Engine, call: str) -> None:
    """Whatever an author calls after the lease is gone, the store is not asked and nothing happens."""
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
    with pytest.raises(Stopped, match="lost"):
        getattr(job, call)(*arguments[call])
    assert engine.whole() == before


def test_a_pause_between_tries_ends_with_the_lease(engine: Engine) -> None:
    """A tool that waits for its next try is not called again once the execution was cancelled."""
    ran: list[int] = []
    id = engine.new()
    job = job_of(engine, engine.take(id))

    @engine.registry.tool("t")
    def busy() -> None:
        ran.append(1)
        threading.Timer(0.1, job.stop, ["cancelled"]).start()
        raise Transient("busy", retry_after=30)

    began = time.monotonic()
    with pytest.raises(Stopped):
        job.tool("t")
    assert (ran, time.monotonic() - began < 10) == ([1], True)


def test_a_late_job_cannot_write(engine: Engine) -> None:
    """A process that slept past its lease is stopped at its first write; the next run is not disturbed."""
    id = engine.new()
    late = job_of(engine, engine.take(id))
    late.say("late")
    engine.advance(6)
    engine.lapse(id)
    job = job_of(engine, engine.take(id))
    for act in (late.flush, lambda: late.once("n", lambda: 1), lambda: late.file("f", b"x")):
        with pytest.raises(Stopped):
            act()
    job.say("in time")
    job.flush()
    assert text_of(engine, id) == "in time"
    assert engine.store.steps(id) == {}


# The store is away


class Flaky:
    """A store whose next calls fail: before they arrive, or after they were done."""

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
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_writes_are_repeated_through_an_outage(engine: Engine, how: str, error: Exception) -> None:
    """Whether a write was lost or only its answer, in the end it is there exactly once."""
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


def test_a_long_outage_stops_the_job(engine: Engine) -> None:
    """When the lease must have lapsed, a job gives up instead of hanging."""
    flaky = Flaky(engine)
    flaky.fails = ["before"] * 1000
    execution = engine.running()
    store, engine.store = engine.store, flaky  # type: ignore[assignment]
    job = job_of(engine, execution, lease_us=SECOND // 2)
    engine.store = store
    job.say("x")
    began = time.monotonic()
    with pytest.raises(Stopped):
        job.flush()
    assert 0.4 < time.monotonic() - began < 5
    assert job.stopped == "lost"


def test_text_survives_a_write_that_failed_for_good(engine: Engine) -> None:
    """An error of the store that is no outage loses no text: the next flush writes it."""
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


def test_two_threads_of_an_author_lose_nothing(engine: Engine) -> None:
    """Words and files from several threads at once are all there, none twice."""

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


def test_errors_of_an_author_are_theirs(engine: Engine) -> None:
    """Catching everything does not swallow Stopped, which is no Exception."""
    assert not issubclass(Stopped, Exception)
    assert issubclass(Failed, Exception)
