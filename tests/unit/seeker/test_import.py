"""Imports of a seeker's program."""

from __future__ import annotations

import subprocess
import sys

import worker.seeker

HEAVY = ("web3", "eth_account", "x402", "redis", "flask", "rq", "gevent")


def test_seeker_imports_no_server_or_chain_library() -> None:
    """The client imports no store, web server, chain library or official payment package."""
    code = f"import sys, worker.seeker; print([m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_public_names_are_complete() -> None:
    """Every name in `__all__` exists, in sorted order."""
    assert worker.seeker.__all__ == sorted(worker.seeker.__all__, key=str)
    for name in worker.seeker.__all__:
        assert hasattr(worker.seeker, name)
