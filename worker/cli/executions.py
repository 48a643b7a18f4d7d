"""`worker executions`: list, show, watch, cancel, signal and approve executions from all doors."""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial

from worker.cli.execution_view import ExecutionView, finish, waiting_lines
from worker.cli.executions_show import show_execution, summary
from worker.cli.inputs import read_document
from worker.cli.run import directory, label
from worker.cli.target import add_command, parts_of, state_option
from worker.cli.terminal import print_json, table, terminal_width
from worker.core.errors import BadRequest, Conflict
from worker.core.states import State
from worker.engine.listing import Filter
from worker.engine.record import Execution
from worker.remote.signals import STEP_APPROVE
from worker.remote.waits import SIGNAL, open_waits

_MOST_LISTED = 200


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    group = subparsers.add_parser("executions", help="list, show, watch and steer executions")
    commands = group.add_subparsers(dest="executions_command", required=True, metavar="COMMAND")
    command = partial(add_command, commands)

    listing = command("list", run_list, "the newest first")
    listing.add_argument("--status", choices=[*State], help="only those in this state")
    listing.add_argument("--agent", default="", metavar="NAME", help="only those of this capability")
    listing.add_argument(
        "--door", default="", help="only those that came by this door: hire, kernel, swarm, cli"
    )
    listing.add_argument(
        "--label", action="append", default=[], metavar="K=V", help="only those with it; may be repeated"
    )
    listing.add_argument("--limit", type=int, default=20, metavar="N", help="how many (default: 20)")
    listing.add_argument("--cursor", default="", help="where to continue, as the last page ended")

    show = command("show", show_execution, "show one execution: its events, and why it failed or waits")
    watch = command("watch", run_watch, "follow one execution to its end; exit code 0 if it completed")
    watch.add_argument("--after", type=int, default=0, metavar="N", help="skip the first N events")
    watch.add_argument("--out", metavar="DIR", help="where delivered files are saved")
    cancel = command("cancel", run_cancel, "cancel an execution; its payment is refunded")
    signal = command("signal", run_signal, "answer a wait: send a signal with a payload")
    approve = command("approve", run_approve, "allow or deny a tool call that waits for approval")
    for each in (show, watch, cancel, signal, approve):
        each.add_argument("execution", metavar="EXECUTION", help="its id, the task_id of hired work")
    for each in (listing, show, watch):
        each.add_argument("--json", action="store_true", help="for other programs")

    signal.add_argument("signal", metavar="SIGNAL", help="the type of the signal that it waits for")
    signal.add_argument("--payload", default="null", help="JSON, or @FILE, or - for standard input")
    approve.add_argument(
        "--step", default="", metavar="ID", help="which step (default: the only one that waits)"
    )
    approve.add_argument("--deny", action="store_true", help="do not allow it")
    approve.add_argument("--reason", default="", help="what the agent is told about a denial")


def run_list(args: argparse.Namespace) -> int:
    if not 1 <= args.limit <= _MOST_LISTED:
        raise BadRequest(
            "the limit is out of range",
            field="--limit",
            expected=f"1 to {_MOST_LISTED}",
            received=args.limit,
            advice="For more, continue with --cursor.",
        )
    labels = tuple(label(text) for text in args.label)
    wanted = Filter(state=args.status or "", agent=args.agent, door=args.door, labels=labels)
    page = parts_of(args).executions.page(wanted, cursor=args.cursor, limit=args.limit)
    if args.json:
        print_json(
            {"executions": [summary(each) for each in page.executions], "next_cursor": page.next_cursor}
        )
        return 0
    if page.executions:
        rows = [_row(each, time.time()) for each in page.executions]
        header = ("execution", "agent", "status", "door", "age", "progress")
        print("\n".join(table(header, rows, right=("age",), width=terminal_width(sys.stdout))))
    else:
        print("no executions" + (" match" if wanted != Filter() else " yet: worker run CAPABILITY makes one"))
    if page.next_cursor:
        print(f"more: add --cursor {page.next_cursor}", file=sys.stderr)
    return 0


def _row(execution: Execution, now: float) -> tuple[str, ...]:
    shown = execution.progress is not None and not execution.state.terminal
    progress = f"{execution.progress:.0%} {execution.message}" if shown else ""
    status = str(execution.state)
    if not execution.state.terminal and execution.phase not in ("working", "done"):
        status += f", {execution.phase}"
    return (
        execution.id,
        execution.agent,
        status,
        execution.door,
        _age(now - execution.created / 1e6),
        progress,
    )


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def run_watch(args: argparse.Namespace) -> int:
    out = directory(args.out) if args.out else None
    parts = parts_of(args)
    id = parts.executions.get(args.execution).id
    if not args.json:
        ExecutionView(parts, id, args.state).follow(args.after)
        return finish(parts, id, out, args.state)
    for batch in parts.executions.follow(id, args.after):
        for event in batch:
            print(json.dumps(event.shown(), ensure_ascii=False), flush=True)
    return 0 if parts.executions.get(id).state is State.COMPLETED else 1


def run_cancel(args: argparse.Namespace) -> int:
    execution = parts_of(args).executions.cancel(args.execution, "cancelled by the operator")
    print(f"cancelled: {execution.id}")
    return 0


def run_signal(args: argparse.Namespace) -> int:
    payload = read_document(args.payload, name="--payload")
    parts = parts_of(args)
    id = parts.executions.get(args.execution).id
    waits = open_waits(parts.remote_store, id)
    parts.executions.signal(id, args.signal, payload)
    if any(wait.reason == SIGNAL and wait.ref == args.signal for wait in waits):
        print("answered: it goes on")
        return 0
    print("stored until it waits for this signal", file=sys.stderr)
    for wait in waits:
        print(*waiting_lines(id, wait.payload(), state_option(args.state)), sep="\n", file=sys.stderr)
    return 0


def run_approve(args: argparse.Namespace) -> int:
    parts = parts_of(args)
    execution = parts.executions.get(args.execution)
    waits = open_waits(parts.remote_store, execution.id)
    steps = {wait.ref: wait.tool for wait in waits if wait.tool}
    show = f"worker executions show {execution.id}{state_option(args.state)}"
    if not steps:
        raise Conflict(f"no step waits for approval; it is {execution.state}", advice=f"See {show}.")
    if args.step and args.step not in steps or not args.step and len(steps) > 1:
        raise BadRequest(
            "several steps wait for approval" if not args.step else "this step does not wait for approval",
            field="--step",
            expected=[f"{step} ({tool})" for step, tool in steps.items()],
            received=args.step or None,
            advice="Name one of them with --step.",
        )
    step = args.step or next(iter(steps))
    decision = {
        "step_id": step,
        "approved": not args.deny,
        **({"reason": args.reason} if args.reason else {}),
    }
    parts.executions.signal(execution.id, STEP_APPROVE, decision)
    print(f"{'denied' if args.deny else 'approved'}: {steps[step]}")
    return 0
