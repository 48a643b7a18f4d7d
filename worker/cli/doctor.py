"""`worker doctor`: checks whether this deployment can take payments.

A gate for releases: its exit code distinguishes wrong, unreachable and unknown. Shows rejected settings too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from worker.cli.doctor_code import code
from worker.cli.doctor_results import REFUSED, CheckResult, exit_code
from worker.cli.doctor_services import files, money
from worker.cli.doctor_settings import surroundings
from worker.cli.doctor_store import store
from worker.cli.target import add_state, settings_with_key
from worker.core.logs import configure
from worker.core.settings import BadStart, Settings

_EPILOG = """exit codes:
  0  fit to take payments (warnings are no obstacle)
  1  wrong: what is found must be changed
  2  wrong: the settings are refused, the worker would not start
  3  a service does not answer now; --allow-unreachable lets a release pass, for instance to repair it
  4  it cannot be known: a hosted store hides its configuration; --allow-unknown lets a release pass"""


def doctor(
    settings: Settings, environ: Mapping[str, str] | None = None, *, loaded: bool = False
) -> list[CheckResult]:
    """Run all checks on the deployment that these settings describe; `loaded`: not of the agents' code."""
    found = [*surroundings(settings, environ or {}), *(() if loaded else code(settings))]
    if settings.worker_key is not None:
        found += money(settings)
    url = settings.redis_url or _running_store(settings)
    if url is None:
        expected = "REDIS_URL, or `worker local`, which brings a store"
        return [*found, CheckResult("store", "warn", "none is configured and none runs", expected)]
    return [*found, files(settings), *store(replace(settings, redis_url=url))]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `doctor`; it sets `handler`: arguments in, exit code out."""
    parser = commands.add_parser(
        "doctor",
        help="check settings, agents, store, facilitator, node and files",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _options(parser)
    parser.set_defaults(handler=lambda given: run(given, os.environ, sys.stdout))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--allow-unreachable", action="store_true", help="pass while a service is away")
    parser.add_argument(
        "--allow-unknown", action="store_true", help="pass where a hosted store hides something"
    )
    add_state(parser)


def main(args: Sequence[str], environ: Mapping[str, str] = os.environ, out: TextIO | None = None) -> int:
    """Print what `doctor` finds; the exit codes are those of `worker doctor --help`."""
    parser = argparse.ArgumentParser(prog="worker doctor")
    _options(parser)
    return run(parser.parse_args(args), environ, out or sys.stdout)


def run(options: argparse.Namespace, environ: Mapping[str, str], output: TextIO) -> int:
    """With `--state`, check that `worker local`, including its chain and facilitator."""
    try:
        settings = settings_with_key(options.state, environ) if options.state else Settings.load(environ)
        configure(settings)  # standard output is for the findings only
        results = doctor(settings, environ)
        status = exit_code(results, unreachable=options.allow_unreachable, unknown=options.allow_unknown)
    except BadStart as bad:
        results = [CheckResult(each.name, "wrong", each.found, each.expected) for each in bad.problems]
        results += [each for each in surroundings(None, environ) if each.level != "ok"]
        status = REFUSED
    if options.json:
        shown = {"ok": status == 0, "exit": status, "findings": [asdict(each) for each in results]}
        print(json.dumps(shown), file=output)
    else:
        _print_table(results, output)
    return status


def _print_table(results: Sequence[CheckResult], output: TextIO) -> None:
    wide = max(len(each.name) for each in results)
    for each in results:
        more = "" if each.level == "ok" else f"; expected: {each.expected}"
        print(f"{each.level:<11}  {each.name:<{wide}}  {each.found}{more}", file=output)


def _running_store(settings: Settings) -> str | None:
    """The embedded store of a `worker local` that runs on this state directory."""
    try:
        facts = json.loads((Path(settings.worker_state_dir) / "local.json").read_text())
        return str(facts["redis"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
