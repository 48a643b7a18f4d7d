"""`python -m bench [names...] [--json FILE] [--quick]`: measures, prints tables, says which goals are met.

What fails is reported and the others go on. In FILE the rows that are measured replace those of the same name
if both come from the same machine; the others stay, each with the time at which it was taken.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from bench import (
    answers,
    cores,
    followers,
    growth,
    hooks,
    kernel,
    latency,
    paid,
    queued,
    serving,
    slow,
    swarm,
    web,
)
from bench.report import save, table
from bench.rounds import Measurement
from bench.stand import Stand, stand


class Measure(Protocol):
    """One module of this package: runs its rounds on the stand; `quick` is one short round each."""

    def __call__(self, stand: Stand, *, quick: bool, told: Callable[[str], None]) -> Measurement: ...


MEASUREMENTS: dict[str, Measure] = {
    paid.NAME: paid.measure,
    cores.NAME: cores.measure,
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
# Measured for a decision (docs/decisions.md), only when it is named: no goal depends on it.
BY_NAME_ONLY = {serving.NAME}


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
    found = []
    for name in args.names or [name for name in MEASUREMENTS if name not in BY_NAME_ONLY]:
        found.append(_measured(name, args.quick))
        if args.json:  # at once: a run that is ended keeps what it has
            save(args.json, found[-1], quick=args.quick)
    failed = [each["name"] for each in found if "failed" in each]
    missed = [(each["name"], goal) for each in found for goal in each["goals"] if not goal["met"]]
    for name in failed:
        _tell(f"failed: {name}")
    for name, goal in missed:
        _tell(f"goal missed: {name}: {goal['goal']}: {goal['found']:g} ({goal['kind']} {goal['limit']:g})")
    # A quick run is too short to judge goals by.
    return 1 if failed or (missed and not args.quick) else 0


def _measured(name: str, quick: bool) -> dict[str, Any]:
    """One row of the report; if its measurement fails, the reason in place of figures."""
    _tell(f"{name} ...")
    began, load = time.time(), round(os.getloadavg()[0], 2)
    try:
        with stand() as at:
            measurement = MEASUREMENTS[name](at, quick=quick, told=_tell)
    except Exception as error:
        _tell(traceback.format_exc())
        shown: dict[str, Any] = {"name": name, "failed": f"{type(error).__name__}: {error}", "goals": []}
    else:
        print(table(measurement), end="\n\n", flush=True)
        shown = measurement.shown()
    taken_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
    return {**shown, "taken_at": taken_at, "seconds": round(time.time() - began), "load": load}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
