"""Lists of executions: filters, pages and cursors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from worker.core.errors import BadRequest
from worker.core.ids import is_id
from worker.engine.reader import ExecutionReader
from worker.engine.record import Execution, ExecutionRow
from worker.store.data_model import CONTRACT_LABEL, HIRE_LABELS

# A page examines at most this many entries; the cursor continues from there.
WALK = 1_000
_MOST_ROWS = 250
# Later than any execution was created.
_NEWEST = 9_999_999_999_999_999

Row = TypeVar("Row", Execution, ExecutionRow)
# Reads as many executions as there are ids; None for those that are gone.
Read = Callable[[Sequence[str]], "list[Row | None]"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Filters of a list."""

    state: str = ""
    agent: str = ""
    door: str = ""
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, execution: Execution | ExecutionRow) -> bool:
        return (
            (not self.state or execution.state == self.state)
            and (not self.agent or execution.agent == self.agent)
            and (not self.door or execution.door == self.door)
            and all(execution.labels.get(name) == value for name, value in self.labels)
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    executions: list[Row]
    next_cursor: str


def read_page(
    store: ExecutionReader, read: Read[Row], filter: Filter, *, cursor: str = "", limit: int = 50
) -> Page[Row]:
    """Lists newest first. Walks the most selective index and checks the other filters on the way."""
    hired = _hired(store, filter)
    index = _index(store, filter, hired)
    at = _read_cursor(cursor) if cursor else None
    apart = hired and not cursor and not store.indexed(index, hired)
    found = _matching(read([hired]), filter) if apart else []
    if found:
        at = _NEWEST, found[0].id
    walked, step = 0, limit + 1
    while walked < WALK:
        most = min(step, WALK - walked)
        rows = store.page(index, cursor=at, most=most)
        shown = read([id for id, _ in rows])
        for (id, created), execution in zip(rows, shown, strict=True):
            if len(found) == limit:
                return Page(found, _cursor(at))
            at = created, id
            if execution is not None and filter.matches(execution):
                found.append(execution)
        if len(rows) < most:
            return Page(found, "")
        walked += len(rows)
        # Few rows matched: examine more at a time.
        step = min(2 * step, _MOST_ROWS)
    return Page(found, _cursor(at))


def _hired(store: ExecutionReader, filter: Filter) -> str:
    """The execution of the wanted contract, or ''; an unpaid one may be kept longer than its contract."""
    ref = dict(filter.labels).get(CONTRACT_LABEL, "")
    return store.bought_by(ref) if ref else ""


def _matching(read: list[Row | None], filter: Filter) -> list[Row]:
    return [each for each in read if each is not None and filter.matches(each)]


def _index(store: ExecutionReader, filter: Filter, hired: str) -> str:
    keys, labels = store.keys, dict(filter.labels)
    if CONTRACT_LABEL in labels:
        of_contract = keys.by_label(CONTRACT_LABEL, labels[CONTRACT_LABEL])
        if hired or store.count(of_contract):
            return of_contract
    lists = [keys.by_label(name, value) for name, value in filter.labels if name not in HIRE_LABELS]
    lists += [keys.by_state(filter.state)] if filter.state else []
    lists += [keys.by_agent(filter.agent)] if filter.agent else []
    lists += [keys.by_door(filter.door)] if filter.door else []
    return store.smallest(lists or [keys.everything])


def _cursor(at: tuple[int, str] | None) -> str:
    return base64.urlsafe_b64encode(f"{at[0]}|{at[1]}".encode()).decode() if at else ""


def _read_cursor(cursor: str) -> tuple[int, str]:
    try:
        created, id = base64.urlsafe_b64decode(cursor.encode()).decode().split("|")
        if not (created.isascii() and created.isdigit() and len(created) < 17 and is_id(id)):
            raise ValueError(cursor)
    except (binascii.Error, ValueError) as broken:
        raise BadRequest("the cursor is invalid", field="cursor") from broken
    return int(created), id
