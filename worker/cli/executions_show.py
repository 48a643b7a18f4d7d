"""`worker executions show`: one execution for operator and author, with the causes of its failures."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from worker.cli.execution_view import waiting_lines
from worker.cli.target import parts_of, state_option
from worker.cli.terminal import print_json, printable
from worker.core.states import State
from worker.engine.events import Event, iso
from worker.engine.failure_causes import failure_causes
from worker.engine.record import Execution
from worker.remote.waits import open_waits

_MOST_EVENTS = 1_000
_MOST_TEXT = 100


def show_execution(args: argparse.Namespace) -> int:
    parts = parts_of(args)
    executions = parts.executions
    execution = executions.get(args.execution)
    events = executions.events(execution.id, limit=_MOST_EVENTS)
    causes = failure_causes(parts.store.steps(execution.id))
    if args.json:
        output = {"input": executions.input(execution), "output": executions.output(execution)}
        log = {"events": [event.shown() for event in events], "failures": causes}
        print_json({**summary(execution), "error": execution.error or None, **output, **log})
        return 0
    lines = [*_head(execution), *map(_event, events), *_causes(causes)]
    if execution.state is State.BLOCKED:
        lines.append("")
        for wait in open_waits(parts.remote_store, execution.id):
            lines += waiting_lines(execution.id, wait.payload(), state_option(args.state))
    print("\n".join(lines), flush=True)
    return 0


def summary(execution: Execution) -> dict[str, Any]:
    """An execution's fields for lists and for `--json`."""
    return {
        "id": execution.id,
        "agent": execution.agent,
        "status": execution.state,
        "phase": execution.phase,
        "door": execution.door,
        "labels": execution.labels,
        "attempt": execution.attempt,
        "created_at": iso(execution.created),
        "updated_at": iso(execution.updated),
        "ended_at": iso(execution.ended) if execution.ended else None,
        "progress": execution.progress,
        "message": execution.message,
    }


def _head(execution: Execution) -> Iterator[str]:
    yield f"{execution.id}  {execution.agent}  {execution.state}, {execution.phase}"
    yield f"attempt {execution.attempt} of {execution.attempts}, through the door {execution.door}"
    if execution.error:
        yield printable(f"{execution.error.get('code')}: {execution.error.get('error')}")
    yield ""


def _event(event: Event) -> str:
    shown = event.payload.decode(errors="replace")
    short = shown if len(shown) <= _MOST_TEXT else shown[: _MOST_TEXT - 3] + "..."
    return f"{event.sequence:4}  {iso(event.at)}  {event.kind:24}  {printable(short)}"


def _causes(causes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What was raised and where; texts that may contain secrets are only in the log."""
    causes = [*causes]
    if causes:
        yield ""
    for cause in causes:
        reason = f": {cause['reason']}" if cause["reason"] else ", whose text is in the work process's log"
        yield printable(f"attempt {cause['attempt']} failed with {cause['code']}: {cause['error']}{reason}")
        yield (
            f"  at {cause['where']}, agent {cause['agent']}"
            if cause["where"]
            else f"  agent {cause['agent']}"
        )
