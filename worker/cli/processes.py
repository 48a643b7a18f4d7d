"""`worker work`: the process that does the work. The other one, web, is gunicorn with config/gunicorn.py."""

from __future__ import annotations

import argparse
import io
import os
import sys

from worker.logs import configure
from worker.settings import Settings


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    work = commands.add_parser("work", help="do the work: warm processes and a clock")
    work.set_defaults(handler=run_work)


def run_work(args: argparse.Namespace) -> int:
    from worker.queue.work import Tree

    settings = Settings.load(os.environ)
    configure(settings)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What an author prints must not wait in a buffer that a killed process never empties.
        sys.stdout.reconfigure(line_buffering=True)
    Tree(settings).run()
    return 0
