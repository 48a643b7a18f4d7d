"""What keeps a page up to date: a stream that says when something has changed. The page fetches itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain

from flask import Blueprint, Response, request

from worker.doors.answers import SSE_HEADERS, whole
from worker.doors.dashboard_view import DashboardView
from worker.doors.hangup import bound_writes
from worker.doors.stream_places import StreamPlaces
from worker.store.outage import StoreError, note

_LOOK_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0
# Browsers connect again by themselves, which also checks whether the session still counts.
_LIFE_SECONDS = 600.0
_MOST = 100
# An execution that streams output changes many times a second.
_CALM_SECONDS = 0.5


def add(blueprint: Blueprint, view: DashboardView) -> None:
    places = StreamPlaces(most=_MOST, of_one_task=_MOST)

    def stream(name: str, changes: Iterator[str]) -> Response:
        bound_writes(request.environ)
        leave = places.take(name, newcomer=False)
        response = Response(changes, mimetype="text/event-stream", headers=SSE_HEADERS)
        response.call_on_close(leave)
        return response

    @blueprint.get("/stream")
    def live() -> Response:
        """Says when anything that the overview counts has changed."""
        watcher, seen = view.services.watcher, request.args.get("seen", "")
        return stream("live", _changes(view.services.pulse.read, lambda: watcher.closed, seen))

    @blueprint.get("/executions/<id>/stream")
    def live_execution(id: str) -> Response:
        """Says when the log of one execution has grown."""
        pulse, watcher = view.services.pulse, view.services.watcher
        known = view.services.executions.get(id).id
        after = _changes(lambda: pulse.read_one(known), lambda: watcher.closed)
        seen = whole(request.args.get("seen", ""), 0)
        return stream(f"execution {id}", chain(_growth(view, known, seen), after))


def _changes(read: Callable[[], str], closed: Callable[[], bool], seen: str = "") -> Iterator[str]:
    """One event for each change since the page was made, heartbeats between them."""
    yield "retry: 5000\n\n"
    ends = time.monotonic() + _LIFE_SECONDS
    last, said = seen, time.monotonic()
    while time.monotonic() < ends and not closed():
        try:
            found = read()
        except StoreError as error:
            note(error, "dashboard.live")
            found = last
        if found != last:
            last, said = found, time.monotonic()
            yield "event: change\ndata: \n\n"
        elif time.monotonic() - said > _HEARTBEAT_SECONDS:
            said = time.monotonic()
            yield ":heartbeat\n\n"
        time.sleep(_LOOK_SECONDS)


def _growth(view: DashboardView, id: str, seen: int) -> Iterator[str]:
    """One event for each batch of the log, until its end."""
    yield "retry: 5000\n\n"
    for batch in view.services.executions.follow(id, seen):
        if batch:
            yield "event: change\ndata: \n\n"
            time.sleep(_CALM_SECONDS)
        else:
            yield ":heartbeat\n\n"
