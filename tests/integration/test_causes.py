"""A failed attempt tells its author why: kind of error, line, and what could not be delivered."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engine import Engine
from worker.agents.job import Job
from worker.core.errors import Failed, InvalidInput, Transient
from worker.core.json import unencodable
from worker.engine.failure_causes import failure_causes

SECRET = "postgres://user:hunter2@db"
HERE = "tests/integration/test_causes.py"


def failed(engine: Engine, function: Any, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stored cause of the last failure, and its log line."""
    with capture_logs() as logs:
        execution = engine.run(function, **options)
    [line] = [each for each in logs if each["event"] in ("agent.failed", "agent.raised")]
    assert HERE not in str(execution.error)
    assert not any(HERE in str(event.payload) for event in engine.store.events(execution.id))
    return failure_causes(engine.store.steps(execution.id))[-1], line


def test_an_error_has_its_line_and_its_text_only_in_the_log(engine: Engine) -> None:
    """A foreign error's text may hold secrets: the record keeps only its kind and place."""

    def function(job: Job) -> None:
        raise KeyError(SECRET)

    cause, line = failed(engine, function)
    number = function.__code__.co_firstlineno + 1
    assert cause == {
        "agent": "a",
        "attempt": 1,
        "code": "INTERNAL_ERROR",
        "error": "KeyError",
        "where": f"{HERE}:{number} in function",
        "reason": "",
    }
    assert (line["where"], line["agent"], line["code"]) == (cause["where"], "a", "INTERNAL_ERROR")
    assert SECRET in line["reason"] and line["exc_info"]


def test_what_cannot_be_delivered_is_named_with_its_place(engine: Engine) -> None:
    """The type, its path in the output, and the function that returned it."""

    def function(job: Job) -> Any:
        return {"orders": [{"made": 1}, {"made": datetime.datetime.now()}]}

    cause, _ = failed(engine, function)
    assert (cause["code"], cause["reason"]) == ("OUTPUT_INVALID", "datetime at .orders[1].made")
    assert cause["where"] == f"{HERE}:{function.__code__.co_firstlineno} in function"
    assert failed(engine, lambda job: {1, 2})[0]["reason"] == "set"


def test_a_missing_tool_is_named_with_the_nearest(engine: Engine) -> None:
    """The seeker learns that a tool failed; the author, that it is not registered, and similar names."""
    engine.registry.tool("geo.distance")(lambda: 1)
    cause, line = failed(engine, lambda job: job.tool("geo.distence"))
    assert cause["reason"] == "geo.distence: no such tool is registered; did you mean geo.distance?"
    assert (cause["code"], cause["error"]) == ("TOOL_FAILED", "ToolMissing")
    assert line["reason"] == cause["reason"]


def test_a_broken_tool_is_named_with_its_own_line(engine: Engine) -> None:
    """Reports both lines: where the agent called the tool and where the tool raised."""

    def broken() -> None:
        raise ValueError(SECRET)

    engine.registry.tool("broken")(broken)
    cause, line = failed(engine, lambda job: job.tool("broken"))
    place = f"{HERE}:{broken.__code__.co_firstlineno + 1} in broken"
    assert cause["reason"] == f"because of ValueError ({place})"
    assert "<lambda>" in cause["where"]
    assert SECRET in line["reason"] and SECRET not in str(cause)


def test_a_tool_that_returns_no_json_says_what_it_returned(engine: Engine) -> None:
    """The type and its path, as for an output."""
    engine.registry.tool("odd")(lambda: {"at": object()})
    cause, _ = failed(engine, lambda job: job.tool("odd"))
    assert "because of NotJson: object at .at" in cause["reason"]


def test_an_output_that_breaks_its_schema_says_where(engine: Engine) -> None:
    """Field and expectation, without the value."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    cause, _ = failed(engine, lambda job: {"n": "hunter2"}, output_schema=schema)
    assert cause["code"] == "OUTPUT_SCHEMA_INVALID"
    assert "because of OutputUnfit: n: integer" in cause["reason"] and "hunter2" not in cause["reason"]


@pytest.mark.parametrize("error", [Failed("NO_LUCK", "not today"), InvalidInput("odd", field="n")])
def test_what_an_author_raises_on_purpose_has_its_line(engine: Engine, error: Exception) -> None:
    """The seeker gets code and message; the author also gets the line."""

    def function(job: Job) -> None:
        raise error

    cause, line = failed(engine, function)
    assert cause["where"].endswith(f":{function.__code__.co_firstlineno + 1} in function")
    assert str(error.message) in cause["reason"]  # type: ignore[attr-defined]
    assert line["event"] == "agent.failed" and "exc_info" not in line


def test_every_attempt_has_its_cause(engine: Engine) -> None:
    """A transient failure is recorded too, when a later attempt succeeds."""

    def function(job: Job) -> int:
        if job.attempt == 1:
            raise Transient("the other side is away")
        return 1

    id = engine.agent(function)
    engine.runner().run(id)
    engine.advance(2)
    engine.runner().run(id)
    [cause] = failure_causes(engine.store.steps(id))
    assert (cause["attempt"], cause["code"], cause["reason"]) == (
        1,
        "TRANSIENT_FAILURE",
        "the other side is away",
    )
    assert engine.get(id).state == "completed"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "object"),
        ([1, b"x"], "bytes at [1]"),
        ({"a": {"b": (1, {2})}}, "set at .a.b[1]"),
        ({"a": float("nan")}, "nan at .a"),
        ({"a": "\ud800"}, "text with half a surrogate at .a"),
        ({(1, 2): 3}, "a dict with a key of type tuple"),
    ],
)
def test_the_part_that_json_cannot_represent_is_found(value: Any, named: str) -> None:
    """However deep it is nested, and whatever its type."""
    assert unencodable(value) == named


def test_a_value_that_contains_itself_is_named() -> None:
    """The search terminates."""
    loop: list[Any] = []
    loop.append(loop)
    assert unencodable(loop).startswith("list at [0][0]")
