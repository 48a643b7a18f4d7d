"""What `worker init` pins when the package runs from a checkout and is not installed."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from worker.cli import package_pin
from worker.core.errors import Problem


class Pip:
    """Records the command that builds the wheel, and builds one or fails."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.command: list[str] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.command = command
        if not self.error:
            Path(command[command.index("-w") + 1], "hire_worker-0-py3-none-any.whl").write_bytes(b"wheel")
        return subprocess.CompletedProcess(command, bool(self.error), "", self.error)


@pytest.fixture(name="uninstalled", autouse=True)
def _uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(package_pin, "distribution", absent)


@pytest.mark.parametrize(("setuptools", "isolated"), [("65.5.0", True), ("80.9.0", False)])
def test_wheel_of_the_checkout_is_pinned(
    setuptools: str, isolated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setuptools too old for the project's pyproject.toml is not used: the build is isolated."""
    pip = Pip()
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(package_pin, "version", lambda name: setuptools)
    assert package_pin.installed_package(tmp_path) == "./vendor/hire_worker-0-py3-none-any.whl"
    assert (tmp_path / "vendor/hire_worker-0-py3-none-any.whl").is_file()
    assert ("--no-build-isolation" not in pip.command) == isolated


def test_failed_build_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains pip's last line."""
    monkeypatch.setattr(subprocess, "run", Pip("much text\nERROR: no network\n"))
    with pytest.raises(Problem, match="ERROR: no network"):
        package_pin.installed_package(tmp_path)
