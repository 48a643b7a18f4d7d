"""From a function's return value or exception to the end of its execution."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import SECOND, Engine
from worker.agents.job import Job
from worker.core.errors import (
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
from worker.core.states import State
from worker.engine.output import MOST_MESSAGE
from worker.engine.record import Execution
from worker.files.store import FileRef
from worker.queue.runner import failure

SECRET = "postgres://user:hunter2@db"


def raising(error: BaseException) -> Callable[[Job], None]:
    def function(job: Job) -> None:
        raise error

    return function


def everything(engine: Engine) -> bytes:
    """The whole content of the store, as one searchable text."""
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
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_exception_has_an_error_code(
    engine: Engine, error: BaseException, code: str, details: dict[str, Any]
) -> None:
    """Each error has its code and details in record and event; a foreign error's text is not stored."""
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
def test_unstorable_error_details_are_dropped(engine: Engine, error: BaseException) -> None:
    """Details that are not JSON, or too long, are omitted; code and message stay, valid and short."""
    execution = engine.run(raising(error))
    assert execution.state == State.FAILED
    assert set(execution.error) == {"error", "code", "details", "retryable"}
    assert len(execution.error["error"]) <= MOST_MESSAGE
    assert len(execution.error_json) < 40_000


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters()), st.text(st.characters()))
def test_failure_accepts_any_text(code: str, message: str) -> None:
    """No text prevents a failure from being written."""
    error = json.loads(failure(code, message, retryable=True))
    assert error["retryable"] is True and error["details"] == {}


@pytest.mark.parametrize("error", [Transient("busy"), Transient(retry_after=60), Unavailable("away")])
def test_transient_failure_is_retried_before_it_is_reported(engine: Engine, error: Exception) -> None:
    """After 1 s and 5 s the function runs again; only the third failure ends the execution."""
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


def test_transient_failure_then_success(engine: Engine) -> None:
    """The successful attempt delivers, and the earlier failures are only in the log."""
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


def test_cancellation_during_a_retry_ends_quietly(engine: Engine) -> None:
    """If the execution was cancelled meanwhile, the retry is refused and the process keeps running."""

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
def test_output_type_follows_the_returned_value(
    engine: Engine, function: Callable[[Job], Any], type: str, files: list[str], output: bytes
) -> None:
    """Text, JSON, files and streams are distinguished; the terminal event shows the deliverable."""
    execution = engine.run(function)
    assert execution.state == State.COMPLETED
    assert (execution.result["type"], [file["name"] for file in execution.result["files"]]) == (type, files)
    assert execution.output == output
    completed = engine.log(execution.id, "execution.completed")[0].data()
    assert completed["output"] == (json.loads(output) if output else None)
    assert [file["name"] for file in completed.get("files", [])] == files
    assert all(set(file) == {"name", "mime", "size", "sha256"} for file in completed.get("files", []))
    if type == "stream":
        assert content(engine, execution.result["files"][0]) == b"one two"
        assert (
            "".join(event.data()["text"] for event in engine.log(execution.id, "output.chunk")) == "one two"
        )


@pytest.mark.parametrize("value", [object(), b"x", {1}, float("nan"), {"a": object()}, "\ud800", ["\udfff"]])
def test_non_json_output_is_the_agents_error(engine: Engine, value: Any) -> None:
    """A value that is not JSON fails the execution with OUTPUT_INVALID."""
    execution = engine.run(lambda job: value)
    assert execution.error["code"] == "OUTPUT_INVALID"


def test_generator_failing_midway_keeps_its_text(engine: Engine) -> None:
    """Streamed text stays in the log, the execution fails, and no deliverable is left."""

    def function(job: Job) -> Any:
        yield "begun"
        raise Failed("BROKE", "half way")

    execution = engine.run(function)
    assert (execution.error["code"], execution.result) == ("BROKE", {})
    assert engine.kinds(execution.id)[2:] == ["output.chunk", "execution.failed"]


def test_generator_may_yield_only_text(engine: Engine) -> None:
    """Any other value in a stream is the agent's error, and earlier text stays."""

    def function(job: Job) -> Any:
        yield "text"
        yield {"no": "text"}

    execution = engine.run(function)
    assert execution.error["code"] == "OUTPUT_INVALID"


@pytest.mark.parametrize("mime", ["text", "", "x" * 200, "text/plain\nX: y"])
def test_undeliverable_file_is_an_output_error(engine: Engine, mime: str) -> None:
    """It is reported as an invalid output, never as an input that the caller should change."""
    execution = engine.run(lambda job: job.file("a.txt", b"a", mime=mime))
    assert (execution.state, execution.error["code"]) == (State.FAILED, "OUTPUT_INVALID")
    assert execution.error["details"]["field"] == "mime"


@pytest.mark.parametrize(
    ("value", "type", "name"), [("x" * 40_000, "text", "output.txt"), (["é" * 40_000], "json", "output.json")]
)
def test_large_output_is_stored_in_a_file(engine: Engine, value: Any, type: str, name: str) -> None:
    """Over 32 kB, record and event have size and digest, and readers get the whole value."""
    execution = engine.run(lambda job: value)
    assert (execution.result["type"], execution.output) == (type, b"")
    ref = execution.result["value_ref"]
    assert ref["name"] == name
    assert engine.executions.output(execution) == value
    completed = engine.log(execution.id, "execution.completed")[0].data()
    assert completed["output"] is None
    assert completed["output_file"] == {
        "mime": ref["mime"],
        "name": name,
        "sha256": ref["sha256"],
        "size": ref["size"],
    }
    assert len(execution.result_json) < 1000


def test_output_of_32_kb_stays_in_the_record(engine: Engine) -> None:
    """The limit is exact: including quotes, 32,768 bytes are inline and one more is not."""
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
def test_capability_output_schema_is_enforced(engine: Engine, value: Any, fits: bool) -> None:
    """An output that does not match the capability's schema is never delivered."""
    execution = engine.run(lambda job: value, output_schema=SCHEMA)
    if fits:
        assert execution.state == State.COMPLETED
    else:
        assert execution.error["code"] == "OUTPUT_SCHEMA_INVALID"
        assert execution.result == {}


def test_contracts_output_schema_is_enforced(engine: Engine) -> None:
    """A schema in the request is checked in addition to the capability's."""
    engine.agent(lambda job: {"score": 1})
    context = json.dumps({"output_schema": {"required": ["more"]}}).encode()
    id = engine.new(context=context)
    engine.runner().run(id)
    assert engine.get(id).error["code"] == "OUTPUT_SCHEMA_INVALID"


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 0},
        {"required": ["absent"]},
        {"properties": {"findings": {"items": {"properties": {"line": {"maximum": 1}}}}}},
        {"properties": {"findings": {"maxItems": 1}}},
        {"properties": {"summary": {"pattern": "^q"}}},
        {"$ref": "#/$defs/deep", "$defs": {"deep": {"not": {}}}},
    ],
)
def test_invalid_output_reveals_nothing(engine: Engine, schema: dict[str, Any]) -> None:
    """Unpaid, so every failure has identical bytes: no value, path, index or keyword."""
    engine.agent(lambda job: {"summary": "a secret", "findings": [{"line": 7}, {"line": 8}]})
    id = engine.new(context=json.dumps({"output_schema": schema}).encode())
    engine.runner().run(id)
    assert engine.get(id).error == {
        "error": "the output does not fit the promised schema",
        "code": "OUTPUT_SCHEMA_INVALID",
        "details": {},
        "retryable": False,
    }
    written = b"".join(event.payload for event in engine.store.events(id, 0, 100))
    assert b"secret" not in written and b"line" not in written


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "http://other.example/x"}])
def test_uncompilable_schema_fails_the_execution(engine: Engine, schema: dict[str, Any]) -> None:
    """A schema that does not compile is an error of the request."""
    execution = engine.run(lambda job: {}, output_schema=schema)
    assert execution.state == State.FAILED
    assert engine.run(lambda job: 1).state == State.COMPLETED


def test_unknown_capability_fails(engine: Engine) -> None:
    """A hint for an agent unknown to this process ends with CAPABILITY_UNAVAILABLE."""
    id = engine.new(agent="elsewhere")
    assert engine.runner().run(id)
    assert engine.get(id).error["code"] == "CAPABILITY_UNAVAILABLE"


def test_stale_message_runs_nothing(engine: Engine) -> None:
    """A message for a missing, running or ended execution returns False."""
    execution = engine.running()
    runner = engine.runner()
    assert not runner.run(execution.id)
    engine.seal(execution.id, 1)
    assert not runner.run(execution.id)
    assert not runner.run("019a0b1c-2d3e-7f00-8a1b-2c3d4e5f6071")
    assert not runner.engaged


def test_function_sees_its_context(engine: Engine) -> None:
    """Input, labels, attempt and the door's context reach the function."""
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


def test_large_input_arrives_unchanged(engine: Engine) -> None:
    """An input over 32 kB is stored in a file and reaches the function and every reader unchanged."""
    large = {"text": "é" * 40_000, "list": []}
    engine.agent(lambda job: len(job.input["text"]))
    _, id = engine.executions.create("a", large, door="test")
    execution = engine.get(id)
    assert execution.input == b"null" and len(execution.input_ref) < 500
    assert engine.executions.input(execution) == large
    engine.runner().run(id)
    assert engine.get(id).output == b"40000"


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "unreadable"])
def test_unreadable_input_file_fails_or_retries(engine: Engine, gone: bool) -> None:
    """Without its input file an execution fails or is retried; the process keeps running."""
    engine.agent(lambda job: 1)
    _, id = engine.executions.create("a", "x" * 40_000, door="test")
    key = json.loads(engine.get(id).input_ref)["key"]
    files = engine.files
    if gone:
        files.delete(key)
    else:

        class OutOfReach(type(files)):  # type: ignore[misc]
            def open(self, key: str, start: int = 0, end: int | None = None) -> Any:
                raise Unavailable("files cannot be read right now")

        files.__class__ = OutOfReach
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
def test_any_json_round_trips(engine: Engine, value: Any) -> None:
    """An input that is returned is unchanged in record and event."""
    engine.agent(lambda job: job.input)
    _, id = engine.executions.create("a", value, door="test")
    assert engine.runner().run(id)
    execution: Execution = engine.get(id)
    assert engine.executions.output(execution) == value
    assert engine.log(id, "execution.created")[0].data()["input"] == value
    assert engine.log(id, "execution.completed")[0].data()["output"] == value


def test_run_limit_is_enforced_by_the_clock(engine: Engine) -> None:
    """A run past its limit fails with EXECUTION_TIMEOUT when its lease ends, and its writes are refused."""
    id = engine.agent(lambda job: engine.advance(11), time_limit=5.0)
    engine.client.hset(engine.keys.record(id), "run_limit", 10 * SECOND)
    engine.runner().run(id)
    assert engine.get(id).state == State.RUNNING
    engine.clock().tick()
    assert engine.get(id).error["code"] == "EXECUTION_TIMEOUT"
