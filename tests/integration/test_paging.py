"""Execution lists: newest first, filtered, in consistent pages, at a bounded cost."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine import SECOND, Engine
from worker.core.errors import BadRequest
from worker.core.ids import new_id
from worker.core.states import Lane, State
from worker.engine.listing import WALK, Filter
from worker.engine.service import Executions
from worker.engine.transitions import ExecutionStore
from worker.payments.money_store import HOOKS

Row = tuple[int, str, dict[str, Any]]

STATES = ["pending", "running", "completed"]
ROW = st.fixed_dictionaries(
    {
        "state": st.sampled_from(STATES),
        "agent": st.sampled_from(["a", "b"]),
        "door": st.sampled_from(["kernel", "hire"]),
        "labels": st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])),
        # Many in the same microsecond, so that the id decides the order.
        "created": st.integers(1, 4),
    }
)
FILTER = st.builds(
    Filter,
    state=st.sampled_from(["", *STATES]),
    agent=st.sampled_from(["", "a", "b", "nobody"]),
    door=st.sampled_from(["", "kernel", "hire"]),
    labels=st.lists(st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])), max_size=2).map(
        tuple
    ),
)


def put(engine: Engine, rows: list[dict[str, Any]], first: int = 0) -> list[Row]:
    """Writes records as the scripts leave them, in bulk; returned in list order, newest first."""
    keys, created_ids = engine.keys, []
    pipe = engine.client.pipeline(transaction=False)
    for row in rows:
        id, at = new_id(), first + row["created"]
        fields = {
            "id": id,
            "lane": Lane.QUEUE,
            "phase": "working",
            "created": at,
            "updated": at,
            **{name: row[name] for name in ("state", "agent", "door")},
            "labels": json.dumps(row["labels"]),
        }
        pipe.hset(keys.record(id), mapping=fields)
        lists = [*keys.indexes(row["agent"], row["door"], row["labels"]), keys.by_state(row["state"])]
        for key in lists:
            pipe.zadd(key, {id: at})
        created_ids.append((at, id, row))
        if len(created_ids) % 2_000 == 0:
            pipe.execute()
    pipe.execute()
    return sorted(created_ids, key=lambda row: row[:2], reverse=True)


def matching(rows: list[Row], filter: Filter) -> list[str]:
    return [
        id
        for _, id, row in rows
        if filter.state in ("", row["state"])
        and filter.agent in ("", row["agent"])
        and filter.door in ("", row["door"])
        and all(row["labels"].get(name) == value for name, value in filter.labels)
    ]


def pages(executions: Executions, filter: Filter, limit: int) -> Iterator[list[str]]:
    cursor = ""
    while True:
        page = executions.page(filter, cursor=cursor, limit=limit)
        yield [each.id for each in page.executions]
        cursor = page.next_cursor
        if not cursor:
            return


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROW, max_size=40), FILTER, st.integers(1, 12))
def test_pages_concatenate_to_the_sorted_list(
    engine: Engine, rows: list[dict[str, Any]], filter: Filter, limit: int
) -> None:
    """For any executions, filter and page size, the joined pages are the filtered list, newest first."""
    engine.client.flushall()
    created_ids = put(engine, rows)
    found = list(pages(engine.executions, filter, limit))
    assert [id for page in found for id in page] == matching(created_ids, filter)
    assert all(len(page) <= limit for page in found)
    assert all(len(page) == limit for page in found[:-1])
    first, short = engine.executions.page(filter, limit=limit), engine.executions.rows(filter, limit=limit)
    assert short.next_cursor == first.next_cursor
    assert [(each.id, each.labels) for each in short.executions] == [
        (each.id, each.labels) for each in first.executions
    ]


def test_last_full_page_has_no_cursor(engine: Engine) -> None:
    """When the last page is full, its cursor is empty."""
    put(engine, [{"state": "pending", "agent": "a", "door": "d", "labels": {}, "created": 1}] * 6)
    assert [len(page) for page in pages(engine.executions, Filter(), 3)] == [3, 3]


@pytest.mark.parametrize("limit", [1, 7, 30])
def test_executions_of_one_microsecond_are_all_listed(engine: Engine, limit: int) -> None:
    """Executions created in the same microsecond are ordered by id, over any number of pages."""
    created_ids = put(
        engine, [{"state": "pending", "agent": "a", "door": "d", "labels": {}, "created": 1}] * 100
    )
    found = list(pages(engine.executions, Filter(), limit))
    assert [id for page in found for id in page] == [id for _, id, _ in created_ids]


def test_cursor_survives_removal_of_its_row(engine: Engine) -> None:
    """The next page is right although the cursor's execution was removed or changed state meanwhile."""
    created_ids = put(
        engine, [{"state": "pending", "agent": "a", "door": "d", "labels": {}, "created": 1}] * 60
    )
    ids = [id for _, id, _ in created_ids]
    page = engine.executions.page(Filter(state="pending"), limit=20)
    engine.client.zrem(engine.keys.by_state("pending"), *ids[15:25])
    after = engine.executions.page(Filter(state="pending"), cursor=page.next_cursor, limit=50)
    assert [each.id for each in after.executions] == ids[25:]


def test_new_executions_do_not_shift_pages(engine: Engine) -> None:
    """Executions created between pages neither repeat nor hide an older one."""
    ids = [engine.new() for _ in range(9)][::-1]
    first = engine.executions.page(Filter(), limit=4)
    engine.new()
    second = engine.executions.page(Filter(), cursor=first.next_cursor, limit=9)
    assert [each.id for each in (*first.executions, *second.executions)] == ids


def test_removed_record_is_skipped(engine: Engine) -> None:
    """A row whose record was removed between two reads leaves no gap in a page."""
    ids = [engine.new() for _ in range(5)][::-1]
    engine.client.delete(engine.keys.record(ids[1]))
    assert [each.id for each in engine.executions.page(Filter(), limit=3).executions] == [
        ids[0],
        ids[2],
        ids[3],
    ]


class Counting(redis.Redis):
    """Counts round trips, commands and response bytes."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(connection_pool=client.connection_pool)
        self.trips: list[tuple[str, ...]] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.trips.append((str(args[0]),))
        return super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        pipe = super().pipeline(transaction, shard_hint)
        execute = pipe.execute

        def counted(raise_on_error: bool = True) -> list[Any]:
            self.trips.append(tuple(str(args[0]) for args, _ in pipe.command_stack))
            return execute(raise_on_error)

        pipe.execute = counted
        return pipe


def counting(engine: Engine) -> tuple[Executions, Counting]:
    counted = Counting(engine.client)
    executions = Executions(
        ExecutionStore(counted, hooks=HOOKS),
        catalog=engine.catalog,
        files=engine.files,
        watcher=engine.watcher,
        push=engine.queue.push,
        timeout_us=SECOND,
        remote=engine.assignment,
        signals=engine.signals,
    )
    return executions, counted


def test_page_reads_a_bounded_number_of_entries(engine: Engine) -> None:
    """A filter with few matches reads a thousand entries a page, in few round trips, and continues."""
    rows = [
        {"state": "completed", "agent": "a", "door": "d", "labels": {}, "created": n} for n in range(2_300)
    ]
    rows[5]["door"] = "rare"
    rows += [
        {"state": "pending", "agent": "a", "door": "rare", "labels": {}, "created": n} for n in range(3_000)
    ]
    created_ids = put(engine, rows)
    executions, counted = counting(engine)
    filter = Filter(state="completed", agent="a", door="rare")
    found = list(pages(executions, filter, 1))
    assert [id for page in found for id in page] == matching(created_ids, filter)
    assert [len(page) for page in found] == [0, 0, 1, 0]
    assert 2_300 <= sum(len(trip) for trip in counted.trips if trip[0] == "HMGET") < 2_310
    assert len(counted.trips) < 70
    assert WALK == 1_000


def test_smallest_matching_index_is_read(engine: Engine) -> None:
    """Of several indexes that fit a filter, the smallest is read."""
    many = [
        {"state": "completed", "agent": "a", "door": "d", "labels": {"e": "p"}, "created": n}
        for n in range(500)
    ]
    few = {"state": "running", "agent": "a", "door": "d", "labels": {"e": "p"}, "created": 0}
    created_ids = put(engine, [*many, few])
    executions, counted = counting(engine)
    filter = Filter(state="running", labels=(("e", "p"),))
    page = executions.page(filter, limit=50)
    assert [each.id for each in page.executions] == matching(created_ids, filter)
    assert len(counted.trips) == 3


@pytest.mark.parametrize(
    "cursor",
    ["x", "====", "MXwy", "1|a", "é", "MXxhfGI=", "fA==", "/+/+", "OTk5", "a" * 5000, "\x00", "LTF8YQ"],
)
def test_foreign_cursor_is_refused_or_harmless(engine: Engine, cursor: str) -> None:
    """A foreign cursor is a malformed request, never an internal error."""
    engine.new()
    try:
        engine.executions.page(Filter(), cursor=cursor)
    except BadRequest as refused:
        assert refused.details["field"] == "cursor"


def forged(created: str, id: str) -> str:
    """A string in cursor format."""
    return base64.urlsafe_b64encode(f"{created}|{id}".encode()).decode()


@pytest.mark.parametrize("created", ["0", "9" * 16])
def test_forged_cursor_is_a_position_in_the_list(engine: Engine, created: str) -> None:
    """Any time in a forged cursor is a position in the list, or past it."""
    id = engine.new()
    page = engine.executions.page(Filter(), cursor=forged(created, id))
    assert [each.id for each in page.executions] == ([id] if created.startswith("9") else [])


@pytest.mark.parametrize("created", ["", "-5", " 5", "1_0", "\u0663", "1e5", "9" * 17, "9" * 4000])
def test_cursor_with_an_invalid_time_is_refused(engine: Engine, created: str) -> None:
    """Our cursors hold microseconds in plain digits."""
    with pytest.raises(BadRequest):
        engine.executions.page(Filter(), cursor=forged(created, engine.new()))


def test_lists_do_not_read_inputs(engine: Engine) -> None:
    """A page of executions with large inputs and outputs reads no more bytes than one with small ones."""
    id = engine.new(input=b'"' + b"x" * 30_000 + b'"')
    engine.take(id)
    engine.seal(id, 1, output=b'"' + b"y" * 30_000 + b'"')
    before = engine.client.info("stats")["total_net_output_bytes"]
    [execution] = engine.executions.page(Filter()).executions
    read = engine.client.info("stats")["total_net_output_bytes"] - before
    assert (execution.state, execution.ended > 0) == (State.COMPLETED, True)
    assert read < 12_000


def _cost(engine: Engine) -> tuple[list[tuple[str, ...]], dict[str, int], int]:
    """Of create, get and list: round trips, commands (including those in scripts), bytes both ways."""
    executions, counted = counting(engine)
    engine.catalog._read_at = float("-inf")
    commands, moved = _used(engine)
    _, id = executions.create("a", {"x": 1}, door="kernel", labels={"x": "1"})
    executions.get(id)
    filters = (
        Filter(),
        Filter(state="completed"),
        Filter(agent="a"),
        Filter(door="kernel"),
        Filter(labels=(("x", "1"),)),
    )
    for filter in filters:
        executions.page(filter, limit=20)
    then, now = _used(engine)
    return counted.trips, {name: then[name] - commands.get(name, 0) for name in then}, now - moved


def _used(engine: Engine) -> tuple[dict[str, int], int]:
    commands = {name: each["calls"] for name, each in engine.client.info("commandstats").items()}
    stats = engine.client.info("stats")
    return commands, stats["total_net_output_bytes"] + stats["total_net_input_bytes"]


def _same_cost_with(engine: Engine, many: int) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [
            {"state": "completed", "agent": "a", "door": "kernel", "labels": {"x": "1"}, "created": n}
            for n in range(count)
        ]

    now = engine.now()
    engine.catalog.publish([])
    put(engine, rows(200), now - 10_000_000)
    _cost(engine)  # loads scripts, opens connections
    few = _cost(engine)
    put(engine, rows(many), now - 9_000_000)
    assert engine.store.count(engine.keys.by_state("completed")) == many + 200
    trips, commands, moved = _cost(engine)
    assert trips == few[0]
    assert commands == few[1]
    assert commands["cmdstat_zadd"] < 12
    # The server's own counters are a few digits longer.
    assert abs(moved - few[2]) < 300


def test_cost_is_constant_with_20000_executions(engine: Engine) -> None:
    """With 20,000 finished executions, create, get and lists cost the same commands, trips and bytes."""
    _same_cost_with(engine, 20_000)


@pytest.mark.soak
def test_cost_is_constant_with_100000_executions(engine: Engine) -> None:
    """The same with 100,000."""
    _same_cost_with(engine, 100_000)
