"""What a seeker's program has to load."""

from __future__ import annotations

import subprocess
import sys

import worker.seeker

HEAVY = ("web3", "eth_account", "x402", "redis", "flask", "rq", "gevent")


def test_the_seeker_needs_no_server_and_no_chain_library() -> None:
    """A client is small: neither store, web server, chain library nor the official payment package."""
    code = f"import sys, worker.seeker; print([m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_public_face_is_complete() -> None:
    """Everything named is there, in order."""
    assert worker.seeker.__all__ == sorted(worker.seeker.__all__, key=str)
    for name in worker.seeker.__all__:
        assert hasattr(worker.seeker, name)
