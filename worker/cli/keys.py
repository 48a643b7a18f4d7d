"""`worker keys new`: generates a wallet key, a secret, a webhook key or a token, and says what it is for."""

from __future__ import annotations

import argparse
import base64
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.core.errors import BadRequest
from worker.core.local_secrets import new_wallet_key
from worker.core.values import address_of


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A kind of key: how it is generated, and what its owner must know."""

    help: str
    make: Callable[[], str]
    explain: Callable[[str], str]


def _webhook_key() -> str:
    return "whsk_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _about_wallet(key: str) -> str:
    return f"""\
wallet {address_of(key)}
For a worker: set WORKER_KEY. It signs contracts, receipts, fees and refunds, and the wallet is paid.
For a seeker: a file for `worker hire --key @FILE`, or SEEKER_KEY. Send it USDC on the network that you use.
No gas is needed: facilitators pay it.
Whoever has the key has the money, and nobody can restore it: keep a copy in a safe place."""


def _about_secret(key: str) -> str:
    return """\
Set SECRET_KEY, the same for every process. Contracts are stored under references made with it.
To replace it, name the other one in ACCEPTED_SECRET_KEYS meanwhile (docs/deploy.md, "Rotate keys"): else the
worker no longer knows contracts that were signed before."""


def _about_webhook(key: str) -> str:
    from worker.delivery.webhook_signatures import parse_private_key, public_key_text

    return f"""\
public key {public_key_text(parse_private_key(key))}
Set WEBHOOK_KEY. It signs webhooks (ed25519); without it a key is derived from WORKER_KEY.
The manifest publishes the public key: receivers need nothing else, and read it again after a change."""


def _about_token(key: str) -> str:
    return """\
For the operator: set KERNEL_TOKEN. As a bearer it opens the kernel API (/v0), /ready and /metrics.
For others the same kind of key: AGENT_KEYS=agent:NAME:KEY or runner:NAME:KEY:TOOL|TOOL, SWARM_KEYS=NAME:KEY.
Give each its own. To replace one: set the new one, restart the web processes, give it to its owner."""


KINDS = {
    "wallet": KeyKind(
        "a wallet's key: WORKER_KEY, or what a seeker pays with", new_wallet_key, _about_wallet
    ),
    "secret": KeyKind("SECRET_KEY", lambda: secrets.token_hex(32), _about_secret),
    "webhook": KeyKind("WEBHOOK_KEY, which signs webhooks", _webhook_key, _about_webhook),
    "token": KeyKind("KERNEL_TOKEN, AGENT_KEYS or SWARM_KEYS", lambda: secrets.token_hex(24), _about_token),
}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    keys = subparsers.add_parser("keys", help="make keys, secrets and tokens")
    commands = keys.add_subparsers(dest="keys_command", required=True, metavar="COMMAND")
    new = commands.add_parser(
        "new",
        help="create a key; standard output gets only the key, standard error how to use it",
        description="Kinds: " + "; ".join(f"{name}: {kind.help}" for name, kind in KINDS.items()) + ".",
    )
    new.add_argument("kind", choices=[*KINDS], metavar="|".join(KINDS), help="what it is for")
    new.add_argument("--out", metavar="FILE", help="write it to a new file that only you can read")
    new.set_defaults(handler=run_new)


def run_new(args: argparse.Namespace) -> int:
    kind = KINDS[args.kind]
    key = kind.make()
    if args.out:
        _write(key, Path(args.out))
        print(f"written to {args.out}, readable by you alone", file=sys.stderr)
    else:
        print(key)
        sys.stdout.flush()
    print(kind.explain(key), file=sys.stderr)
    return 0


def _write(key: str, path: Path) -> None:
    """Never overwrites a file: it could contain a key that controls money."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(key + "\n")
    except OSError as fault:
        raise BadRequest(
            f"{str(path)!r} cannot be written ({fault.strerror})",
            field="--out",
            expected="the name of a file that does not exist, in a directory that does",
            advice="The key was not saved. Choose another file.",
        ) from fault
