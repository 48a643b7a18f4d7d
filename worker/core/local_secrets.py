"""Generated secrets for a laptop: created once, stored under the state directory.

The environment overrides them: `Settings.load({**local_secrets(d), **environ})`.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from pathlib import Path

from worker.core.settings import BadSetting, BadStart
from worker.core.values import InvalidValue, private_key

FILE = "secrets.json"


def local_secrets(state_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Returns WORKER_KEY, SECRET_KEY, KERNEL_TOKEN and SWARM_KEYS by setting name, and the local chain's
    keys: LOCAL_SEEKER_KEY pays, LOCAL_GAS_KEY pays gas for the facilitator."""
    directory = Path(state_dir)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    with (directory / f".{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored = _read(path)
        fresh = {name: value for name, value in _generate().items() if name not in stored}
        if fresh:
            stored |= fresh
            _write(path, stored)
    return stored


def _generate() -> dict[str, str]:
    return {
        "WORKER_KEY": new_wallet_key(),
        "SECRET_KEY": secrets.token_hex(32),
        "KERNEL_TOKEN": secrets.token_hex(24),
        "SWARM_KEYS": "swarm:" + secrets.token_hex(16),
        "LOCAL_SEEKER_KEY": new_wallet_key(),
        "LOCAL_GAS_KEY": new_wallet_key(),
    }


def new_wallet_key() -> str:
    """Returns a random secp256k1 key in hex."""
    while True:
        try:
            return private_key(secrets.token_hex(32))
        except InvalidValue:  # above the curve's order: probability 2**-128
            continue


def _read(path: Path) -> dict[str, str]:
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as broken:
        raise _unreadable(path) from broken
    if not isinstance(stored, dict) or not all(isinstance(value, str) for value in stored.values()):
        raise _unreadable(path)
    return {name: stored[name] for name in stored if name in _generate()}


def _unreadable(path: Path) -> BadStart:
    return BadStart(
        [BadSetting(str(path), "a file that cannot be read", "the file that the first start wrote")]
    )


def _write(path: Path, values: dict[str, str]) -> None:
    """Writes the file atomically, readable by this user only."""
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
