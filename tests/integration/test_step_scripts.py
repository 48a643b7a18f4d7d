"""The scripts of steps: begun once, answered from the record, retried, timed out."""

from __future__ import annotations

import json

import pytest

from tests.engine import ERROR, HOUR, SECOND, Engine
from worker.contracts.fields import parse_time
from worker.executions.events import iso
from worker.executions.record import Execution
from worker.executions.states import State
from worker.ids import new_id


def end(engine: Engine, execution: Execution, step: str, outcome: str, **changes: object) -> list[bytes]:
    value = changes.pop("value", b"[]")
    payload = changes.pop("payload", b"{}")
    return engine.store.step_end(execution.id, execution.fence, step, outcome, value, payload, **changes)  # type: ignore[arg-type]


def again(engine: Engine, execution: Execution) -> Execution:
    """The next run after the process of this one died."""
    engine.advance(6)
    assert engine.lapse(execution.id)[0] == "queued"
    return engine.take(execution.id)


def deadline(engine: Engine, execution: Execution, step: str) -> float | None:
    return engine.client.zscore(engine.keys.step_deadlines, f"{execution.id} {step}")


def test_a_step_is_announced_with_its_intent_and_deadline(engine: Engine) -> None:
    """intent.accepted and step.created come together, the second caused by the first, with a deadline."""
    execution = engine.running()
    step = new_id()
    assert engine.begin(execution, step=step, timeout_us=90 * SECOND) == [b"new", step.encode(), b"1"]
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
def test_the_store_writes_dates_as_we_do(engine: Engine, at: int) -> None:
    """The script's calendar agrees with ours, leap days and the last microsecond of a century included."""
    execution = engine.running()
    engine.begin(execution, timeout_us=at - engine.now())
    [created] = engine.log(execution.id, "step.created")
    written = created.data()["deadline"]
    assert abs(parse_time(written, "t") - at) < 2 * SECOND
    assert written == iso(parse_time(written, "t"))


def test_the_same_key_again_is_the_same_step(engine: Engine) -> None:
    """Asked twice in one run, a step is not begun twice; the answer names the first."""
    execution = engine.running()
    _, step, _ = engine.begin(execution)
    events = engine.kinds(execution.id)
    assert engine.begin(execution) == [b"again", step, b"1"]
    assert engine.kinds(execution.id) == events


@pytest.mark.parametrize(("outcome", "kind"), [("succeeded", "step.completed"), ("failed", "step.failed")])
def test_an_outcome_answers_for_ever(engine: Engine, outcome: str, kind: str) -> None:
    """A finished step keeps its value byte for byte, also in a later run, and has no deadline."""
    execution = engine.running()
    step = engine.begin(execution)[1].decode()
    assert end(engine, execution, step, outcome, value=b'{"a":[],"b":{}}', payload=b'{"result":[]}') == [
        b"ok"
    ]
    assert end(engine, execution, step, outcome) == [b"ok"]
    assert len(engine.log(execution.id, kind)) == 1
    assert deadline(engine, execution, step) is None
    answer = [outcome.encode(), step.encode(), b'{"a":[],"b":{}}']
    assert engine.begin(execution) == answer
    execution = again(engine, execution)
    assert engine.begin(execution) == answer
    other = "failed" if outcome == "succeeded" else "succeeded"
    assert end(engine, execution, step, other) == [b"lost"]


@pytest.mark.parametrize("change", [{"tool": "other"}, {"digest": "other"}])
def test_another_call_under_a_key_is_a_mismatch(engine: Engine, change: dict[str, str]) -> None:
    """Another tool or other arguments under a known key cannot be replayed, finished or not."""
    execution = engine.running()
    step = engine.begin(execution)[1].decode()
    before = engine.whole()
    assert engine.begin(execution, **change) == [b"mismatch"]
    assert engine.whole() == before
    end(engine, execution, step, "succeeded")
    assert engine.begin(execution, **change) == [b"mismatch"]


def test_an_interrupted_step_runs_again_with_its_own_time(engine: Engine) -> None:
    """After a crash the step is the same, one try older, and its own time-out begins anew."""
    execution = engine.running()
    step = engine.begin(execution, timeout_us=7 * SECOND)[1]
    execution = again(engine, execution)
    assert engine.begin(execution, step=new_id(), timeout_us=HOUR) == [b"again", step, b"2"]
    [retried] = engine.log(execution.id, "step.retried")
    assert (retried.data(), retried.step_id) == ({"next_attempt": 2}, step.decode())
    assert deadline(engine, execution, step.decode()) == retried.at + 7 * SECOND
    assert engine.begin(execution) == [b"again", step, b"2"]
    assert len(engine.log(execution.id, "step.retried")) == 1


def test_tries_are_counted_and_then_spent(engine: Engine) -> None:
    """Each retry is one failed and one retried event; when no try is left the script says so."""
    execution = engine.running()
    step = engine.begin(execution, attempts=2)[1].decode()
    told = b'{"error":"busy","retryable":true}'
    assert end(engine, execution, step, "retry", payload=told, attempt=1) == [b"again", b"2"]
    # The answer got lost and the same try is told again.
    assert end(engine, execution, step, "retry", payload=told, attempt=1) == [b"again", b"2"]
    failed, retried = engine.store.events(execution.id)[-2:]
    assert (failed.kind, retried.kind, retried.cause) == ("step.failed", "step.retried", failed.sequence)
    assert end(engine, execution, step, "retry", payload=told, attempt=2) == [b"spent"]
    assert engine.kinds(execution.id).count("step.failed") == 1
    assert end(engine, execution, step, "failed") == [b"ok"]


def test_the_next_try_gets_its_whole_time(engine: Engine) -> None:
    """The deadline of a retried step counts from after the pause."""
    execution = engine.running()
    step = engine.begin(execution, timeout_us=30 * SECOND)[1].decode()
    engine.advance(4)
    end(engine, execution, step, "retry", attempt=1, pause_us=2 * SECOND)
    [retried] = engine.log(execution.id, "step.retried")
    assert deadline(engine, execution, step) == retried.at + 32 * SECOND


def test_a_step_past_its_deadline_takes_the_execution_along(engine: Engine) -> None:
    """The late step times out, its siblings are cancelled, the execution fails, all in one correlation."""
    execution = engine.running()
    steps = [engine.begin(execution, f"t#{n}", timeout_us=(3 + n) * SECOND)[1].decode() for n in range(3)]
    done = engine.begin(execution, "t#9")[1].decode()
    end(engine, execution, done, "succeeded")
    assert engine.store.step_expire(execution.id, steps[0], ERROR) == "gone"
    engine.advance(3.5)
    due = engine.store.due(tree="t", queued_age_us=HOUR, retention_us=HOUR)
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


def test_time_does_not_run_for_a_step_nobody_works_on(engine: Engine) -> None:
    """While an execution waits for its next run, its open step cannot time out."""
    execution = engine.running()
    step = engine.begin(execution, timeout_us=6 * SECOND)[1].decode()
    engine.advance(5.5)
    assert engine.lapse(execution.id)[0] == "queued"
    engine.advance(60)
    assert engine.store.due(tree="t", queued_age_us=HOUR, retention_us=HOUR).steps == []
    assert engine.store.step_expire(execution.id, step, ERROR) == "gone"
    assert engine.get(execution.id).state == State.PENDING


def test_the_end_closes_what_is_open(engine: Engine) -> None:
    """No step outlives its execution: what has no outcome is cancelled, before the terminal event."""
    execution = engine.running()
    step = engine.begin(execution)[1].decode()
    finished = engine.begin(execution, "t#2")[1].decode()
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
def test_keys_may_be_any_text(engine: Engine, key: str) -> None:
    """Whatever an author uses as a key finds its own step and no other."""
    execution = engine.running()
    first = engine.begin(execution, key)[1]
    second = engine.begin(execution, key + " ")[1]
    assert first != second
    assert engine.begin(execution, key)[:2] == [b"again", first]
    end(engine, execution, first.decode(), "succeeded", value=json.dumps(key).encode())
    assert json.loads(engine.begin(execution, key)[2]) == key
    assert engine.begin(execution, key + " ")[:2] == [b"again", second]
