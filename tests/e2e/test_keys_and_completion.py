"""`worker keys new`, `worker completion`, and the error messages of every command."""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import program
from worker.cli import main, parser_of
from worker.cli.completion import commands_below
from worker.cli.keys import KINDS
from worker.core.settings import Settings
from worker.core.values import address_of
from worker.delivery.webhook_signatures import parse_private_key, public_key_text
from worker.seeker.wallet import Wallet

SETTING = {"wallet": "WORKER_KEY", "secret": "SECRET_KEY", "webhook": "WEBHOOK_KEY", "token": "KERNEL_TOKEN"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_key_is_taken_by_its_setting(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The key alone on standard output, unique, explained on standard error, long enough for production."""
    keys = []
    for _ in range(2):
        assert main(["keys", "new", kind]) == 0
        printed = capsys.readouterr()
        keys.append(printed.out.strip())
        assert SETTING[kind] in printed.err and keys[-1] not in printed.err
    assert keys[0] != keys[1] and len(keys[0]) >= 32
    settings = Settings.load({SETTING[kind]: keys[0]})
    if kind == "webhook":
        assert settings.webhook_key is not None
        main(["keys", "new", kind])
        made = capsys.readouterr()
        assert public_key_text(parse_private_key(made.out.strip())) in made.err
    if kind == "wallet":
        assert settings.worker_wallet == address_of(keys[0])


def test_a_key_file_is_private_and_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the owner can read it, as a wallet's file requires; an existing file is not changed."""
    file = tmp_path / "key"
    assert main(["keys", "new", "wallet", "--out", str(file)]) == 0
    printed = capsys.readouterr()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and printed.out == ""
    assert Wallet.from_file(file).address in printed.err
    before = file.read_bytes()
    assert main(["keys", "new", "wallet", "--out", str(file)]) == 1
    assert "Choose another file" in capsys.readouterr().err
    assert file.read_bytes() == before


def completed(shell: list[str], script: Path, line: str) -> list[str]:
    """The shell's completions for a line whose last word is being typed."""
    words = line.split(" ")
    done = subprocess.run([*shell, str(script), *words], capture_output=True, text=True, timeout=20)
    assert done.stderr == ""
    return sorted(done.stdout.split())


@pytest.fixture(name="bash", scope="module")
def _bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("bash") / "complete.sh"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-m", "worker", "completion", "bash"]
    text = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
    last = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _worker; printf "%s\\n" "${COMPREPLY[@]}"\n'
    script.write_text(text + last)
    return script


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("worker execu", ["executions"]),
        ("worker executions ", ["approve", "cancel", "list", "show", "signal", "watch"]),
        ("worker executions list --st", ["--state", "--status"]),
        ("worker executions list --status c", ["cancelled", "completed"]),
        ("worker hire http://x logo --network ", ["base", "base-sepolia"]),
        ("worker keys new w", ["wallet", "webhook"]),
        ("worker run --input ", []),
    ],
)
def test_bash_completes_commands_options_and_values(bash: Path, line: str, offered: list[str]) -> None:
    """Real bash, with the script that the command printed."""
    assert completed(["bash"], bash, line) == offered


def test_bash_completes_file_names(bash: Path, tmp_path: Path) -> None:
    """An option that takes a file completes file names, also after @."""
    (tmp_path / "contract.json").touch()
    assert completed(["bash"], bash, f"worker contract sign --out {tmp_path}/con") == [
        f"{tmp_path}/contract.json"
    ]


def test_every_command_is_completed() -> None:
    """The words come from the parser itself, so no command is missing."""

    def paths(parser: argparse.ArgumentParser, path: str = "") -> Iterator[str]:
        yield path
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, below in action.choices.items():
                    yield from paths(below, f"{path}/{name}")

    assert {each.path for each in commands_below(parser_of())} == {*paths(parser_of())}


def test_zsh_takes_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """zsh parses it, and it registers with the completion system."""
    main(["completion", "zsh"])
    script = tmp_path / "_worker"
    script.write_text(capsys.readouterr().out)
    check = f"autoload -U compinit; compinit -u -D; source {script}; print $_comps[worker]"
    done = subprocess.run([program("zsh"), "-f", "-c", check], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("_worker\n", "")


@pytest.mark.parametrize(
    ("words", "guess"),
    [
        ("execution list", "executions"),
        ("executions lst", "list"),
        ("keys new walet", "wallet"),
        ("hyre", "hire"),
    ],
)
def test_a_mistyped_command_is_guessed(words: str, guess: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error suggests the nearest command and where to find help, without the full usage."""
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"Did you mean {guess}?" in printed and "--help" in printed.splitlines()[-1]


DEAD_STORE = {"REDIS_URL": "redis://127.0.0.1:9/0"}
NO_ID = "01a1f0d4-63c5-791c-969d-a3c74c8f7de6"
OF_THE_STORE = [
    "run echo",
    "agents",
    "executions list",
    *(f"executions {action} {NO_ID}" for action in ("show", "watch", "cancel", "approve", "signal")),
    "money report",
    "money unknown",
    "money fees",
    "money journal",
    f"money refund {NO_ID}",
    f"webhooks list {NO_ID}",
    "webhooks hosts",
]


@pytest.mark.parametrize("line", OF_THE_STORE)
def test_every_command_says_what_to_do_without_a_store(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback: the error says that the store does not answer, and what to check."""
    for name, value in DEAD_STORE.items():
        monkeypatch.setenv(name, value)
    words = line.split() + (["go"] if " signal " in line else [])
    assert main(words) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("STORE_UNAVAILABLE") and "worker doctor" in last
