"""Every script that changes an execution: what it allows, refuses and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.engine import ERROR, HOUR, LEASE, SECOND, Engine
from worker.core.errors import Conflict, NotFound
from worker.core.ids import new_id
from worker.core.states import Lane, Phase, State
from worker.engine.answers import StepBeginAnswer
from worker.engine.creation import NewExecution
from worker.remote.external_calls import StoreExternalCalls
from worker.store.scripts import Reply


def test_create_writes_a_pending_record_and_one_event(engine: Engine) -> None:
    """The record has all given values, the log begins with execution.created, and a taker can find it."""
    id = engine.new(lane=Lane.EXPRESS, labels={"k": "v"}, input=b'{"x":[]}')
    execution = engine.get(id)
    assert (execution.state, execution.phase, execution.attempt, execution.fence) == (
        State.PENDING,
        Phase.WORKING,
        0,
        0,
    )
    assert execution.ends_by == execution.created + HOUR
    [event] = engine.store.events(id)
    assert event.payload == b'{"agent_id":"a","input":{"x":[]},"labels":{"k":"v"}}'
    assert engine.client.lrange(engine.keys.express, 0, -1) == [id.encode()]
    assert engine.store.count(engine.keys.by_state("pending")) == 1
    assert engine.store.count(engine.keys.by_label("k", "v")) == 1


@pytest.mark.parametrize(
    ("lane", "express", "queued"), [(Lane.EXPRESS, 1, 1), (Lane.QUEUE, 0, 1), (Lane.REMOTE, 0, 0)]
)
def test_queue_follows_the_lane(engine: Engine, lane: Lane, express: int, queued: int) -> None:
    """Only the express lane has its own list; a remote execution is in no queue."""
    engine.new(lane=lane)
    assert engine.client.llen(engine.keys.express) == express
    assert engine.client.zcard(engine.keys.queued) == queued


def test_waiting_remote_executions_do_not_hide_lost_ones(engine: Engine) -> None:
    """The clock finds a queued record that RQ lost, however many wait for remote agents."""
    for _ in range(120):
        engine.new(lane=Lane.REMOTE)
    lost = engine.new(lane=Lane.QUEUE)
    engine.advance(2)
    engine.clock().tick()
    assert engine.queue.lost([lost]) == []


@pytest.mark.parametrize("by", ["id", "key"])
def test_parallel_creation_creates_one(engine: Engine, by: str) -> None:
    """Concurrent creation with the same id or key makes one record, and all callers get its id."""
    id = new_id()

    def create(_: int) -> tuple[bool, str]:
        return engine.store.create(
            NewExecution(
                id=id if by == "id" else new_id(),
                agent="a",
                door="test",
                lane=Lane.QUEUE,
                input=b"1",
                labels={},
                timeout_us=HOUR,
                run_limit_us=HOUR,
                scope="s",
                key="" if by == "id" else "k",
            )
        )

    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(create, range(40)))
    assert Counter(new for new, _ in created) == {True: 1, False: 39}
    assert len({id for _, id in created}) == 1
    assert engine.store.count(engine.keys.everything) == 1
    assert engine.kinds(created[0][1]) == ["execution.created"]


def test_idempotency_keys_are_scoped(engine: Engine) -> None:
    """A colon in a scope or a key does not let one caller reach another's execution."""
    first = engine.new(scope="a", key="b:c")
    assert engine.new(scope="a:b", key="c") != first
    assert engine.keys.by_label("a", "b:c") != engine.keys.by_label("a:b", "c")


def test_take_grants_one_lease(engine: Engine) -> None:
    """The first taker gets fence 1 and attempt 1; a second one gets nothing."""
    id = engine.new()
    execution = engine.take(id)
    assert (execution.state, execution.fence, execution.attempt) == (State.RUNNING, 1, 1)
    assert engine.store.take(id, lease_us=LEASE, worker="w2", session=new_id()) is None
    assert engine.kinds(id) == ["execution.created", "execution.started"]
    assert engine.client.zcard(engine.keys.queued) == 0


def test_parallel_takers_get_one_lease(engine: Engine) -> None:
    """Of many concurrent takers, exactly one gets the lease."""
    id = engine.new()
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda n: engine.store.take(id, lease_us=LEASE, worker=f"w{n}", session=new_id()), range(24)
            )
        )
    assert sum(taken is not None for taken in found) == 1
    assert engine.get(id).fence == 1


@pytest.mark.parametrize("phase", [Phase.OFFERED, Phase.VERIFYING, Phase.SETTLING, Phase.PAYMENT_DUE])
def test_only_the_working_phase_is_taken(engine: Engine, phase: Phase) -> None:
    """While the phase waits for money, no taker gets the lease and no queue gets a message."""
    id = engine.new(phase=phase, lane=Lane.EXPRESS)
    assert engine.store.take(id, lease_us=LEASE, worker="w", session=new_id()) is None
    assert engine.store.hint(id) == ("gone", "")
    assert engine.client.llen(engine.keys.express) == 0


def test_ended_or_expired_work_is_not_taken(engine: Engine) -> None:
    """A message left in a queue after the end, or past the age limit, finds nothing to run."""
    cancelled, old = engine.new(lane=Lane.EXPRESS), engine.new(timeout_us=SECOND)
    engine.cancel(cancelled)
    engine.advance(2)
    for id in (cancelled, old, new_id()):
        assert engine.store.take(id, lease_us=LEASE, worker="w", session=new_id()) is None
    assert engine.client.lrange(engine.keys.express, 0, -1) == [cancelled.encode()]
    assert engine.kinds(cancelled) == ["execution.created", "execution.cancelled"]


def test_lease_ends_with_the_run_limit(engine: Engine) -> None:
    """Neither the first lease nor a renewal extends past the run limit or the age limit."""
    execution = engine.running(run_limit_us=8 * SECOND)
    assert engine.store.renew(execution.id, 1, LEASE) == "held"
    engine.advance(4)
    assert engine.store.renew(execution.id, 1, LEASE) == "held"
    [(_, until)] = engine.client.zrange(engine.keys.leases, 0, -1, withscores=True)
    assert until == execution.run_until == execution.started + 8 * SECOND
    short = engine.running(run_limit_us=HOUR, timeout_us=3 * SECOND)
    assert engine.stored(short.id, "lease") == short.run_until == short.ends_by


def test_renewal_distinguishes_overtime_from_loss(engine: Engine) -> None:
    """Exactly at the limit a renewal returns overtime; after the lease it returns lost."""
    execution = engine.running(run_limit_us=3 * SECOND)
    engine.client.set(engine.keys.test_clock, 0)
    assert engine.store.renew(execution.id, 2, LEASE) == "lost"
    engine.client.hset(engine.keys.record(execution.id), "run_until", str(engine.now()))
    assert engine.store.renew(execution.id, 1, LEASE) == "overtime"
    engine.advance(4)
    assert engine.store.renew(execution.id, 1, LEASE) == "lost"


def late(engine: Engine, id: str, fence: int) -> dict[str, object]:
    """What every script returns to a writer under this fence."""
    store = engine.store
    holder = replace(engine.get(id), fence=fence)
    return {
        "renew": store.renew(id, fence, LEASE),
        "append": store.append(id, fence, 1, [("progress.updated", b"{}")], {"message": "late"}),
        "remember": store.remember(id, fence, "once:x", b"1"),
        "step_begin": engine.begin(holder).answer,
        "step_end": store.step_end(id, fence, new_id(), "succeeded", b"1", b"{}").answer,
        "park": store.park(id, fence, ERROR, "retry"),
        "seal": engine.seal(id, fence),
        "requeue": store.requeue(id, fence, "transient")[0],
    }


REFUSED = {
    "renew": "lost",
    "append": "lost",
    "remember": None,
    "step_begin": "lost",
    "step_end": "lost",
    "requeue": "gone",
    "park": "lost",
    "seal": "lost",
}


@pytest.mark.parametrize("fence", [0, 1, 3, 99])
def test_stale_writer_is_refused_by_every_script(engine: Engine, fence: int) -> None:
    """Under any fence but the current one nothing can be written, and nothing changes."""
    id = engine.new()
    engine.take(id)
    engine.advance(6)
    assert engine.lapse(id) == ("queued", "queue")
    engine.take(id)
    before = engine.whole()
    assert late(engine, id, fence) == REFUSED
    assert engine.whole() == before


def test_expired_lease_holder_is_refused(engine: Engine) -> None:
    """The lease decides, not the clock's tick: one microsecond after it, its holder is refused."""
    id = engine.running().id
    engine.advance(5.001)
    before = engine.store.events(id)
    refused = late(engine, id, 1)
    # The last holder may hand the work back: that writes nothing of the work.
    assert refused.pop("requeue") == "queued"
    assert refused == {name: answer for name, answer in REFUSED.items() if name != "requeue"}
    assert [event.kind for event in engine.store.events(id)[len(before) :]] == ["execution.reset"]
    assert engine.store.steps(id) == {}


@pytest.mark.parametrize("state", ["pending", "completed", "cancelled", "unknown"])
def test_work_events_require_a_run(engine: Engine, state: str) -> None:
    """In any state but running, the scripts of a holder refuse and change nothing."""
    execution = engine.running()
    id = execution.id
    if state == "pending":
        engine.store.requeue(id, 1, "handed_back")
    elif state == "completed":
        engine.seal(id, 1)
    elif state == "cancelled":
        engine.cancel(id)
    else:
        id = new_id()
    before = engine.whole()
    answers = {
        "renew": engine.store.renew(id, 1, LEASE),
        "append": engine.store.append(id, 1, 1, [("progress.updated", b"{}")]),
        "remember": engine.store.remember(id, 1, "once:x", b"1"),
        "step_end": engine.store.step_end(id, 1, new_id(), "succeeded", b"1", b"{}").answer,
        "requeue": engine.store.requeue(id, 1, "transient")[0],
        "lapse": engine.lapse(id)[0],
    }
    assert answers == {
        "renew": "lost",
        "append": "lost",
        "remember": None,
        "step_end": "lost",
        "requeue": "gone",
        "lapse": "gone",
    }
    if state != "completed":
        assert engine.seal(id, 1) == "lost"
    assert engine.whole() == before


def test_third_crash_is_the_last(engine: Engine) -> None:
    """An expired lease uses an attempt; after three the execution fails with the error given for it."""
    id = engine.new()
    for attempt in (1, 2, 3):
        assert engine.take(id).attempt == attempt
        assert engine.lapse(id) == ("gone", "")
        engine.advance(6)
        assert engine.lapse(id)[0] == ("queued" if attempt < 3 else "failed")
    execution = engine.get(id)
    assert (execution.state, execution.error["code"], execution.phase) == (State.FAILED, "NO", Phase.DONE)
    assert engine.kinds(id)[-2:] == ["agent.timeout", "execution.failed"]
    [reset, _] = engine.log(id, "execution.reset")
    assert reset.data() == {"reason": "lease_lapsed", "from_status": "running"}


def test_hand_back_uses_no_attempt(engine: Engine) -> None:
    """However often work is handed back, its attempt stays; the fence still increases."""
    id = engine.new()
    for fence in range(1, 8):
        execution = engine.take(id)
        assert (execution.attempt, execution.fence) == (1, fence)
        assert engine.store.requeue(id, fence, "handed_back") == ("queued", "queue")
    assert engine.store.stats()['worker_resets_total{reason="handed_back"}'] == b"7"


def test_transient_failure_uses_an_attempt_and_waits(engine: Engine) -> None:
    """After a transient failure the execution is due only after its delay, with one attempt less."""
    id = engine.new(lane=Lane.EXPRESS)
    engine.client.delete(engine.keys.express)
    engine.take(id)
    assert engine.store.requeue(id, 1, "transient", delay_us=SECOND) == ("later", "")
    assert engine.store.take(id, lease_us=LEASE, worker="w", session=new_id()) is None
    assert engine.store.hint(id) == ("early", "")
    assert engine.client.llen(engine.keys.express) == 0
    engine.advance(1.1)
    assert engine.store.hint(id) == ("queued", "express")
    assert engine.client.lrange(engine.keys.express, 0, -1) == [id.encode()]
    assert engine.take(id).attempt == 2
    assert engine.client.zcard(engine.keys.timers) == 0


def test_past_delay_means_none(engine: Engine) -> None:
    """A hand-back whose time is in the past queues immediately."""
    id = engine.running().id
    assert engine.store.requeue(id, 1, "transient", delay_us=-5 * SECOND) == ("queued", "queue")
    assert engine.take(id).attempt == 2


def test_express_lane_holds_an_id_once(engine: Engine) -> None:
    """Re-sending an id that is still in its list does not duplicate it."""
    id = engine.new(lane=Lane.EXPRESS)
    for _ in range(3):
        assert engine.store.hint(id) == ("queued", "express")
    assert engine.client.lrange(engine.keys.express, 0, -1) == [id.encode()]


def test_overtime_is_not_retried(engine: Engine) -> None:
    """A lease that expired at the run limit fails the execution at its first attempt."""
    id = engine.running(run_limit_us=2 * SECOND).id
    engine.advance(3)
    assert engine.store.requeue(id, None, "lease_lapsed", crashed=ERROR, overtime=b'{"code":"OVER"}') == (
        "failed",
        "",
    )
    assert engine.get(id).error == {"code": "OVER"}


@pytest.mark.parametrize(
    ("field", "code"),
    [("sla_by", "SLOW"), ("ends_by", "LATE"), (None, "OVER")],
    ids=["latency", "deadline", "-"],
)
def test_overtime_names_the_violated_limit(engine: Engine, field: str | None, code: str) -> None:
    """Work cut short by a promised latency or a contract's deadline fails with that reason."""
    id = engine.running(run_limit_us=2 * SECOND).id
    engine.client.hset(engine.keys.record(id), "contract", "ref")
    if field is not None:
        engine.client.hset(engine.keys.record(id), field, engine.store.now() + 2 * SECOND)
    engine.advance(3)
    payloads = {
        name: b'{"code":"%s"}' % change
        for name, change in (
            ("crashed", b"C"),
            ("overtime", b"OVER"),
            ("latency", b"SLOW"),
            ("deadline", b"LATE"),
        )
    }
    assert engine.store.requeue(id, None, "lease_lapsed", **payloads) == ("failed", "")
    assert engine.get(id).error == {"code": code}


def test_clock_takes_only_expired_leases(engine: Engine) -> None:
    """A valid lease is neither taken nor listed; an expired one is listed."""
    execution = engine.running()
    assert engine.lapse(execution.id) == ("gone", "")
    assert engine.store.due(tree="t", retention_us=HOUR).lapsed == []
    engine.advance(5.001)
    assert engine.store.due(tree="t", retention_us=HOUR).lapsed == [execution.id]


def at(engine: Engine, moment: int) -> None:
    """Stops the store's clock at the given microsecond."""
    whole = "local function whole(n) return string.format('%.0f', n) end\n"
    engine.store.scripts._prelude = f"{whole}local function now() return {moment} end\n"
    engine.store.scripts._loaded.clear()


def test_limits_are_exact_to_the_microsecond(engine: Engine) -> None:
    """In its last microsecond a lease holds for all callers; in the next only the clock may act."""
    store, start = engine.store, 1_800_000_000_000_000
    at(engine, start)
    ids = [engine.running(timeout_us=LEASE).id for _ in range(2)]
    step = engine.begin(engine.get(ids[0]), timeout_us=LEASE).text()
    for offset in (0, LEASE):
        at(engine, start + offset)
        assert store.append(ids[0], 1, offset, [("x", b"{}")]) == "ok"
        assert engine.lapse(ids[0]) == ("gone", "")
        assert store.due(tree="t", retention_us=HOUR).lapsed == []
    assert store.renew(ids[0], 1, LEASE) == "overtime"
    due = store.due(tree="t", retention_us=HOUR)
    assert (sorted(due.deadlines), due.steps) == (sorted(ids), [(ids[0], step)])
    at(engine, start + LEASE - 1)
    assert (engine.expire(ids[0]), store.step_expire(ids[0], step, ERROR)) == ("gone", "gone")
    assert store.due(tree="t", retention_us=HOUR).deadlines == []
    at(engine, start + LEASE + 1)
    assert store.append(ids[0], 1, 9, [("x", b"{}")]) == "lost"
    assert sorted(store.due(tree="t", retention_us=HOUR).lapsed) == sorted(ids)
    assert engine.lapse(ids[0]) == ("failed", "")
    at(engine, start + LEASE)
    assert engine.expire(ids[1]) == "failed"


def test_timer_is_due_at_its_exact_microsecond(engine: Engine) -> None:
    """One microsecond early no taker gets the lease; on time one does."""
    start = 1_800_000_000_000_000
    at(engine, start)
    id = engine.running().id
    engine.store.requeue(id, 1, "transient", delay_us=SECOND)
    at(engine, start + SECOND - 1)
    assert engine.store.take(id, lease_us=LEASE, worker="w", session=new_id()) is None
    assert engine.store.hint(id) == ("early", "")
    at(engine, start + SECOND)
    assert engine.store.hint(id) == ("queued", "queue")
    assert engine.take(id).fence == 2


def test_concurrent_hand_backs_are_one(engine: Engine) -> None:
    """Supervisor and clock both detect a death; the execution is queued and counted once."""
    id = engine.running().id
    engine.advance(6)
    answers = [engine.store.requeue(id, 1, "process_lost")[0], engine.lapse(id)[0]]
    assert answers == ["queued", "gone"]
    assert engine.take(id).attempt == 2


def test_seal_completes_and_is_idempotent(engine: Engine) -> None:
    """The terminal event is the log's last; the same seal again returns ok and writes nothing."""
    execution = engine.running()
    assert engine.seal(execution.id, 1, output=b'{"a":[]}') == "ok"
    ended = engine.get(execution.id)
    assert (ended.state, ended.phase, ended.output) == (State.COMPLETED, Phase.DONE, b'{"a":[]}')
    before = engine.whole()
    assert engine.seal(execution.id, 1, output=b'"other"') == "ok"
    assert engine.seal(execution.id, 2) == "lost"
    assert engine.whole() == before
    for key in (engine.keys.leases, engine.keys.deadlines, engine.keys.queued, engine.keys.timers):
        assert engine.client.zcard(key) == 0


@pytest.mark.parametrize("first", ["cancel", "seal", "expire", "lapse"])
def test_first_end_wins(engine: Engine, first: str) -> None:
    """Of cancel, seal, expiry and crash, the first ends the execution and the others are refused."""
    id = engine.running(attempts=1, timeout_us=LEASE).id
    ends = {
        "cancel": (lambda: engine.cancel(id), "cancelled"),
        "seal": (lambda: engine.seal(id, 1), "ok"),
        "expire": (lambda: engine.expire(id), "failed"),
        "lapse": (lambda: engine.lapse(id)[0], "failed"),
    }
    if first in ("expire", "lapse"):
        engine.advance(6)
    act, expected = ends.pop(first)
    assert act() == expected
    engine.advance(6)
    before = engine.whole()
    for name, (act, wins) in ends.items():
        assert act() != wins, name
    assert engine.whole() == before
    assert (
        sum(
            kind in ("execution.completed", "execution.failed", "execution.cancelled")
            for kind in engine.kinds(id)
        )
        == 1
    )


def test_concurrent_cancel_and_seal_have_one_winner(engine: Engine) -> None:
    """In a real race each execution ends once, as the winner was told."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            id = engine.running().id
            cancelled, sealed = pool.submit(engine.cancel, id), pool.submit(engine.seal, id, 1)
            won = (cancelled.result() == "cancelled", sealed.result() == "ok")
            assert sorted(won) == [False, True]
            assert engine.get(id).state == (State.CANCELLED if won[0] else State.COMPLETED)
            assert len(engine.kinds(id)) == 3


@pytest.mark.parametrize("state", ["pending", "running"])
def test_cancel_before_and_during_the_run(engine: Engine, state: str) -> None:
    """A cancelled execution leaves every list it was in, and its open steps end with it."""
    id = engine.new(lane=Lane.EXPRESS)
    if state == "running":
        engine.begin(engine.take(id))
    assert engine.store.cancel(id, b'{"reason":"x"}', by="operator") == ("cancelled", state)
    assert engine.store.cancel(id, b'{"reason":"x"}', by="operator") == ("terminal", "cancelled")
    assert engine.store.cancel(new_id(), b"{}", by="operator") == ("unknown", "")
    for key in (engine.keys.leases, engine.keys.deadlines, engine.keys.queued, engine.keys.step_deadlines):
        assert engine.client.zcard(key) == 0
    assert engine.store.stats()['worker_executions_total{status="cancelled"}'] == b"1"


def test_only_money_changes_a_sealed_execution(engine: Engine) -> None:
    """A sealed result awaiting its payment cannot be cancelled, expired, taken back or written to."""
    execution = engine.running(timeout_us=8 * SECOND)
    engine.client.hset(
        engine.keys.record(execution.id), mapping={"sealed_by": "1", "phase": Phase.SETTLING.value}
    )
    assert engine.store.append(execution.id, 1, 1, [("x", b"{}")]) == "lost"
    assert engine.store.renew(execution.id, 1, LEASE) == "lost"
    assert engine.begin(execution) == Reply(StepBeginAnswer.LOST, [])
    engine.advance(9)
    assert engine.cancel(execution.id) == "sealed"
    assert engine.expire(execution.id) == "gone"
    assert engine.lapse(execution.id) == ("gone", "")
    assert engine.store.requeue(execution.id, 1, "process_lost") == ("gone", "")
    assert engine.store.append(execution.id, 1, 1, [("x", b"{}")]) == "lost"
    assert engine.get(execution.id).state == State.RUNNING


@pytest.mark.parametrize("state", ["pending", "running"])
def test_old_execution_expires(engine: Engine, state: str) -> None:
    """An execution fails once it is past its age limit, not before, and once."""
    id = engine.new(timeout_us=10 * SECOND)
    if state == "running":
        engine.take(id)
    assert engine.expire(id) == "gone"
    engine.advance(10.1)
    assert engine.store.due(tree="t", retention_us=HOUR).deadlines == [id]
    assert engine.expire(id) == "failed"
    assert engine.expire(id) == "gone"
    assert engine.kinds(id)[-1] == "execution.failed"
    assert engine.client.zcard(engine.keys.deadlines) == 0


def test_signals_are_accepted_while_it_runs(engine: Engine) -> None:
    """A signal to a pending or running execution is logged; afterwards it is refused."""
    id = engine.new()
    engine.executions.signal(id, "x", [])
    engine.take(id)
    engine.executions.signal(id, "x", {})
    engine.seal(id, 1)
    with pytest.raises(Conflict, match="already completed"):
        engine.executions.signal(id, "x", {})
    with pytest.raises(NotFound):
        engine.executions.signal(new_id(), "x", {})
    assert engine.log(id, "signal.received")[0].payload == b'{"signal_type":"x","payload":[]}'


def test_events_are_idempotent(engine: Engine) -> None:
    """A repeated write number returns ok and writes nothing; the next one is written."""
    id = engine.running().id
    for _ in range(3):
        assert engine.store.append(id, 1, 1, [("progress.updated", b"{}")], {"message": "m"}) == "ok"
    assert engine.store.append(id, 1, 2, [("progress.updated", b"{}")]) == "ok"
    assert len(engine.log(id, "progress.updated")) == 2
    assert engine.get(id).message == "m"


def test_sequences_have_no_gaps(engine: Engine) -> None:
    """With concurrent writers, positions count 1, 2, 3 and event ids sort in the same order."""
    execution = engine.running()

    def write(n: int) -> None:
        if n % 2:
            engine.executions.signal(execution.id, "x", {})
        else:
            engine.store.append(execution.id, 1, n, [("progress.updated", b"{}"), ("output.chunk", b"{}")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(100)))
    events = engine.store.events(execution.id)
    assert [event.sequence for event in events] == list(range(1, 153))
    ids = [event.id for event in events]
    assert ids == sorted(ids) and len(set(ids)) == 152
    times = [event.at for event in events]
    assert times == sorted(times)


def test_remembered_values_keep_the_first_run(engine: Engine) -> None:
    """remember always returns the first value, logs it once, and works only under the lease."""
    id = engine.running().id
    values = [
        engine.store.remember(id, 1, "once:t", value, kind="file.written", payload=b"{}")
        for value in (b"[]", b"{}")
    ]
    assert values == [b"[]", b"[]"]
    assert len(engine.log(id, "file.written")) == 1
    engine.store.requeue(id, 1, "handed_back")
    engine.take(id)
    assert engine.store.remember(id, 1, "once:t", b"1") is None
    assert engine.store.remember(id, 2, "once:t", b"1") == b"[]"


@pytest.mark.parametrize("kind", ["retry", "input"])
def test_parked_execution_waits_for_its_seeker(engine: Engine, kind: str) -> None:
    """Parked work is pending with its error, holds no lease, and is due for neither clock nor taker."""
    id = engine.new(lane=Lane.EXPRESS)
    engine.client.delete(engine.keys.express)
    engine.take(id)
    assert engine.store.park(id, 1, ERROR, kind) == "parked"
    assert engine.store.park(id, 1, ERROR, kind) == "lost"
    execution = engine.get(id)
    assert (execution.state, execution.attempt, execution.error["code"]) == (State.PENDING, 0, "NO")
    engine.advance(3000)
    assert engine.store.take(id, lease_us=LEASE, worker="w", session=new_id()) is None
    assert engine.store.hint(id) == ("early", "")
    due = engine.store.due(tree="t", retention_us=HOUR)
    assert (due.lapsed, due.timers, engine.store.queued_before(due.at, 10)) == ([], [], [])
    assert engine.client.llen(engine.keys.express) == 0
    assert engine.log(id, "execution.reset")[0].data()["reason"] == "parked"


def test_retry_keeps_finished_steps(engine: Engine) -> None:
    """After parking, finished steps are replayed; failed and interrupted ones start as new steps."""
    execution = engine.running()
    steps = {key: engine.begin(execution, key).text() for key in ("good", "bad", "open")}
    for key, outcome in (("good", "succeeded"), ("bad", "failed")):
        engine.store.step_end(execution.id, 1, steps[key], outcome, b'"v"', b"{}")
    engine.store.park(execution.id, 1, ERROR, "retry")
    engine.client.hset(engine.keys.record(execution.id), mapping={"due": "0", "parked": ""})
    execution = engine.take(execution.id)
    assert engine.begin(execution, "good") == Reply(
        StepBeginAnswer.SUCCEEDED, [steps["good"].encode(), b'"v"']
    )
    for key in ("bad", "open"):
        reply = engine.begin(execution, key)
        assert (reply.answer, reply.values[1]) == ("new", b"1") and reply.text() != steps[key]


# Allowed transitions. The remote script tests cover a remote agent's blocked execution running on.
FOLLOWS = {
    ("pending", "running"),
    ("pending", "failed"),
    ("pending", "cancelled"),
    ("running", "pending"),
    ("running", "blocked"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("blocked", "pending"),
    ("blocked", "failed"),
    ("blocked", "cancelled"),
}


def test_allowed_state_transitions(engine: Engine) -> None:
    """Every action in every state moves as in the protocol's table, and no terminal state changes."""

    def waits(job: Any) -> Any:
        return job.wait("go")

    def execution_in(state: str) -> str:
        id = engine.agent(waits)
        if state == "blocked":
            assert engine.runner().run(id)
        elif state == "cancelled":
            engine.cancel(id)
        elif state != "pending":
            engine.take(id)
            if state != "running":
                engine.seal(id, 1, state)
        assert engine.get(id).state == state
        return id

    def old(id: str) -> None:
        engine.client.hset(engine.keys.record(id), "ends_by", 1)
        engine.expire(id)

    local = StoreExternalCalls(engine.remote_store, engine.runners, engine.files)
    acts: list[Callable[[str], object]] = [
        lambda id: engine.store.take(id, lease_us=LEASE, worker="w", session=new_id()),
        lambda id: engine.seal(id, 1, "completed"),
        lambda id: engine.seal(id, 1, "failed"),
        lambda id: engine.store.requeue(id, 1, "handed_back"),
        lambda id: engine.store.requeue(id, 1, "not_begun"),
        lambda id: engine.store.requeue(id, 1, "process_lost", crashed=ERROR, overtime=ERROR),
        lambda id: engine.store.park(id, 1, ERROR, "retry"),
        engine.cancel,
        old,
        lambda id: local.wait(id, 1, "go#1", "go", None),
        lambda id: engine.get(id).state.terminal or engine.executions.signal(id, "go", 1),
        engine.store.hint,
    ]
    seen = set()
    for state in State:
        for act in acts:
            id = execution_in(state)
            act(id)
            seen.add((str(state), str(engine.get(id).state)))
    assert {pair for pair in seen if pair[0] != pair[1]} == FOLLOWS
