"""Whoever asks a command for help is told what each of its words means."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from worker.cli import _parser


def words(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from words(below, f"{path} {name}")
        else:
            yield f"{path} {action.metavar or action.option_strings}", action


def test_every_option_has_its_help() -> None:
    """Arguments and options alike, of every command and the commands below it."""
    assert [name for name, action in words(_parser(), "worker") if not action.help] == []
