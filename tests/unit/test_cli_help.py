"""Every command's help explains each argument and option."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.cli import parser_of
from worker.cli.completion import commands_below

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def words(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from words(below, f"{path} {name}")
        else:
            yield f"{path} {action.metavar or action.option_strings}", action


def test_every_option_has_its_help() -> None:
    """Arguments and options, of every command and its subcommands."""
    assert [name for name, action in words(parser_of(), "worker") if not action.help] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_docs_exists(page: Path) -> None:
    """Each `worker ...` in the docs is a command with these options."""
    known = {each.path: {*each.words, *each.values} for each in commands_below(parser_of())}
    for line in re.findall(r"`worker ((?:[^`\\]|\\.)+)`", page.read_text()):
        path = ""
        for word in line.replace("[", " ").replace("]", " ").split():
            if f"{path}/{word}" in known:
                path += f"/{word}"
            elif word.startswith("--"):
                assert word in known[path] or word == "--help", f"{page.name}: worker {line}"
        assert path or line.startswith(("...", "CAPABILITY")), f"{page.name}: worker {line}"
