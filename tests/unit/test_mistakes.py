"""Authors' and operators' mistakes: all in one table, before anything is started."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from worker.capabilities.declare import Registry
from worker.core.settings import Settings

BAD_SHOP = """
from worker import agent, tool

@agent("later", price="0.05")
async def later(job): ...

@agent("shelf", price="0.05")
class Shelf: ...

@agent("nothing", price="0.05")
def nothing(): ...

@agent("a/b?c")
def path(job): ...

@agent
def bare(job): ...

@agent("one", prize="0.05")
def one(job): ...

@agent("odd", output_schema={"type": "object", "required": ["n"]}, example_output={})
def odd(job): ...

@tool("count", atempts=2)
def count(text): ...

@tool("wait")
async def wait(): ...

@agent("fine", price="0.05")
def fine(job): ...
"""
BROKEN = {
    "badsyntax": "from worker import agent\ndef f(:\n    pass\n",
    "badimport": "import worker\nimport stripes_and_dots\n",
    "badname": "from worker import agent\n\nPRICES = {}\nPRICE = PRICES['logo']\n",
}


def environ(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in Settings.names()}
    return {**kept, "PYTHONPATH": str(folder), "WORKER_STATE_DIR": str(folder / "var"), **more}


def command(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "worker", *words],
        cwd=folder,
        env=environ(folder, **more),
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(name="shop")
def _shop(tmp_path: Path) -> Path:
    """A project with every kind of mistake."""
    (tmp_path / "badshop.py").write_text(BAD_SHOP)
    for name, text in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/worker.toml").write_text(
        'agents = ["badshop", "badsyntax", "badimport", "badname", "badshopp"]\n'
        '[capability.fine]\nprice = "0,10"\n'
    )
    (tmp_path / "policy.yaml").write_text("rules: [{id: a}]\n")
    return tmp_path


@pytest.mark.parametrize("words", [("check",), ("work",), ("local",)])
def test_every_mistake_is_listed_once_in_one_screen(shop: Path, words: tuple[str, ...]) -> None:
    """Modules, functions, schemas, worker.toml and policy: one row each with its location, no traceback."""
    began = time.monotonic()
    done = command(shop, *words, POLICY="policy.yaml", REDIS_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 2, done.stderr
    assert time.monotonic() - began < 30
    lines = done.stderr.splitlines()
    assert len(lines) <= 24 and "Traceback" not in done.stderr
    for place, expected in {
        "badshop:4 later": "def instead of async def",
        "badshop:7 shelf": "def NAME(job)",
        "badshop:10 nothing": "def NAME(job)",
        "badshop:13 a/b?c": "which a URL can carry",
        "badshop:16 bare": '@agent("...")',
        "badshop:19 one.prize": "price, perhaps",
        "badshop:22 odd.example_output": "output_schema",
        "badshop:25 count.atempts": "attempts, perhaps",
        "badshop:28 wait": "def instead of async def",
        "badsyntax.py:2": "valid Python",
        "badimport.py:2": "requirements.txt",
        "badname.py:4": "can be imported",
        "config/worker.toml agents": "badshop, or a module",
        "config/worker.toml:3 capability.fine.price": 'such as "0.50"',
        "policy.yaml:1": "decision",
    }.items():
        [*found] = [line for line in lines if line.startswith(place + " ")]
        assert found and any(expected in line for line in found), (place, done.stderr)
    assert "KeyError: 'logo'" in done.stderr and "no module stripes_and_dots" in done.stderr


def test_no_process_is_started_for_a_shop_with_mistakes(shop: Path) -> None:
    """`worker local` starts nothing: no store, no chain, no address."""
    assert command(shop, "local").returncode == 2
    assert not {"store", "chain", "local.json"} & {path.name for path in (shop / "var").iterdir()}


def test_a_project_finds_its_modules_from_any_command(tmp_path: Path) -> None:
    """Modules named in worker.toml are found in the current directory, by the installed command too."""
    (tmp_path / "agents.py").write_text(
        "from worker import Job, agent\n@agent('mine', price='1')\ndef mine(job: Job) -> str: return 'x'\n"
    )
    (tmp_path / "config").mkdir()
    (tmp_path / "config/worker.toml").write_text('agents = ["agents"]\n')
    installed = Path(sys.executable).with_name("worker")
    for words in ([sys.executable, "-m", "worker"], [str(installed)]):
        done = subprocess.run(
            [*words, "check"],
            cwd=tmp_path,
            env={**environ(tmp_path), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (0, "1 agent: mine\n"), done.stderr


def test_a_table_for_no_agent_is_noted(tmp_path: Path) -> None:
    """A misspelt name in worker.toml is only noted, because the agent may be loaded elsewhere."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/worker.toml").write_text('[capability.logo-desing]\nprice = "0.75"\n')
    done = command(tmp_path, "check")
    assert done.returncode == 0
    assert "[capability.logo-desing] changes nothing: no such agent; did you mean logo-design?" in done.stdout


def test_what_is_not_a_list_of_modules_is_refused(tmp_path: Path) -> None:
    """`agents` in worker.toml is validated like every other name in it."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config/worker.toml").write_text('agents = "agents"\n')
    done = command(tmp_path, "check")
    assert done.returncode == 2
    assert "config/worker.toml:1 agents" in done.stderr and '["agents"]' in done.stderr


def refused(function: Any, *, kind: str = "agent") -> list[str]:
    registry = Registry()
    getattr(registry, kind)("one")(function)
    return [f"{each.found}: {each.expected}" for each in registry.take_problems()]


class Callable:
    def __call__(self, job: Any) -> None: ...


class AsyncCallable:
    async def __call__(self, job: Any) -> None: ...


async def _stream(job: Any) -> Any:
    yield 1


async def _later(job: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (Callable, "a class"),
        (_later, "an async function"),
        (_stream, "an async function"),
        (AsyncCallable(), "an async function"),
        (functools.partial(_later), "an async function"),
        (lambda: None, "<lambda>()"),
        (lambda job, more: None, "<lambda>(job, more)"),
        (lambda *, job: None, "<lambda>(*, job)"),
        ("text", "a str"),
        (property(lambda self: None), "a property"),
    ],
)
def test_what_cannot_be_an_agent_is_refused(function: Any, found: str) -> None:
    """The error is found at declaration, not after a payment."""
    [problem] = refused(function)
    assert problem.startswith(found) and "def" in problem


@pytest.mark.parametrize(
    "function", [Callable(), lambda job: None, lambda job, more=1: None, lambda *all: None, print, len]
)
def test_whatever_takes_a_job_can_be_an_agent(function: Any) -> None:
    """Callable objects, defaults and built-in functions are accepted."""
    assert refused(function) == []


def test_a_tool_takes_its_arguments_by_name() -> None:
    """Positional-only arguments could never be passed, and a class is not a tool."""
    assert refused(lambda a, b=1: None, kind="tool") == []
    assert "by name" in refused(lambda a, /: None, kind="tool")[0]
    assert refused(Callable, kind="tool")[0].startswith("a class")
