"""`worker run`: create an execution from the shell and watch it to its end."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import redis

from worker.cli.inputs import read_document
from worker.cli.target import add_state, settings_for
from worker.delivery.files import FileRef
from worker.errors import BadRequest, NotFound, Problem, Unavailable
from worker.executions.events import Event, Kind
from worker.executions.states import State
from worker.logs import configure
from worker.parts import Parts
from worker.store import unavailable

_BAR = 30


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
    input, labels = read_document(args.input, name="--input"), dict(_label(text) for text in args.label)
    out = _directory(args.out) if args.out else None
    settings = settings_for(args.state, os.environ)
    configure(settings)  # to standard error: standard output is the work's own
    parts = Parts(settings, "cli")
    try:
        return _run(parts, args.capability, input, labels, out)
    except redis.RedisError as error:
        raise unavailable(error) or Problem() from error
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(parts: Parts, capability: str, input: Any, labels: dict[str, str], out: Path | None) -> int:
    if parts.catalog.get(capability) is None:
        names = sorted(name for name in parts.catalog.all() if not name.startswith("_"))
        offered = ", ".join(names) or "nothing: is a work process running?"
        raise NotFound(
            f"no capability is called {capability!r}; on offer: {offered}",
            advice="Name one that is on offer.",
        )
    _, id = parts.executions.create(capability, input, door="cli", labels={"door": "cli", **labels})
    print(f"execution {id}", file=sys.stderr)
    for batch in parts.executions.follow(id):
        for event in batch:
            _show(event)
    return _finish(parts, id, out)


def _show(event: Event) -> None:
    data = event.data()
    match event.kind:
        case Kind.PROGRESS:
            filled = int(data["fraction"] * _BAR)
            bar = "#" * filled + "." * (_BAR - filled)
            print(f"[{bar}] {data['fraction']:4.0%}  {data['message']}", file=sys.stderr)
        case Kind.OUTPUT_CHUNK:
            print(data["text"], end="", flush=True)
        case Kind.FILE_WRITTEN:
            print(f"file  {data['name']}  {data['size']} bytes  sha256:{data['sha256']}", file=sys.stderr)
        case Kind.STEP_CREATED:
            print(f"step  {data['tool_id']}", file=sys.stderr)
        case Kind.EXECUTION_STARTED | Kind.EXECUTION_RESET:
            print(f"{event.kind.split('.')[1]}", file=sys.stderr)


def _finish(parts: Parts, id: str, out: Path | None) -> int:
    execution = parts.executions.get(id)
    if not execution.state.terminal:
        raise Unavailable(f"the store was away; execution {id} is still {execution.state}")
    seconds = (execution.ended - execution.created) / 1e6
    print(f"{execution.state} in {seconds:.2f} s", file=sys.stderr)
    if execution.state is not State.COMPLETED:
        error = execution.error
        words = (f"{error.get('code', 'CANCELLED')}:", error.get("error"), error.get("details"))
        print(*(word for word in words if word), file=sys.stderr)
        if error.get("code") == "INTERNAL_ERROR":
            print(f"the work process's log tells what was raised: look for {id}", file=sys.stderr)
        return 1
    output = parts.executions.output(execution)
    if output is not None:
        print(output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False))
    for described in execution.result["files"] if out else []:
        ref = FileRef(**described)
        target = (out or Path()) / ref.name
        target.write_bytes(b"".join(parts.files.open(ref.key)))
        print(f"saved {target}", file=sys.stderr)
    return 0


def _directory(text: str) -> Path:
    """Where files will be saved; known to be usable before any work is done."""
    try:
        Path(text).mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise BadRequest(f"{text!r} cannot be used as a directory", field="--out") from fault
    return Path(text)


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadRequest("a label is K=V", field="--label", received=text)
    return name, value
