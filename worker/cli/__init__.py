"""`worker ...`: one file per group of commands, each adding itself to the parser."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from typing import Any, NoReturn

from worker.core.errors import BadRequest, Conflict, NotFound, Problem, Unavailable
from worker.core.settings import BadStart
from worker.core.version import __version__

_GROUPS = (
    "init",
    "dev",
    "check",
    "local",
    "processes",
    "run",
    "executions",
    "agents",
    "hire",
    "contract",
    "doctor",
    "policy",
    "money",
    "webhooks",
    "evidence",
    "listing",
    "keys",
    "completion",
)
# Commands that are started often and waited for load only their own group: the rest cost a third of a second.
_ALONE = {
    "local": "local",
    "dev": "dev",
    "work": "processes",
    "web": "processes",
    "run": "run",
    "executions": "executions",
    "check": "check",
}

# Commands that start a worker; the others act on one.
_STARTS = ("local", "dev", "work", "web", "check")

_ADVICE: dict[type[Problem], str] = {
    BadRequest: "See `worker {command} --help`.",
    NotFound: "Check the id; `worker executions list` shows them all.",
    Conflict: "Check its state: `worker {show} EXECUTION`.",
    Unavailable: "Try again in a moment; `worker doctor` says what is down.",
    Problem: "See the log; `worker doctor` checks the worker.",
}


class Parser(argparse.ArgumentParser):
    """After a usage error, suggests the closest command and where to find help."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), 1) if wrong else []
        guess = f" Did you mean {near[0]}?" if near else ""
        self.exit(2, f"{self.prog}: {message}.{guess}\nSee: {self.prog} --help\n")


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    args = parser_of(words[0] if words else "").parse_args(words)
    try:
        code: int = args.handler(args)
        return code
    except BadStart as bad:
        subject = "The worker cannot start" if args.command in _STARTS else "The command cannot run"
        print(bad.table(subject), file=sys.stderr)
        return 2
    except Problem as problem:
        _tell(problem, args.command)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        found = _of_the_store(error)
        if found is None:
            raise
        _tell(found, args.command)
        return 1


def _of_the_store(error: Exception) -> Problem | None:
    """The message for a store client error; None for other errors."""
    redis: Any = sys.modules.get("redis")
    if redis is None or not isinstance(error, redis.RedisError):
        return None
    from worker.store.client import unavailable
    from worker.store.outage import note

    away = unavailable(error)
    if away is None:
        note(error, "command")
        return Problem("the store refused a command", advice="This is a bug: report the log lines above.")
    away.advice = "Is the store up? Check REDIS_URL or --state DIR; `worker doctor` says what is wrong."
    return away


def _tell(problem: Problem, command: str) -> None:
    """Print what is wrong, and with what; untrusted text cannot move the terminal's cursor."""
    from worker.seeker.problems import particulars, plain

    for line in particulars(problem):
        print(line, file=sys.stderr)
    print(f"{problem.code}: {plain(problem.message, 2_000)}. {_advice(problem, command)}", file=sys.stderr)


def _advice(problem: Problem, command: str) -> str:
    """What to do next. Translates general advice about requests into commands."""
    for kind, advice in _ADVICE.items():
        if isinstance(problem, kind) and problem.advice == kind.advice:
            show = "money journal" if command == "money" else "executions show"
            return advice.format(command=command, show=show)
    return problem.advice


def parser_of(command: str = "") -> argparse.ArgumentParser:
    """The parser of all commands, or of just the named one if it can be loaded alone."""
    parser = Parser(prog="worker", description="A worker that is hired over HTTPS and paid in USDC.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in (_ALONE[command],) if command in _ALONE else _GROUPS:
        importlib.import_module(f"worker.cli.{name}").add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
