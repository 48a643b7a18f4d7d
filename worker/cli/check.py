"""`worker check`: validates agents, configuration and policy without starting anything."""

from __future__ import annotations

import argparse
import difflib
import os

from worker.core.settings import Settings


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="name every mistake in the agents, worker.toml and the policy",
        description="Imports the agents' modules and reads config/worker.toml and the tool policy. "
        "Exit code 2 and one line for each mistake; nothing is started.",
    )
    check.add_argument("--quiet", action="store_true", help="say nothing when all is well")
    check.set_defaults(handler=run_check)


def run_check(args: argparse.Namespace) -> int:
    from worker.agents.loading import load_agents

    settings = Settings.load(os.environ)
    loaded = load_agents(settings)
    if args.quiet:
        return 0
    names = sorted(name for name in loaded.capabilities if not name.startswith("_"))
    print(f"{len(names)} {'agent' if len(names) == 1 else 'agents'}: {', '.join(names)}")
    for name in loaded.unused:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"note: {settings.worker_config} [capability.{name}] changes nothing: no such agent{hint}")
    return 0
