"""`worker policy`: read a tool policy without starting, and evaluate it for a call.

`check` names every error with its line. `test` says which rule decides a call and why each rule tried
before it did not match; it counts no rate limit and calls no tool.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from worker.policy.file import PolicyInvalid, policy_for, read
from worker.policy.judge import Decision, Explanation, Policy, PolicyCall, PolicyRule, explain
from worker.policy.terms import EPOCH


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `policy` and its two commands. Each sets `handler`: arguments in, exit code out."""
    policy = subparsers.add_parser("policy", help="check a tool policy, or test a call against it")
    commands = policy.add_subparsers(dest="policy_command", required=True, metavar="check | test")

    checking = commands.add_parser("check", help="list all errors of a policy file or directory")
    _add_path(checking)
    checking.set_defaults(handler=run_check)

    testing = commands.add_parser("test", help="show which rule decides a call, and why")
    _add_path(testing)
    testing.add_argument("--agent", required=True, metavar="A", help="the agent's id")
    testing.add_argument("--tool", required=True, metavar="T", help="the tool's id")
    testing.add_argument("--arguments", type=_json, metavar="JSON", help="the tool's arguments, an object")
    testing.add_argument(
        "--label",
        type=_label,
        action="append",
        default=[],
        metavar="K=V",
        help="of the execution; may be repeated",
    )
    testing.add_argument(
        "--steps", type=_count, default=0, metavar="N", help="steps the execution has so far"
    )
    testing.add_argument("--age-ms", type=_count, default=0, metavar="N", help="the execution's age")
    testing.add_argument(
        "--at", type=_moment, metavar="ISO", help="when; UTC without an offset (default: now)"
    )
    testing.set_defaults(handler=run_test)


def _add_path(parser: argparse.ArgumentParser) -> None:
    """Add the path to both commands: the given policy, or the one the worker would start with."""
    helps = "a YAML file, or a directory of them (default: the setting POLICY)"
    parser.add_argument("path", metavar="PATH", nargs="?", help=helps)
    parser.add_argument("--policy", metavar="PATH", help="the same, by name")


def _path(args: argparse.Namespace) -> str:
    return args.path or args.policy or os.environ.get("POLICY", "").strip()


def run_check(args: argparse.Namespace) -> int:
    """0 when the policy can be used, 1 when it has errors. Notes are printed but are harmless."""
    path = _path(args)
    if not path:
        _print_lines(["error: no policy is named: give PATH, or set POLICY"], error=True)
        return 1
    reading = read(path)
    _print_lines(f"note: {note}" for note in reading.notes)
    if reading.errors:
        _print_lines((f"error: {error}" for error in reading.errors), error=True)
        return 1
    print(f"ok: {_count_rules(reading.policy)} rules in {len(reading.files)} file(s)")
    return 0


def run_test(args: argparse.Namespace) -> int:
    """0 when the policy gave a decision, whatever it is; 1 when the policy has errors."""
    path = _path(args)
    production = os.environ.get("WORKER_ENV", "").strip().lower() in ("staging", "production")
    try:
        policy = policy_for(path, production=production)
    except PolicyInvalid as problem:
        _print_lines((f"error: {finding}" for finding in problem.findings), error=True)
        return 1
    at = args.at or datetime.now(UTC)
    call = PolicyCall(
        agent_id=args.agent,
        tool_id=args.tool,
        arguments=args.arguments,
        labels=dict(args.label),
        step_count=args.steps,
        age_ms=args.age_ms,
        now_us=(at - EPOCH) // timedelta(microseconds=1),
    )
    print(f"policy: {path or 'none is set'}")
    print(f"call: {call.agent_id} -> {call.tool_id} at {at.isoformat(timespec='seconds')}")
    _print_lines(_explained(explain(policy, call)))
    return 0


def _explained(found: Explanation) -> Iterable[str]:
    for rule, reason in found.passed_over:
        yield f"  {_place(rule)}: no, {reason}"
    if found.matched:
        yield f"  {_place(found.matched)}: matches"
    if found.not_reached:
        yield f"  {found.not_reached} later rule(s) not reached"
    yield from _decided(found.decision)


def _place(rule: PolicyRule) -> str:
    return f"{rule.priority} {rule.id} ({rule.file}:{rule.line})"


def _decided(decision: Decision) -> Iterable[str]:
    yield f"decision: {decision.kind} (rule: {decision.rule_id})"
    if decision.reason:
        yield f"reason: {decision.reason}"
    if decision.timeout_ms is not None:
        yield f"timeout: {decision.timeout_ms} ms"
    if limit := decision.rate_limit:
        yield f"rate limit: max {limit.max} per {limit.window}, counted in a running worker only"
    if decision.refusal:
        yield f"the agent reads: {decision.refusal}"


def _count_rules(policy: Policy) -> int:
    """Rules as written: one of `_global.yaml` counts once, though it is merged into every agent's."""
    sets = [*policy.agents.values(), *([policy.others] if policy.others else [])]
    return len({(rule.file, rule.line) for rules in sets for rule in rules.rules})


def _print_lines(lines: Iterable[str], *, error: bool = False) -> None:
    for line in lines:
        print(line, file=sys.stderr if error else sys.stdout)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError("not JSON") from None


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("a label is written name=value")
    return name, value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise argparse.ArgumentTypeError("a whole number from 0")
    return int(text)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError("a time is written like 2026-03-02T09:30:00+01:00") from None
