"""Runs the clock's actions on remote work item by item, so that one failure does not block the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from worker.core.errors import Problem
from worker.store.client import unavailable

log = structlog.get_logger()

T = TypeVar("T")


def each(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Calls `act` with every item. Logs an item's error and continues; in an outage all items wait."""
    for item in items:
        try:
            act(item)
        except Problem as problem:
            log.warning("remote.item_postponed", item=item, code=problem.code)
        except Exception as error:
            if unavailable(error) is not None:
                raise
            log.exception("remote.item_failed", item=item)
