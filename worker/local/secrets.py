"""Secrets that a laptop needs and nobody wants to invent: made once, kept under the state directory.

The caller puts them under what the environment says: `Settings.load({**local_secrets(d), **environ})`.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

from worker.settings import BadSetting, BadStart
from worker.values import Unfit, private_key

FILE = "secrets.json"


def local_secrets(state_dir: str | os.PathLike[str]) -> dict[str, str]:
    """WORKER_KEY, SECRET_KEY, KERNEL_TOKEN and SWARM_KEYS by setting name, and the keys of the local chain:
    LOCAL_SEEKER_KEY pays, LOCAL_GAS_KEY carries the facilitator."""
    directory = Path(state_dir)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    with (directory / f".{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = _read(path)
        fresh = {name: value for name, value in _made().items() if name not in kept}
        if fresh:
            kept |= fresh
            _write(path, kept)
    return kept


def _made() -> dict[str, str]:
    return {
        "WORKER_KEY": _new_key(),
        "SECRET_KEY": secrets.token_hex(32),
        "KERNEL_TOKEN": secrets.token_hex(24),
        "SWARM_KEYS": "swarm:" + secrets.token_hex(16),
        "LOCAL_SEEKER_KEY": _new_key(),
        "LOCAL_GAS_KEY": _new_key(),
    }


def _new_key() -> str:
    while True:
        try:
            return private_key(secrets.token_hex(32))
        except Unfit:  # above the curve's order: once in 2**128
            continue


def _read(path: Path) -> dict[str, str]:
    try:
        kept = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as broken:
        raise _unreadable(path) from broken
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise _unreadable(path)
    return {name: kept[name] for name in kept if name in _made()}


def _unreadable(path: Path) -> BadStart:
    return BadStart([BadSetting(str(path), "a file that cannot be read", "what the first start wrote there")])


def _write(path: Path, kept: dict[str, str]) -> None:
    """Whole or not at all, and for this user's eyes only."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(kept, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
