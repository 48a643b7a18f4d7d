"""The worker a command acts on: from the environment, or a `worker local` by its state directory."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from worker.core.local_secrets import local_secrets
from worker.core.settings import BadSetting, BadStart, Settings

if TYPE_CHECKING:
    from worker.parts import Parts


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add `--state`, which selects the worker."""
    parser.add_argument("--state", metavar="DIR", help="state directory of a running `worker local`")


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    handler: Callable[[argparse.Namespace], int],
    help: str,
) -> argparse.ArgumentParser:
    """Add a command that looks into a worker's store."""
    command = commands.add_parser(name, help=help)
    add_state(command)
    command.set_defaults(handler=handler)
    return command


def state_option(state: str | None) -> str:
    """The option that selects the same worker, for a command shown to a person."""
    return f" --state {shlex.quote(state)}" if state else ""


def parts_of(args: argparse.Namespace) -> Parts:
    """The parts of the worker selected by the arguments; logs go to standard error."""
    from worker.core.logs import configure
    from worker.parts import Parts

    settings = settings_for(args.state, os.environ)
    configure(settings)
    return Parts(settings, "cli")


def settings_for(state: str | None, environ: Mapping[str, str]) -> Settings:
    """The environment's settings; if they name no store, those of the running `worker local`."""
    if environ.get("REDIS_URL") and state is None:
        return Settings.load(environ)
    directory = Path(state or environ.get("WORKER_STATE_DIR") or "var")
    try:
        about = json.loads((directory / "local.json").read_text())
        local = {
            "REDIS_URL": about["redis"],
            "WORKER_STATE_DIR": str(directory),
            "PUBLIC_URL": about["url"],
            "KERNEL_TOKEN": about["kernel_token"],
        }
        if not all(isinstance(value, str) for value in local.values()):
            raise TypeError("not what `worker local` writes")
    except (OSError, ValueError, LookupError, TypeError) as missing:
        expected = "the store's address, or --state with the directory of a running `worker local`"
        raise BadStart([BadSetting("REDIS_URL", "nothing", expected)]) from missing
    return Settings.load({**environ, **local})


def settings_with_key(state: str | None, environ: Mapping[str, str]) -> Settings:
    """The same for commands about money: with the local worker's own key, chain and facilitator."""
    if environ.get("REDIS_URL") and state is None:
        return Settings.load(environ)
    directory = Path(state or environ.get("WORKER_STATE_DIR") or "var")
    settings_for(state, environ)  # raises if no worker runs there
    about = json.loads((directory / "local.json").read_text())
    names = {
        "NETWORK": "network",
        "RPC_URL": "rpc",
        "FACILITATOR_URL": "facilitator",
        "WORKER_WALLET": "worker_wallet",
    }
    found = {setting: str(about[name]) for setting, name in names.items() if about.get(name)}
    return settings_for(state, {**local_secrets(directory), **environ, **found})
