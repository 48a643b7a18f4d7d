"""`worker agents`: what this worker offers, where it runs and what it costs."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from worker.capabilities.catalog import describe
from worker.capabilities.declare import Capability
from worker.cli.target import add_command, parts_of, state_option
from worker.cli.terminal import print_json, printable, table, terminal_width
from worker.core.amounts import to_atomic
from worker.core.errors import NotFound
from worker.parts import Parts


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    agents = add_command(
        subparsers, "agents", run_agents, "list what is offered, where it runs and what it costs"
    )
    agents.add_argument(
        "agent", nargs="?", metavar="AGENT", help="show one capability, with schemas and examples"
    )
    agents.add_argument("--json", action="store_true", help="for other programs")


def run_agents(args: argparse.Namespace) -> int:
    parts = parts_of(args)
    offered = {name: each for name, each in sorted(parts.catalog.all().items()) if not name.startswith("_")}
    if args.agent and args.agent not in offered:
        names = ", ".join(offered) or "nothing: is a work process running?"
        raise NotFound(
            f"no capability is called {args.agent!r}; on offer: {names}",
            advice="Name one that is offered, or see WORKER_AGENTS.",
        )
    shown = [offered[args.agent]] if args.agent else [*offered.values()]
    if args.json:
        print_json([{**describe(each), "connected": _connected(parts, each)} for each in shown])
    elif args.agent:
        print("\n".join(_details(parts, shown[0], args)))
    elif shown:
        rows = [_row(parts, each) for each in shown]
        header = ("agent", "price", "runs", "swarm", "description")
        print("\n".join(table(header, rows, right=("price",), width=terminal_width(sys.stdout))))
    else:
        print("nothing is offered: is a work process running? `worker doctor` tells", file=sys.stderr)
    return 0


def _connected(parts: Parts, capability: Capability) -> bool | None:
    """Whether a remote agent is connected; None for one that runs here."""
    return parts.remote_store.present("agent", capability.name) if capability.remote else None


def _row(parts: Parts, capability: Capability) -> tuple[str, ...]:
    price = capability.price if to_atomic(capability.price) else "not sold"
    swarm = ",".join(capability.task_types) or "yes" if capability.swarm else ""
    return capability.name, price, _place(parts, capability), swarm, capability.description


def _place(parts: Parts, capability: Capability) -> str:
    connected = _connected(parts, capability)
    if connected is None:
        return "here, at once" if capability.inline else "here, queued"
    return "elsewhere, connected" if connected else "elsewhere, NOT connected"


def _details(parts: Parts, capability: Capability, args: argparse.Namespace) -> Iterator[str]:
    described = describe(capability) | {"runs": _place(parts, capability)}
    for name, value in described.items():
        if value not in (None, "", [], {}, (), False):
            yield printable(f"{name + ':':16} {_text(value)}")
    example = json.dumps({} if capability.example_input is None else capability.example_input)
    yield ""
    yield f"run it:  worker run {capability.name} --input {shlex.quote(example)}{state_option(args.state)}"
    if to_atomic(capability.price):
        url = parts.settings.public_url
        yield f"hire it: worker hire {url} {capability.name} --input {shlex.quote(example)} --key @FILE"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
