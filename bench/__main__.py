"""`python -m bench [names...] [--json FILE] [--quick]`: measures, prints tables, says which goals are met."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bench import answers, followers, growth, hooks, kernel, latency, paid, queued, serving, slow, swarm, web
from bench.report import report, table
from bench.rounds import Measurement
from bench.stand import Stand, stand


class Measure(Protocol):
    """One module of this package: runs its rounds on the stand; `quick` is one short round each."""

    def __call__(self, stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement: ...


MEASUREMENTS: dict[str, Measure] = {
    paid.NAME: paid.measure,
    answers.NAME: answers.measure,
    slow.NAME: slow.measure,
    growth.NAME: growth.measure,
    followers.NAME: followers.measure,
    hooks.NAME: hooks.measure,
    queued.NAME: queued.measure,
    latency.NAME: latency.measure,
    web.NAME: web.measure,
    serving.NAME: serving.measure,
    swarm.NAME: swarm.measure,
    kernel.NAME: kernel.measure,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description="What an execution costs.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; default: all"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="where the figures are written")
    parser.add_argument("--quick", action="store_true", help="one short round each: a check, not a figure")
    args = parser.parse_args(argv)
    unknown = set(args.names) - set(MEASUREMENTS)
    if unknown:
        parser.error(f"no measurement is called {', '.join(sorted(unknown))}")
    found = [_measured(name, args.quick) for name in args.names or MEASUREMENTS]
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report(found, quick=args.quick), indent=2) + "\n")
    missed = [goal for measurement in found for goal in measurement.goals if not goal.met]
    # A quick run is too short to judge goals by.
    return 1 if missed and not args.quick else 0


def _measured(name: str, quick: bool) -> Measurement:
    _tell(f"{name} ...")
    with stand() as at:
        measurement = MEASUREMENTS[name](at, quick=quick, told=_tell)
    print(table(measurement), end="\n\n", flush=True)
    return measurement


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
