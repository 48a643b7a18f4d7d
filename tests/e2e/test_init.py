"""`worker init`: from an empty directory to a paid hire of one's own agent, offline, from its own wheel."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from worker.core.settings import Settings
from worker.local.valkey import free_port

INSTALLED = Path(sys.executable).with_name("worker")


def shell(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a newcomer would: a new home, no settings, no package index."""
    ours = {*Settings.names(), "PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    home = cwd / "home"
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**kept, "HOME": str(home), "PIP_NO_INDEX": "1", **more},
        capture_output=True,
        text=True,
        timeout=300,
    )


def lend_dependencies(project: Path) -> None:
    """Creates an environment with all dependencies but not this package, as an index would provide it."""
    done = shell(sys.executable, "-m", "venv", ".venv", cwd=project)
    assert done.returncode == 0, done.stderr
    [lent] = [Path(folder) for folder in site.getsitepackages() if folder.startswith(sys.prefix)][:1]
    [target] = project.glob(".venv/lib/python3*/site-packages")
    for entry in lent.iterdir():
        ours = entry.name.startswith(("hire_worker", "__editable__"))
        if not ours and not (target / entry.name).exists():
            (target / entry.name).symlink_to(entry)


@pytest.fixture(name="shop", scope="module")
def _shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project made by `worker init shop` in an empty directory."""
    folder = tmp_path_factory.mktemp("init")
    done = shell(INSTALLED, "init", "shop", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "cd shop" in done.stdout
    lend_dependencies(folder / "shop")
    return folder / "shop"


def test_everything_a_deployment_needs_is_there(shop: Path) -> None:
    """Agent, test, settings, policy, processes and pins; the only copy of this package is a wheel."""
    for name in [
        "agents.py",
        "tests/test_agents.py",
        "config/worker.toml",
        "config/policy.yaml",
        "Procfile",
        "app.json",
        "Makefile",
        ".python-version",
        "requirements.txt",
        "requirements-dev.txt",
        "README.md",
        ".gitignore",
        ".env.example",
        "conftest.py",
        ".github/workflows/test.yml",
    ]:
        text = (shop / name).read_text()
        assert text.strip() and "{{" not in text, name
    [wheel] = (shop / "vendor").glob("*.whl")
    assert f"\n./vendor/{wheel.name}\n" in (shop / "requirements.txt").read_text()
    lines = (shop / "Procfile").read_text().splitlines()
    assert all(line.partition(": ")[2].startswith("python -m ") for line in lines)
    assert (shop / ".python-version").read_text() == f"{sys.version_info.major}.{sys.version_info.minor}\n"


def test_make_run_ends_in_a_paid_hire_of_its_own_agent(shop: Path) -> None:
    """`make run` installs the wheel, starts a complete worker and hires word-count for its price."""
    done = shell("make", "run", "ONCE=1", cwd=shop, PORT=str(free_port()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hires word-count" in done.stdout
    assert "the worker 0.02 test dollars" in done.stdout
    package = shell(".venv/bin/python", "-c", "import worker; print(worker.__file__)", cwd=shop).stdout
    assert package.startswith(str(shop)), "the project depends on the package that it installed"


def test_make_test_passes_and_notices_a_mistake(shop: Path) -> None:
    """The project's own tests include a paid hire; a wrong expectation and a wrong price both fail."""
    done = shell("make", "test", cwd=shop)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    agents = shop / "agents.py"
    written = agents.read_text()
    try:
        agents.write_text(written.replace('price="0.02"', 'price="0.03"'))
        failed = shell(".venv/bin/python", "-m", "pytest", "-k", "charged", cwd=shop)
        assert failed.returncode == 1 and "'0.03' == '0.02'" in failed.stdout
        agents.write_text(written.replace('price="0.02"', 'price="0,02"'))
        refused = shell("make", "test", cwd=shop)
        assert refused.returncode != 0
        assert "agents:19 word-count.price" in refused.stderr and "Traceback" not in refused.stderr
    finally:
        agents.write_text(written)


def test_the_pin_may_be_a_commit_or_a_wheel(tmp_path: Path) -> None:
    """Refuse an unpinned source, a directory in use and an invalid name."""
    commit = "git+https://git.example/worker.git@" + "a" * 40
    done = shell(INSTALLED, "init", "one", "--package", commit, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"\nhire-worker @ {commit}\n" in (tmp_path / "one/requirements.txt").read_text()
    for words, field in (
        (("two", "--package", "git+https://git.example/worker.git@main"), "--package"),
        (("two", "--package", "hire-worker"), "--package"),
        (("one",), "is not empty"),
        (("a b",), "NAME"),
    ):
        refused = shell(INSTALLED, "init", *words, cwd=tmp_path)
        assert refused.returncode == 1 and field in refused.stderr, refused.stderr
