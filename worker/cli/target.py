"""Which worker a command means: the one of the environment, or a `worker local` by its state directory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from worker.local.secrets import local_secrets
from worker.settings import BadSetting, BadStart, Settings


def add_state(parser: argparse.ArgumentParser) -> None:
    """Lets a command be told by `--state` which worker it means."""
    parser.add_argument("--state", metavar="DIR", help="state directory of a running `worker local`")


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    handler: Callable[[argparse.Namespace], int],
    help: str,
) -> argparse.ArgumentParser:
    """A command of a group that looks into a worker's store."""
    made = commands.add_parser(name, help=help)
    add_state(made)
    made.set_defaults(handler=handler)
    return made


def settings_for(state: str | None, environ: Mapping[str, str]) -> Settings:
    """The environment's settings; without a store there, those of the `worker local` that runs."""
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
    settings_for(state, environ)  # says so when no worker runs there
    about = json.loads((directory / "local.json").read_text())
    names = {
        "NETWORK": "network",
        "RPC_URL": "rpc",
        "FACILITATOR_URL": "facilitator",
        "WORKER_WALLET": "worker_wallet",
    }
    told = {setting: str(about[name]) for setting, name in names.items() if about.get(name)}
    return settings_for(state, {**local_secrets(directory), **environ, **told})
