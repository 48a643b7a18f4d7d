"""Documents and keys that commands read from and write to files; keys are never on a command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from worker.cli.inputs import read_document
from worker.core.errors import BadRequest
from worker.seeker.wallet import Wallet


def read_file(path: str, *, name: str) -> Any:
    """Read JSON from a file, or from standard input for `-`."""
    return read_document("-" if path == "-" else f"@{path}", name=name)


def write_document(document: Any, out: str | None) -> None:
    """Write to a file, or to standard output."""
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if out is None or out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise BadRequest(f"{out!r} cannot be written", field="--out") from fault


def wallet_of(key: str | None, environ: Mapping[str, str] = os.environ) -> Wallet:
    """The wallet of --key @FILE, else of SEEKER_KEY. Every user of the machine can read arguments."""
    if key is not None:
        if not key.startswith("@"):
            raise BadRequest(
                "a key is not given on the command line",
                field="--key",
                expected="@FILE, or SEEKER_KEY in the environment",
                advice="Put it into a file that only you can read, or into SEEKER_KEY.",
            )
        return Wallet.from_file(Path(key[1:]))
    if environ.get("SEEKER_KEY", "").strip():
        return Wallet(environ["SEEKER_KEY"])
    raise BadRequest(
        "no key to sign with",
        field="--key",
        advice="Give --key @FILE, or set SEEKER_KEY; `worker keys new wallet --out FILE` makes a key.",
    )


def make_room(directory: Path) -> None:
    """Refuse a directory that cannot be created or written to, before anything is signed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            pass
    except OSError as fault:
        raise BadRequest(
            f"{str(directory)!r} cannot be used for deliverables ({fault.strerror})",
            field="--out",
            expected="a writable directory",
            advice="Nothing was signed. Name another directory.",
        ) from fault
