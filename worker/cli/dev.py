"""`worker dev`: a local worker that reloads when a file changes."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from pathlib import Path
from typing import Any

# For development: replace old code at once, and allow breakpoints in tools to wait.
_DEFAULTS = {"HANDBACK_GRACE": "1s", "STEP_TIMEOUT": "30m", "PYTHONDONTWRITEBYTECODE": "1"}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dev = commands.add_parser(
        "dev",
        help="run everything on this machine and reload the agents when a file changes",
        description="Like `worker local`. Store, chain and wallet live on while agents, worker.toml and "
        "policy are reloaded; prints are shown under the execution's id, and breakpoint() stops for you.",
    )
    dev.add_argument("--port", type=int, help="where the web process listens (default: PORT, or 8000)")
    dev.add_argument("--state", metavar="DIR", help="where store, files and keys are kept (default: var)")
    dev.set_defaults(handler=run_dev)


def run_dev(args: argparse.Namespace) -> int:
    from worker.local.tree import RELOADING, LocalTree

    environ = {**_DEFAULTS, **os.environ}
    if args.port is not None:
        environ["PORT"] = str(args.port)
    if args.state is not None:
        environ["WORKER_STATE_DIR"] = args.state
    state = Path(environ.get("WORKER_STATE_DIR") or "var").resolve()
    return LocalTree(environ, work_command=RELOADING).run(prove=lambda facts: _greet(facts, state))


def _greet(facts: dict[str, Any], state: Path) -> int:
    """Says how to try the agents; hires nobody."""
    from worker.local.demo import command_name
    from worker.seeker.http import HttpTransport
    from worker.seeker.worker_client import WorkerClient

    listed = WorkerClient(HttpTransport(), facts["url"]).manifest()["capabilities"]
    sold = {each["name"]: each for each in listed}
    print(f"\n{facts['url']} sells {', '.join(sold) or 'nothing'}; saved changes are loaded, ^C stops it.")
    name = next((name for name, each in sold.items() if "example_input" in each), None)
    if name is not None:
        worker, where = command_name(), shlex.quote(str(state))
        example = shlex.quote(json.dumps(sold[name]["example_input"]))
        key, price = shlex.quote(f"@{state / 'local.json'}"), sold[name]["pricing"]["amount"]
        print("From another shell:\n")
        print(f"  {worker} run {name} --input {example} --state {where}")
        print(
            f"  {worker} hire {facts['url']} {name} --input {example} --key {key} --max {price}\n", flush=True
        )
    return 0
