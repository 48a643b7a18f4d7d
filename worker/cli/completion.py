"""`worker completion bash|zsh`: prints a completion script generated from the parsers."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

# Finds the command on the line (`at`), then its completions; the same in both shells.
_BODY = """\
        case "$at/$each" in
            {paths}) at="$at/$each" ;;
        esac
    done
    case "$at $previous" in
{values}
    esac
    if [ -z "$choices" ]; then
        case "$at" in
{words}
        esac
    fi
"""
_BASH = """\
# Completion of `worker` for bash. Load it with: source <(worker completion bash)
_worker() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" at="" each="" choices=""
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
{body}\
    case "$choices" in
        :files) COMPREPLY=( $(compgen -f -- "${{word#@}}") ) ;;
        :none) COMPREPLY=() ;;
        *) COMPREPLY=( $(compgen -W "$choices" -- "$word") ) ;;
    esac
}}
complete -F _worker worker
"""
_ZSH = """\
#compdef worker
# Completion of `worker` for zsh. Load it with: source <(worker completion zsh)
_worker() {{
    local previous="${{words[CURRENT-1]}}" at="" each="" choices=""
    for each in "${{(@)words[2,CURRENT-1]}}"; do
{body}\
    case "$choices" in
        :files) compset -P '@'; _files ;;
        :none) ;;
        *) compadd -- ${{=choices}} ;;
    esac
}}
if [ "$funcstack[1]" = "_worker" ]; then
    _worker "$@"
else
    (( $+functions[compdef] )) || {{ autoload -U compinit && compinit; }}
    compdef _worker worker
fi
"""
_TEMPLATES = {"bash": _BASH, "zsh": _ZSH}
_FILES, _NONE = ":files", ":none"
_METAVARS_OF_FILES = frozenset({"FILE", "@FILE", "DIR", "PATH"})


@dataclass(frozen=True, slots=True)
class CommandWords:
    """Completions of one command: subcommands or options, and the values of its options."""

    path: str
    words: tuple[str, ...]
    values: dict[str, str]


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    completion = subparsers.add_parser("completion", help="print a completion script for the shell")
    completion.add_argument(
        "shell", choices=[*_TEMPLATES], help="for example: source <(worker completion bash)"
    )
    completion.set_defaults(handler=run_completion)


def run_completion(args: argparse.Namespace) -> int:
    from worker.cli import parser_of

    body = _body([*commands_below(parser_of())])
    print(_TEMPLATES[args.shell].format(body=body), end="")
    return 0


def commands_below(parser: argparse.ArgumentParser, path: str = "") -> Iterator[CommandWords]:
    """Yields the words of this parser and of every command below it."""
    words: list[str] = []
    values: dict[str, str] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += action.choices
            for name, below in action.choices.items():
                yield from commands_below(below, f"{path}/{name}")
            continue
        if isinstance(action, argparse._HelpAction):
            continue
        words += action.option_strings or [str(each) for each in action.choices or ()]
        if action.option_strings and action.nargs != 0:
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            expected = " ".join(str(each) for each in action.choices or ())
            expected = expected or (_FILES if metavar in _METAVARS_OF_FILES else _NONE)
            values |= dict.fromkeys(action.option_strings, expected)
    yield CommandWords(path, tuple(words), values)


def _body(commands: list[CommandWords]) -> str:
    paths = "|".join(shlex.quote(each.path) for each in commands if each.path)
    values = [
        f"        {shlex.quote(f'{each.path} {option}')}) choices={shlex.quote(expected)} ;;"
        for each in commands
        for option, expected in each.values.items()
    ]
    words = [
        f"            {shlex.quote(each.path)}) choices={shlex.quote(' '.join(each.words))} ;;"
        for each in commands
    ]
    return _BODY.format(paths=paths, values="\n".join(values), words="\n".join(words))
