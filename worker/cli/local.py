"""`worker local`: everything a laptop needs, in one supervised tree."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    local = commands.add_parser(
        "local",
        help="run everything on this machine, with its own store",
        description="Store, chain with test dollars, facilitator, web and work in one tree. It ends with "
        "SIGTERM, with ^C, and with the shell or program that started it.",
    )
    local.add_argument("--port", type=int, help="where the web process listens (default: PORT, or 8000)")
    local.add_argument("--state", metavar="DIR", help="where store, files and keys are kept (default: var)")
    local.add_argument("--web", type=int, metavar="N", help="web processes (default: 1)")
    local.add_argument("--work", type=int, default=1, metavar="N", help="work trees (default: 1)")
    local.add_argument(
        "--prove", action="store_true", help="let a seeker hire it when it is up, then serve on"
    )
    local.add_argument("--once", action="store_true", help="let a seeker hire it when it is up, then end")
    local.set_defaults(handler=run_local)


def run_local(args: argparse.Namespace) -> int:
    from worker.local.tree import LocalTree

    environ = dict(os.environ)
    if args.port is not None:
        environ["PORT"] = str(args.port)
    if args.state is not None:
        environ["WORKER_STATE_DIR"] = args.state
    if args.web is not None:
        environ["WEB_CONCURRENCY"] = str(args.web)
    prove = _proof(environ, once=args.once) if args.prove or args.once else None
    # The proof's output is for people: log lines go to a file.
    tree = LocalTree(environ, work_trees=args.work)
    return tree.run(once=args.once, prove=prove, log_to_file=prove is not None)


def _proof(environ: Mapping[str, str], *, once: bool) -> Callable[[dict[str, Any]], int]:
    """Import what a hire needs while the tree starts its programs, not before."""

    def prove(facts: dict[str, Any]) -> int:
        from worker.local.demo import prove, what_next

        state = Path(environ.get("WORKER_STATE_DIR") or "var").resolve()
        status = prove(facts, state)
        if not status and not once:
            print("\n".join(what_next(facts, state)), flush=True)
        return status

    return prove
