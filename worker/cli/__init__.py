"""`worker ...`: one file per group of commands, each adding itself to the parser."""

from __future__ import annotations

import argparse
import importlib
import sys

from worker import __version__
from worker.errors import Problem
from worker.settings import BadStart

_GROUPS = ("local", "processes", "executions", "hire", "contract", "doctor", "policy", "money", "webhooks")
# What is started often and waited for loads its own group only: the others cost a third of a second.
_ALONE = {"local": "local", "work": "processes", "run": "executions"}


def main(argv: list[str] | None = None) -> int:
    """Runs a command; its exit code is the program's."""
    words = sys.argv[1:] if argv is None else argv
    args = _parser(words[0] if words else "").parse_args(words)
    try:
        code: int = args.handler(args)
        return code
    except BadStart as bad:
        print(bad.table(), file=sys.stderr)
        return 2
    except Problem as problem:
        _tell(problem)
        return 1
    except KeyboardInterrupt:
        return 130


def _tell(problem: Problem) -> None:
    """What is wrong, and with what; a stranger's words cannot move the terminal's cursor."""
    from worker.seeker.problems import particulars, plain

    for line in particulars(problem):
        print(line, file=sys.stderr)
    print(f"{problem.code}: {plain(problem.message, 2_000)}. {problem.advice}", file=sys.stderr)


def _parser(command: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="worker", description="A worker that is hired over HTTPS and paid in USDC."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (_ALONE[command],) if command in _ALONE else _GROUPS:
        importlib.import_module(f"worker.cli.{name}").add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
