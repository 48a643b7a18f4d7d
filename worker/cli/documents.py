"""What commands take from files and write to them: documents, and keys that are never on a command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker.cli.inputs import read_document
from worker.errors import BadRequest
from worker.seeker.wallet import Wallet


def read_file(path: str, *, name: str) -> Any:
    """JSON in a file, or in standard input for `-`."""
    return read_document("-" if path == "-" else f"@{path}", name=name)


def write_document(document: Any, out: str | None) -> None:
    """To a file, or to standard output."""
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    if out is None or out == "-":
        sys.stdout.write(text)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise BadRequest(f"{out!r} cannot be written", field="--out") from fault


def wallet_of(key: str | None, environ: Mapping[str, str] = os.environ) -> Wallet:
    """The wallet of --key @FILE, else of SEEKER_KEY. Arguments can be read by everybody on the machine."""
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
        "no key to sign with", field="--key", advice="Give --key @FILE, or set SEEKER_KEY in the environment."
    )
