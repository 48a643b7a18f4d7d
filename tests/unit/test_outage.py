"""Outages are waited for; bugs are logged, counted and not retried."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from worker.core.errors import BadRequest, Unavailable
from worker.store import outage
from worker.store.outage import Resting, insist, is_outage, note

WORKER = Path(__file__).parents[2] / "worker"
AWAY = [
    redis.ConnectionError("refused"),
    redis.TimeoutError("late"),
    redis.exceptions.BusyLoadingError("loading"),
    redis.exceptions.ReadOnlyError("a replica"),
    redis.exceptions.MasterDownError("down"),
    redis.exceptions.OutOfMemoryError("full"),
    redis.ResponseError("NOREPLICAS Not enough good replicas to write."),
    redis.ResponseError("ERR Error running script: @user_script:1: -READONLY You can't write"),
]
BUGS = [
    redis.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    redis.ResponseError("ERR user_script:7: attempt to index a nil value"),
    redis.exceptions.NoScriptError("NOSCRIPT"),
    redis.exceptions.DataError("no such type"),
]


@pytest.fixture(name="counted")
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    counted: list[str] = []
    monkeypatch.setattr(outage._bugs, "count", counted.append)
    yield counted


@pytest.mark.parametrize("error", [*AWAY, Unavailable("the files are away")])
def test_outage_is_logged_in_one_line(error: Exception, counted: list[str]) -> None:
    """An outage is logged without a traceback and not counted as a bug."""
    with capture_logs() as lines:
        assert note(error, "place", id="x")
    assert is_outage(error) and not counted
    assert [(line["event"], line["log_level"], line["id"]) for line in lines] == [
        ("place.store_unavailable", "warning", "x")
    ]


@pytest.mark.parametrize("error", [*BUGS, ValueError("ours"), BadRequest("ours too")])
def test_bug_is_logged_with_traceback_and_counted(error: Exception, counted: list[str]) -> None:
    """A bug is never treated as an outage."""
    with capture_logs() as lines:
        assert not note(error, "place")
    assert not is_outage(error) and counted == ["place"]
    assert [(line["event"], line["log_level"], line["exc_info"]) for line in lines] == [
        ("place.failed", "error", error)
    ]


def test_bug_is_logged_when_counting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting uses the store, which may be unavailable by then."""

    def away(where: str) -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(outage._bugs, "count", away)
    assert not note(ValueError(), "place")


def failing(*errors: Exception) -> Callable[[], int]:
    """Return a function that raises the errors in turn, then returns its number of calls."""
    left, calls = list(errors), 0

    def call() -> int:
        nonlocal calls
        calls += 1
        if left:
            raise left.pop(0)
        return calls

    return call


def test_outages_are_retried_with_backoff() -> None:
    """An outage is retried for as long as it lasts, with growing pauses."""
    pauses: list[float] = []
    assert insist(failing(*AWAY), "place", rest=pauses.append) == len(AWAY) + 1
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_raised_at_once(bug: Exception) -> None:
    """A bug after an outage is raised too: the clock handles what it concerns."""
    pauses: list[float] = []
    call = failing(AWAY[0], bug)
    with pytest.raises(type(bug)) as caught:
        insist(call, "place", rest=pauses.append)
    assert caught.value is bug and len(pauses) == 1 and call() == 3


def test_retries_end_after_the_timeout() -> None:
    """After the time-out the caller gets the error that it waited for."""
    began = time.monotonic()
    with pytest.raises(redis.ConnectionError):
        insist(failing(*[AWAY[0]] * 1000), "place", patience=0.05, pause=0.01)
    assert time.monotonic() - began < 10


def test_expired_retry_delays_are_forgotten() -> None:
    """A delay expires by itself, and expired ones are removed from the list."""
    resting = Resting(0.05)
    for number in range(100):
        resting.add(str(number))
    assert "99" in resting
    time.sleep(0.06)
    assert "99" not in resting
    resting.add("last")
    assert len(resting._until) == 1


def test_store_errors_are_always_classified() -> None:
    """Every `except RedisError` in the worker uses these helpers to tell outages from bugs."""
    silent = [
        f"{path.relative_to(WORKER)}:{handler.lineno}"
        for path in sorted(WORKER.rglob("*.py"))
        for handler in ast.walk(ast.parse(path.read_text()))
        if isinstance(handler, ast.ExceptHandler) and "RedisError" in _names(handler.type)
        if not _names(handler) & {"note", "is_outage", "passes"}
    ]
    # read the store, where findings distinguish the kinds of errors, or hand the error to all its callers
    looks = ("cli/doctor_store.py", "store/health.py", "store/connections.py", "store/link.py")
    assert [each for each in silent if not each.startswith(looks)] == []


def _names(node: ast.AST | None) -> set[str]:
    if node is None:
        return set()
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return found | {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
