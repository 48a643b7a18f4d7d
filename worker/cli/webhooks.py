"""`worker webhooks`: list deliveries and failures, re-send one."""

from __future__ import annotations

import argparse
import os
from functools import partial

from worker.cli.target import add_command, settings_for
from worker.core.errors import NotFound
from worker.delivery.outbound import redact
from worker.delivery.outbox import Notice, NoticeHistory
from worker.delivery.webhooks import hooks_of
from worker.engine.events import iso
from worker.parts import Parts


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    webhooks = subparsers.add_parser("webhooks", help="list webhooks and their attempts, and resend them")
    commands = webhooks.add_subparsers(dest="webhooks_command", required=True, metavar="COMMAND")
    command = partial(add_command, commands)

    listing = command("list", run_list, "an execution's webhooks and every attempt to call them")
    listing.add_argument("execution", metavar="EXECUTION", help="its id, the task_id of hired work")
    resend = command("resend", run_resend, "send a webhook again, whatever its outcome")
    resend.add_argument("execution", metavar="EXECUTION", help="its id, the task_id of hired work")
    resend.add_argument("kind", metavar="KIND", help="completed, failed or partial-N, as `list` shows it")
    resend.add_argument("hook", metavar="HOOK", type=int, help="the number that `list` shows")
    command("hosts", run_hosts, "hosts that fail now, and since when")


def run_list(args: argparse.Namespace) -> int:
    parts = Parts(settings_for(args.state, os.environ), "cli")
    hooks = hooks_of(parts.executions.get(args.execution))
    if not hooks:
        print("this execution has no webhooks")
    for number, hook in enumerate(hooks):
        print(f"webhook {number}: {redact(hook.url)}")
    for each in parts.outbox.journal(args.execution):
        print(f"{each.notice.kind} to webhook {each.notice.hook}: {_standing(each)}")
        for line in each.lines:
            print(f"  {iso(line.at)}  {line.result}")
    return 0


def run_resend(args: argparse.Namespace) -> int:
    parts = Parts(settings_for(args.state, os.environ), "cli")
    parts.executions.get(args.execution)
    if not parts.outbox.resend(Notice(args.execution, args.kind, args.hook)):
        raise NotFound(
            f"there is no notice {args.kind!r} for webhook {args.hook}; see `worker webhooks list`"
        )
    print("queued for delivery")
    return 0


def run_hosts(args: argparse.Namespace) -> int:
    rows = Parts(settings_for(args.state, os.environ), "cli").outbox.failing()
    for row in rows:
        print(f"{row.host}  {row.failures} failed since {iso(row.since)}, last {iso(row.last)}")
    if not rows:
        print("no host fails")
    return 0


def _standing(each: NoticeHistory) -> str:
    tried = f"{each.attempts} attempt{'' if each.attempts == 1 else 's'}"
    if each.due is None:
        return f"{tried}, done" if each.lines else "not sent yet"
    return f"{tried}, next at {iso(each.due)}"
