"""`worker run`: create an execution from the shell and watch it to its end."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from worker.cli.execution_view import ExecutionView, finish
from worker.cli.inputs import read_document
from worker.cli.target import add_state, parts_of
from worker.core.errors import BadRequest, NotFound


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="run a capability and watch it")
    run.add_argument("capability", metavar="CAPABILITY", help="an agent's name")
    run.add_argument("--input", default="{}", help="JSON, or @FILE that holds it, or - for standard input")
    run.add_argument(
        "--label", action="append", default=[], metavar="K=V", help="for lists and policies; may be repeated"
    )
    run.add_argument("--out", metavar="DIR", help="where delivered files are saved")
    add_state(run)
    run.set_defaults(handler=run_capability)


def run_capability(args: argparse.Namespace) -> int:
    input, labels = read_document(args.input, name="--input"), dict(label(text) for text in args.label)
    out = directory(args.out) if args.out else None
    parts = parts_of(args)
    if parts.catalog.get(args.capability) is None:
        names = sorted(name for name in parts.catalog.all() if not name.startswith("_"))
        offered = ", ".join(names) or "no answer: is a work process running?"
        raise NotFound(
            f"no capability is called {args.capability!r}; on offer: {offered}",
            advice="Name one that is offered.",
        )
    _, id = parts.executions.create(args.capability, input, door="cli", labels={"door": "cli", **labels})
    print(f"execution {id}", file=sys.stderr)
    ExecutionView(parts, id, args.state).follow()
    return finish(parts, id, out, args.state)


def directory(text: str) -> Path:
    """The directory for saved files; checked before any work is done."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise BadRequest(
            f"{text!r} cannot be used as a directory", field="--out", advice="Name another directory."
        ) from fault
    return Path(text)


def label(text: str) -> tuple[str, str]:
    """Parses K=V."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadRequest("a label is K=V", field="--label", received=text, advice="Write --label NAME=VALUE.")
    return name, value
