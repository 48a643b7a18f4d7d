"""The step scripts: started once, answered from the record, retried, timed out."""

from __future__ import annotations

import json

import pytest

from tests.engine import ERROR, HOUR, SECOND, Engine
from worker.core.fields import parse_time
from worker.core.ids import new_id
from worker.core.states import State
from worker.engine.answers import StepBeginAnswer, StepEndAnswer
from worker.engine.events import iso
from worker.engine.record import Execution
from worker.store.scripts import Reply


def end(
    engine: Engine, execution: Execution, step: str, outcome: str, **changes: object
) -> Reply[StepEndAnswer]:
    value = changes.pop("value", b"[]")
    payload = changes.pop("payload", b"{}")
    return engine.store.step_end(execution.id, execution.fence, step, outcome, value, payload, **changes)  # type: ignore[arg-type]


def again(engine: Engine, execution: Execution) -> Execution:
    """The next run after this one's process died."""
    engine.advance(6)
    assert engine.lapse(execution.id)[0] == "queued"
    return engine.take(execution.id)


def deadline(engine: Engine, execution: Execution, step: str) -> float | None:
    return engine.client.zscore(engine.keys.step_deadlines, f"{execution.id} {step}")


def test_step_begins_with_intent_and_deadline(engine: Engine) -> None:
    """intent.accepted and step.created come together, the second caused by the first, with a deadline."""
    execution = engine.running()
    step = new_id()
    assert engine.begin(execution, step=step, timeout_us=90 * SECOND) == Reply(
        StepBeginAnswer.NEW, [step.encode(), b"1"]
    )
    intent, created = engine.store.events(execution.id)[-2:]
    assert (intent.kind, created.kind, created.step_id) == ("intent.accepted", "step.created", step)
    assert created.cause == created.correlation == intent.sequence
    shown = created.shown()
    assert shown["causation_id"] == shown["correlation_id"] == intent.id
    until = deadline(engine, execution, step)
    assert until == created.at + 90 * SECOND
    assert created.data() == {"tool_id": "t", "deadline": iso(int(until))}


@pytest.mark.parametrize(
    "at", [0, 951_782_399_999_999, 951_782_400_000_000, 1_709_164_800_000_001, 4_102_444_799_999_999]
)
def test_store_formats_dates_like_python(engine: Engine, at: int) -> None:
    """The script's calendar matches Python's, including leap days and a century's last microsecond."""
    execution = engine.running()
    engine.begin(execution, timeout_us=at - engine.now())
    [created] = engine.log(execution.id, "step.created")
    written = created.data()["deadline"]
    assert abs(parse_time(written, "t") - at) < 2 * SECOND
    assert written == iso(parse_time(written, "t"))


def test_repeated_key_returns_the_same_step(engine: Engine) -> None:
    """The same key in one run starts no second step; the answer names the first."""
    execution = engine.running()
    step = engine.begin(execution).values[0]
    events = engine.kinds(execution.id)
    assert engine.begin(execution) == Reply(StepBeginAnswer.AGAIN, [step, b"1"])
    assert engine.kinds(execution.id) == events


@pytest.mark.parametrize(("outcome", "kind"), [("succeeded", "step.completed"), ("failed", "step.failed")])
def test_finished_step_keeps_its_result(engine: Engine, outcome: str, kind: str) -> None:
    """A finished step keeps its value byte for byte, also in a later run, and has no deadline."""
    execution = engine.running()
    step = engine.begin(execution).text()
    assert end(engine, execution, step, outcome, value=b'{"a":[],"b":{}}', payload=b'{"result":[]}') == Reply(
        StepEndAnswer.OK, []
    )
    assert end(engine, execution, step, outcome) == Reply(StepEndAnswer.OK, [])
    assert len(engine.log(execution.id, kind)) == 1
    assert deadline(engine, execution, step) is None
    answer = Reply(StepBeginAnswer(outcome), [step.encode(), b'{"a":[],"b":{}}'])
    assert engine.begin(execution) == answer
    execution = again(engine, execution)
    assert engine.begin(execution) == answer
    other = "failed" if outcome == "succeeded" else "succeeded"
    assert end(engine, execution, step, other) == Reply(StepEndAnswer.LOST, [])


@pytest.mark.parametrize("change", [{"tool": "other"}, {"digest": "other"}])
def test_changed_call_under_a_key_is_refused(engine: Engine, change: dict[str, str]) -> None:
    """A known key with another tool or other arguments cannot be replayed, finished or not."""
    execution = engine.running()
    step = engine.begin(execution).text()
    before = engine.whole()
    assert engine.begin(execution, **change) == Reply(StepBeginAnswer.MISMATCH, [])
    assert engine.whole() == before
    end(engine, execution, step, "succeeded")
    assert engine.begin(execution, **change) == Reply(StepBeginAnswer.MISMATCH, [])


def test_interrupted_step_restarts_with_a_new_timeout(engine: Engine) -> None:
    """After a crash it is the same step, one try older, with a new time-out."""
    execution = engine.running()
    step = engine.begin(execution, timeout_us=7 * SECOND).values[0]
    execution = again(engine, execution)
    assert engine.begin(execution, step=new_id(), timeout_us=HOUR) == Reply(
        StepBeginAnswer.AGAIN, [step, b"2"]
    )
    [retried] = engine.log(execution.id, "step.retried")
    assert (retried.data(), retried.step_id) == ({"next_attempt": 2}, step.decode())
    assert deadline(engine, execution, step.decode()) == retried.at + 7 * SECOND
    assert engine.begin(execution) == Reply(StepBeginAnswer.AGAIN, [step, b"2"])
    assert len(engine.log(execution.id, "step.retried")) == 1


def test_retries_are_counted_until_exhausted(engine: Engine) -> None:
    """Each retry is one failed and one retried event; when no try is left the script reports it."""
    execution = engine.running()
    step = engine.begin(execution, attempts=2).text()
    error = b'{"error":"busy","retryable":true}'
    assert end(engine, execution, step, "retry", payload=error, attempt=1) == Reply(
        StepEndAnswer.AGAIN, [b"2"]
    )
    # The answer got lost and the same failure is reported again.
    assert end(engine, execution, step, "retry", payload=error, attempt=1) == Reply(
        StepEndAnswer.AGAIN, [b"2"]
    )
    failed, retried = engine.store.events(execution.id)[-2:]
    assert (failed.kind, retried.kind, retried.cause) == ("step.failed", "step.retried", failed.sequence)
    assert end(engine, execution, step, "retry", payload=error, attempt=2) == Reply(StepEndAnswer.SPENT, [])
    assert engine.kinds(execution.id).count("step.failed") == 1
    assert end(engine, execution, step, "failed") == Reply(StepEndAnswer.OK, [])


def test_retry_gets_its_full_timeout(engine: Engine) -> None:
    """The deadline of a retried step counts from the end of the pause."""
    execution = engine.running()
    step = engine.begin(execution, timeout_us=30 * SECOND).text()
    engine.advance(4)
    end(engine, execution, step, "retry", attempt=1, pause_us=2 * SECOND)
    [retried] = engine.log(execution.id, "step.retried")
    assert deadline(engine, execution, step) == retried.at + 32 * SECOND


def test_expired_step_fails_its_execution(engine: Engine) -> None:
    """The late step times out, its siblings are cancelled, the execution fails, with one correlation id."""
    execution = engine.running()
    steps = [engine.begin(execution, f"t#{n}", timeout_us=(1 + n) * 60 * SECOND).text() for n in range(3)]
    done = engine.begin(execution, "t#9").text()
    end(engine, execution, done, "succeeded")
    assert engine.store.step_expire(execution.id, steps[0], ERROR) == "gone"
    engine.advance(90)
    due = engine.store.due(tree="t", retention_us=HOUR)
    assert due.steps == [(execution.id, steps[0])]
    assert engine.store.step_expire(execution.id, steps[0], ERROR) == "failed"
    late, *others, failed = engine.store.events(execution.id)[-4:]
    assert (late.kind, late.step_id) == ("step.timed_out", steps[0])
    assert [(each.kind, each.step_id) for each in others] == [("step.cancelled", id) for id in steps[1:]]
    assert {each.correlation for each in (*others, failed)} == {late.sequence}
    assert others[0].data() == {"reason": "sibling step timed out"}
    assert engine.get(execution.id).state == State.FAILED
    assert engine.client.zcard(engine.keys.step_deadlines) == 0
    assert engine.store.step_expire(execution.id, steps[0], ERROR) == "gone"


def test_open_step_does_not_expire_between_runs(engine: Engine) -> None:
    """While an execution waits for its next run, its open step cannot time out."""
    execution = engine.running()
    step = engine.begin(execution, timeout_us=6 * SECOND).text()
    engine.advance(5.5)
    assert engine.lapse(execution.id)[0] == "queued"
    engine.advance(60)
    assert engine.store.due(tree="t", retention_us=HOUR).steps == []
    assert engine.store.step_expire(execution.id, step, ERROR) == "gone"
    assert engine.get(execution.id).state == State.PENDING


def test_end_of_the_execution_cancels_open_steps(engine: Engine) -> None:
    """Steps without an outcome are cancelled before the terminal event."""
    execution = engine.running()
    step = engine.begin(execution).text()
    finished = engine.begin(execution, "t#2").text()
    end(engine, execution, finished, "succeeded")
    engine.seal(execution.id, 1)
    cancelled, completed = engine.store.events(execution.id)[-2:]
    assert (cancelled.kind, cancelled.step_id) == ("step.cancelled", step)
    assert completed.kind == "execution.completed"
    steps = engine.store.steps(execution.id)
    assert steps["open"] == b"" and steps[f"{step} status"] == b"cancelled"
    assert steps[f"{finished} status"] == b"succeeded"
    assert engine.client.zcard(engine.keys.step_deadlines) == 0


@pytest.mark.parametrize("key", ["t#1", "a b", "open", "é\n\x00", "%d %-", "x" * 5000])
def test_step_keys_accept_any_text(engine: Engine, key: str) -> None:
    """A step key may be any text and finds only its own step."""
    execution = engine.running()
    first = engine.begin(execution, key).values[0]
    second = engine.begin(execution, key + " ").values[0]
    assert first != second
    assert engine.begin(execution, key) == Reply(StepBeginAnswer.AGAIN, [first, b"1"])
    end(engine, execution, first.decode(), "succeeded", value=json.dumps(key).encode())
    assert json.loads(engine.begin(execution, key).values[1]) == key
    assert engine.begin(execution, key + " ") == Reply(StepBeginAnswer.AGAIN, [second, b"1"])
