"""`worker work` and `worker web`: the two processes of a deployment."""

from __future__ import annotations

import argparse
import io
import os
import sys
from dataclasses import asdict
from pathlib import Path

from worker.core.environment import forget
from worker.core.logs import configure
from worker.core.processes import web_command
from worker.core.settings import Settings

_CONFIG = "config/gunicorn.py"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    web = commands.add_parser(
        "web", help="answer requests: gunicorn, with config/gunicorn.py where there is one"
    )
    web.set_defaults(handler=run_web)
    work = commands.add_parser("work", help="do the work: warm processes and a clock")
    work.set_defaults(handler=run_work)


def run_web(args: argparse.Namespace) -> int:
    """Exec gunicorn, so that the parent process supervises gunicorn itself."""
    command = web_command()
    if Path(_CONFIG).exists():
        command[-1] = _CONFIG
    os.execv(command[0], command)


def run_work(args: argparse.Namespace) -> int:
    from worker.parts.work import WorkProcesses

    settings = Settings.load(os.environ)
    # Before author code is imported.
    forget([*settings.own_secrets(), "CDP_API_KEY_ID", "CDP_API_KEY_SECRET"])
    configure(settings)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An author's prints must not wait in a buffer that a killed process never flushes.
        sys.stdout.reconfigure(line_buffering=True)
    WorkProcesses(settings, _examine).run()
    return 0


def _examine(settings: Settings) -> list[dict[str, str]]:
    """The doctor's findings, from inside a work process, which has loaded the code already."""
    from worker.cli.doctor import doctor

    return [asdict(each) for each in doctor(settings, os.environ, loaded=True)]
