"""From what a function returns or raises to the end of its execution."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import SECOND, Engine
from worker.agents.job import Job
from worker.delivery.files import FileRef
from worker.errors import (
    BadRequest,
    Conflict,
    Failed,
    InvalidInput,
    NotFound,
    ToolDenied,
    ToolFailed,
    Transient,
    Unavailable,
)
from worker.executions.record import Execution
from worker.executions.states import State
from worker.queue.runner import MOST_MESSAGE, failure

SECRET = "postgres://user:hunter2@db"


def raising(error: BaseException) -> Callable[[Job], None]:
    def function(job: Job) -> None:
        raise error

    return function


def everything(engine: Engine) -> bytes:
    """All that the store holds, as one text to search."""
    return repr(engine.whole()).encode()


def content(engine: Engine, ref: dict[str, Any]) -> bytes:
    return b"".join(engine.files.open(FileRef(**ref).key))


@pytest.mark.parametrize(
    ("error", "code", "details"),
    [
        (
            InvalidInput("no such colour", field="colors[0]", expected="hex", received="red"),
            "INVALID_INPUT",
            {"field": "colors[0]", "expected": "hex", "received": "red"},
        ),
        (Failed("NO_LUCK", "it was not to be", tried=3), "NO_LUCK", {"tried": 3}),
        (ToolDenied("shell.exec", "not here"), "TOOL_DENIED", {"tool": "shell.exec"}),
        (ToolFailed("web.get", SECRET), "TOOL_FAILED", {"tool": "web.get"}),
        (BadRequest(), "INVALID_REQUEST", {}),
        (NotFound("no such thing", code="THING_NOT_FOUND"), "THING_NOT_FOUND", {}),
        (Conflict(state="x"), "CONFLICT", {"state": "x"}),
        (ValueError(SECRET), "INTERNAL_ERROR", {}),
        (KeyError(SECRET), "INTERNAL_ERROR", {}),
        (RecursionError(SECRET), "INTERNAL_ERROR", {}),
        (MemoryError(SECRET), "INTERNAL_ERROR", {}),
        (SystemExit(SECRET), "INTERNAL_ERROR", {}),
        (BaseExceptionGroup("g", [ValueError(SECRET)]), "INTERNAL_ERROR", {}),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else None,
)
def test_whatever_is_raised_has_a_code(
    engine: Engine, error: BaseException, code: str, details: dict[str, Any]
) -> None:
    """Each error has its code and details in record and event; a foreign error's text is nowhere."""
    execution = engine.run(raising(error))
    assert (execution.state, execution.error["code"], execution.error["details"]) == (
        State.FAILED,
        code,
        details,
    )
    assert engine.log(execution.id, "execution.failed")[0].data() == execution.error
    assert b"hunter2" not in everything(engine)
    assert engine.parent.heard == ["running", "idle"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput(field="x", received=object()),
        InvalidInput(field="x", received=b"bytes", expected=float("nan")),
        Failed("CODE", "m", details={1, 2}),
        Failed("CODE", "m", big="x" * 100_000),
        Failed("CODE", "\ud800"),
        Failed("CODE", "m" * 1_000_000),
        Failed("\udfff", "m"),
        Failed("CODE", None),  # type: ignore[arg-type]
    ],
    ids=range(8),
)
def test_an_error_that_cannot_be_stored_is_still_an_error(engine: Engine, error: BaseException) -> None:
    """Details that are no JSON, or too long, are left out; code and message stay, valid and short."""
    execution = engine.run(raising(error))
    assert execution.state == State.FAILED
    assert set(execution.error) == {"error", "code", "details", "retryable"}
    assert len(execution.error["error"]) <= MOST_MESSAGE
    assert len(execution.raw["error"]) < 40_000


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters()), st.text(st.characters()))
def test_any_text_makes_a_failure(code: str, message: str) -> None:
    """No text can keep a failure from being written."""
    made = json.loads(failure(code, message, retryable=True))
    assert made["retryable"] is True and made["details"] == {}


@pytest.mark.parametrize("error", [Transient("busy"), Transient(retry_after=60), Unavailable("away")])
def test_a_passing_fault_is_tried_again_before_anybody_hears(engine: Engine, error: Exception) -> None:
    """After 1 s and 5 s the function runs again; only the third fault ends the execution."""
    id = engine.agent(raising(error))
    runner = engine.runner()
    for delay in (1, 5):
        assert runner.run(id)
        assert engine.get(id).state == State.PENDING
        assert not runner.run(id)
        engine.advance(delay - 0.5)
        assert engine.store.hint(id) == ("early", "")
        engine.advance(0.6)
        assert engine.store.hint(id)[0] == "queued"
    assert runner.run(id)
    execution = engine.get(id)
    assert (execution.error["code"], execution.error["retryable"], execution.attempt) == (
        "TRANSIENT_FAILURE",
        True,
        3,
    )
    resets = [event.data()["reason"] for event in engine.log(id, "execution.reset")]
    assert resets == ["transient", "transient"]


def test_a_fault_in_passing_then_success(engine: Engine) -> None:
    """The attempt that works delivers, and the earlier faults are only in the log."""
    attempts: list[int] = []

    def function(job: Job) -> str:
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise Transient
        return "ok"

    id = engine.agent(function)
    engine.runner().run(id)
    engine.advance(2)
    engine.runner().run(id)
    assert (engine.get(id).output, attempts) == (b'"ok"', [1, 2])


def test_a_cancellation_during_a_passing_fault_ends_quietly(engine: Engine) -> None:
    """When the execution was cancelled meanwhile, the retry is refused and the process goes on."""

    def function(job: Job) -> None:
        engine.cancel(job.id)
        job.stop("lost")
        raise Transient

    assert engine.run(function).state == State.CANCELLED
    assert engine.run(lambda job: 1).state == State.COMPLETED


def _generator(job: Job) -> Any:
    yield "one "
    yield "two"


def _returns_generator(job: Job) -> Any:
    return (text for text in ("one ", "two"))


def _two_files(job: Job) -> None:
    job.file("a.txt", "a", mime="text/plain")
    job.file("b.txt", [b"b", b"b"], mime="text/plain")


def _file_and_value(job: Job) -> list[int]:
    job.file("a.txt", b"a")
    return [1]


@pytest.mark.parametrize(
    ("function", "type", "files", "output"),
    [
        (lambda job: "text", "text", [], b'"text"'),
        (lambda job: "", "text", [], b'""'),
        (lambda job: {"a": []}, "json", [], b'{"a":[]}'),
        (lambda job: [], "json", [], b"[]"),
        (lambda job: None, "json", [], b"null"),
        (lambda job: job.file("a.txt", b"a") and None, "file", ["a.txt"], b""),
        (_two_files, "multiple", ["a.txt", "b.txt"], b""),
        (_file_and_value, "multiple", ["a.txt"], b"[1]"),
        (_generator, "stream", ["output.txt"], b""),
        (_returns_generator, "stream", ["output.txt"], b""),
    ],
    ids=["text", "empty", "object", "list", "none", "file", "files", "both", "generator", "iterator"],
)
def test_the_kind_of_output_follows_from_what_came_back(
    engine: Engine, function: Callable[[Job], Any], type: str, files: list[str], output: bytes
) -> None:
    """Text, JSON, files and streams are told apart; the terminal event shows what was delivered."""
    execution = engine.run(function)
    assert execution.state == State.COMPLETED
    assert (execution.result["type"], [file["name"] for file in execution.result["files"]]) == (type, files)
    assert execution.output == output
    told = engine.log(execution.id, "execution.completed")[0].data()
    assert told["output"] == (json.loads(output) if output else None)
    assert [file["name"] for file in told.get("files", [])] == files
    assert all(set(file) == {"name", "mime", "size", "sha256"} for file in told.get("files", []))
    if type == "stream":
        assert content(engine, execution.result["files"][0]) == b"one two"
        assert (
            "".join(event.data()["text"] for event in engine.log(execution.id, "output.chunk")) == "one two"
        )


@pytest.mark.parametrize("value", [object(), b"x", {1}, float("nan"), {"a": object()}, "\ud800", ["\udfff"]])
def test_what_cannot_be_delivered_is_the_agents_error(engine: Engine, value: Any) -> None:
    """A value that JSON has no form for fails the execution with OUTPUT_INVALID."""
    execution = engine.run(lambda job: value)
    assert execution.error["code"] == "OUTPUT_INVALID"


def test_a_generator_that_breaks_midway_fails_after_its_words(engine: Engine) -> None:
    """What was streamed stays in the log, the execution fails, and no deliverable is left."""

    def function(job: Job) -> Any:
        yield "begun"
        raise Failed("BROKE", "half way")

    execution = engine.run(function)
    assert (execution.error["code"], execution.result) == ("BROKE", {})
    assert engine.kinds(execution.id)[2:] == ["output.chunk", "execution.failed"]


def test_a_generator_may_yield_only_text(engine: Engine) -> None:
    """Anything else in a stream is the agent's error, and what came before stays."""

    def function(job: Job) -> Any:
        yield "text"
        yield {"no": "text"}

    execution = engine.run(function)
    assert execution.error["code"] == "OUTPUT_INVALID"


@pytest.mark.parametrize(
    ("value", "type", "name"), [("x" * 40_000, "text", "output.txt"), (["é" * 40_000], "json", "output.json")]
)
def test_a_large_output_is_a_file(engine: Engine, value: Any, type: str, name: str) -> None:
    """Over 32 kB record and event hold size and digest, and readers get the whole value."""
    execution = engine.run(lambda job: value)
    assert (execution.result["type"], execution.output) == (type, b"")
    ref = execution.result["value_ref"]
    assert ref["name"] == name
    assert engine.executions.output(execution) == value
    told = engine.log(execution.id, "execution.completed")[0].data()
    assert told["output"] is None
    assert told["output_file"] == {
        "mime": ref["mime"],
        "name": name,
        "sha256": ref["sha256"],
        "size": ref["size"],
    }
    assert len(execution.raw["result"]) < 1000


def test_an_output_of_just_32_kb_stays_in_the_record(engine: Engine) -> None:
    """The limit is exact: quotes included, 32,768 bytes are inline and one more is not."""
    inline = engine.run(lambda job: "x" * (32 * 1024 - 2))
    assert (len(inline.output), "value_ref" in inline.result) == (32 * 1024, False)
    assert "value_ref" in engine.run(lambda job: "x" * (32 * 1024 - 1)).result


SCHEMA = {"type": "object", "required": ["score"], "properties": {"score": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"score": 1}, True),
        ({"score": "1"}, False),
        ([], False),
        ("text", False),
        (None, False),
        ((1,), False),
    ],
)
def test_promised_shapes_are_kept(engine: Engine, value: Any, fits: bool) -> None:
    """An output that does not fit the capability's schema is never delivered."""
    execution = engine.run(lambda job: value, output_schema=SCHEMA)
    if fits:
        assert execution.state == State.COMPLETED
    else:
        assert execution.error["code"] == "OUTPUT_SCHEMA_INVALID"
        assert execution.result == {}


def test_the_contracts_schema_is_kept_too(engine: Engine) -> None:
    """A schema that came with the request is checked beside the capability's, and told what is wrong."""
    engine.agent(lambda job: {"score": 1})
    context = json.dumps({"output_schema": {"required": ["more"]}}).encode()
    id = engine.new(context=context)
    engine.runner().run(id)
    error = engine.get(id).error
    assert error["code"] == "OUTPUT_SCHEMA_INVALID"
    assert error["details"]["problems"][0]["field"]


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "http://other.example/x"}])
def test_a_broken_schema_ends_the_execution_not_the_process(engine: Engine, schema: dict[str, Any]) -> None:
    """A schema that cannot be compiled is an error of the request."""
    execution = engine.run(lambda job: {}, output_schema=schema)
    assert execution.state == State.FAILED
    assert engine.run(lambda job: 1).state == State.COMPLETED


def test_a_name_that_nobody_has_here_fails(engine: Engine) -> None:
    """A hint for an agent that this process does not know ends with CAPABILITY_UNAVAILABLE."""
    id = engine.new(agent="elsewhere")
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "CAPABILITY_UNAVAILABLE"


def test_a_hint_for_nothing_runs_nothing(engine: Engine) -> None:
    """A message whose execution is gone, running or ended is answered with False."""
    execution = engine.running()
    runner = engine.runner()
    assert not runner.run(execution.id)
    engine.seal(execution.id, 1)
    assert not runner.run(execution.id)
    assert not runner.run("019a0b1c-2d3e-7f00-8a1b-2c3d4e5f6071")
    assert not runner.engaged


def test_the_function_sees_its_context(engine: Engine) -> None:
    """Input, labels, attempt and what the door said reach the function."""
    context = {
        "terms": {"price": "0.50"},
        "profile": "fast",
        "stage": "explore",
        "seed": {"n": 1},
        "swarm": {},
    }
    seen: dict[str, Any] = {}

    def function(job: Job) -> None:
        seen.update(
            {name: getattr(job, name) for name in ("input", "labels", "attempt", *context, "settings")}
        )

    engine.agent(function, settings={"a": 1, "b": 1}, profiles={"fast": {"b": 2}})
    id = engine.new(input=b'{"x":[]}', labels={"l": "v"}, context=json.dumps(context).encode())
    engine.runner().run(id)
    assert seen == {
        "input": {"x": []},
        "labels": {"l": "v"},
        "attempt": 1,
        **context,
        "settings": {"a": 1, "b": 2},
    }


def test_a_large_input_arrives_whole(engine: Engine) -> None:
    """An input over 32 kB is kept in a file and reaches the function and every reader as it was."""
    large = {"text": "é" * 40_000, "list": []}
    engine.agent(lambda job: len(job.input["text"]))
    _, id = engine.executions.create("a", large, door="test")
    execution = engine.get(id)
    assert execution.input == b"null" and len(execution.raw["input_ref"]) < 500
    assert engine.executions.input(execution) == large
    engine.runner().run(id)
    assert engine.get(id).output == b"40000"


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "unreadable"])
def test_an_input_that_cannot_be_read_is_an_outcome(engine: Engine, gone: bool) -> None:
    """Without its input file an execution fails or is tried again; the process lives."""
    engine.agent(lambda job: 1)
    _, id = engine.executions.create("a", "x" * 40_000, door="test")
    key = json.loads(engine.get(id).raw["input_ref"])["key"]
    files = engine.files
    if gone:
        files.delete(key)
    else:

        class Away(type(files)):  # type: ignore[misc]
            def open(self, key: str, start: int = 0, end: int | None = None) -> Any:
                raise Unavailable("files cannot be read right now")

        files.__class__ = Away
    assert engine.runner().run(id)
    execution = engine.get(id)
    if gone:
        assert (execution.state, execution.error["code"]) == (State.FAILED, "FILE_NOT_FOUND")
    else:
        assert execution.state == State.PENDING


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_goes_through_unchanged(engine: Engine, value: Any) -> None:
    """An input that is returned comes out as it went in, in the record and in the event."""
    engine.agent(lambda job: job.input)
    _, id = engine.executions.create("a", value, door="test")
    assert engine.runner().run(id)
    execution: Execution = engine.get(id)
    assert engine.executions.output(execution) == value
    assert engine.log(id, "execution.created")[0].data()["input"] == value
    assert engine.log(id, "execution.completed")[0].data()["output"] == value


def test_overlong_work_is_ended_by_the_clock(engine: Engine) -> None:
    """A run past its limit fails with EXECUTION_TIMEOUT when its lease ends, and its writes are refused."""
    id = engine.agent(lambda job: engine.advance(11), time_limit=5.0)
    engine.client.hset(engine.keys.record(id), "run_limit", 10 * SECOND)
    engine.runner().run(id)
    assert engine.get(id).state == State.RUNNING
    engine.clock().tick()
    assert engine.get(id).error["code"] == "EXECUTION_TIMEOUT"
