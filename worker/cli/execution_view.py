"""Shows an execution live, for `worker run` and `worker executions watch`.

The execution's output goes to standard output; progress and how to answer a wait go to standard error.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker.cli.target import state_option
from worker.cli.terminal import StatusLine, bar, printable
from worker.core.errors import Unavailable
from worker.core.states import Lane, State
from worker.engine.events import Event, Kind
from worker.engine.failure_causes import failure_causes
from worker.engine.record import Execution
from worker.files.store import FileRef
from worker.parts import Parts

_BAR = 30
_MOST_ARGUMENTS = 300


class ExecutionView:
    """Shows the events of one execution."""

    def __init__(self, parts: Parts, id: str, state_dir: str | None) -> None:
        self._parts = parts
        self._id = id
        self._state_option = state_option(state_dir)
        self._status = StatusLine(sys.stderr)
        self._began = False
        self._waiting_shown = False

    def follow(self, after: int = 0) -> None:
        """Shows everything until the end."""
        for batch in self._parts.executions.follow(self._id, after):
            for event in batch:
                self._show(event)
            if not batch and not self._began and not self._waiting_shown:
                self._waiting_shown = True
                self._explain_pending()
        self._status.clear()

    def _show(self, event: Event) -> None:
        data = event.data()
        match event.kind:
            case Kind.PROGRESS:
                self._status.move(bar(data["fraction"], printable(data["message"]), _BAR))
            case Kind.OUTPUT_CHUNK:
                self._status.clear()
                print(data["text"], end="", flush=True)
            case Kind.FILE_WRITTEN:
                self._status.line(f"file  {data['name']}  {data['size']} bytes  sha256:{data['sha256']}")
            case Kind.STEP_CREATED:
                self._status.line(f"step  {data['tool_id']}")
            case Kind.EXECUTION_STARTED | Kind.EXECUTION_RESET | Kind.EXECUTION_RESUMED:
                self._began = event.kind is not Kind.EXECUTION_RESET
                self._status.line(event.kind.split(".")[1])
            case Kind.EXECUTION_BLOCKED:
                for line in waiting_lines(self._id, data, self._state_option):
                    self._status.line(line)

    def _explain_pending(self) -> None:
        """Prints why nothing has happened for some seconds."""
        execution = self._parts.executions.get(self._id)
        if execution.state is not State.PENDING:
            return
        if execution.lane is Lane.REMOTE:
            if not self._parts.remote_store.present("agent", execution.agent):
                self._status.line(f"waits for an agent to connect as {execution.agent!r}")
                self._status.line('  how to connect one: docs/authors.md, "An agent that runs elsewhere"')
            else:
                self._status.line(f"waits until the connected {execution.agent!r} is free")
            return
        self._status.line("waits for a free work process")
        self._status.line("  see whether any runs: worker doctor; or end it: " + self._command("cancel"))

    def _command(self, action: str) -> str:
        return f"worker executions {action} {self._id}{self._state_option}"


def waiting_lines(id: str, blocked: dict[str, Any], state_option: str = "") -> Iterator[str]:
    """Prints what a blocked execution waits for and the commands that answer; takes the event's payload."""
    if blocked.get("reason") == "approval":
        arguments = json.dumps(blocked["arguments"], ensure_ascii=False) if "arguments" in blocked else ""
        shown = arguments if len(arguments) <= _MOST_ARGUMENTS else arguments[:_MOST_ARGUMENTS] + "..."
        step = f"--step {shlex.quote(str(blocked.get('ref', '')))}"
        yield printable(f"waits for approval of {blocked.get('tool_id')} {shown}".rstrip())
        yield f"  approve: worker executions approve {id} {step}{state_option}"
        yield f"  deny:    worker executions approve {id} {step} --deny{state_option}"
        return
    signal = str(blocked.get("ref", ""))
    yield printable(f"waits for the signal {signal!r}")
    yield printable(
        f"  answer:  worker executions signal {id} {shlex.quote(signal)} --payload JSON{state_option}"
    )


def finish(parts: Parts, id: str, out: Path | None, state_dir: str | None) -> int:
    """Prints the outcome, saves files to `out`, and returns the exit code."""
    execution = parts.executions.get(id)
    if not execution.state.terminal:
        raise Unavailable(
            f"the store was away; execution {id} is still {execution.state}",
            advice=f"Continue watching: worker executions watch {id}{state_option(state_dir)}",
        )
    seconds = (execution.ended - execution.created) / 1e6
    print(f"{execution.state} in {seconds:.2f} s", file=sys.stderr)
    if execution.state is not State.COMPLETED:
        return _failed(parts, execution, state_option(state_dir))
    output = parts.executions.output(execution)
    if output is not None:
        print(output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False))
    for described in execution.result["files"] if out else []:
        ref = FileRef(**described)
        target = (out or Path()) / ref.name
        target.write_bytes(b"".join(parts.files.open(ref.key)))
        print(f"saved {target}", file=sys.stderr)
    return 0


def _failed(parts: Parts, execution: Execution, target: str) -> int:
    error = execution.error
    words = (f"{error.get('code', 'CANCELLED')}:", error.get("error"), error.get("details"))
    print(*(word for word in words if word), file=sys.stderr)
    if error.get("code") == "INTERNAL_ERROR":
        print(f"see the work process's log: look for {execution.id}", file=sys.stderr)
    if failure_causes(parts.store.steps(execution.id)):
        print(f"where it failed: worker executions show {execution.id}{target}", file=sys.stderr)
    return 1
