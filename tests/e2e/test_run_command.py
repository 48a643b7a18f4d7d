"""`worker run` in scripts: standard streams and exit codes, without a terminal."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.tree import PYTHON, ROOT, Local


class Shell:
    """Runs `worker run` against one tree."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def __call__(self, *words: str, stdin: bytes = b"", state: Path | None = None) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)"""
        command = [*PYTHON, "worker", "run", *words, "--state", str(state or self._local.state)]
        done = subprocess.run(
            command, input=stdin, cwd=ROOT, env=self._local.environ, capture_output=True, timeout=30
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture(name="run", scope="module")
def _run(local: Local) -> Shell:
    return Shell(local)


@pytest.mark.parametrize("agent", ["quick", "quick-queued"])
def test_standard_output_holds_only_the_output(run: Shell, agent: str) -> None:
    """The output as JSON, ready for a pipe; agent and duration go to standard error."""
    code, out, err = run(agent, "--input", '{"n": "drei Äpfel"}')
    assert code == 0
    assert json.loads(out) == {"n": "drei Äpfel", "attempt": 1}
    assert re.search(r"^execution [0-9a-f-]{36}$", err, re.M)
    assert re.search(r"^completed in \d+\.\d\d s$", err, re.M)


def test_input_from_file_or_standard_input(run: Shell, tmp_path: Path) -> None:
    """@FILE and - are read unchanged, including non-ASCII text."""
    file = tmp_path / "input.json"
    file.write_text('{"n": "ü"}', encoding="utf-8")
    assert json.loads(run("quick", "--input", f"@{file}")[1])["n"] == "ü"
    assert json.loads(run("quick", "--input", "-", stdin=b'{"n": [1, 2]}')[1])["n"] == [1, 2]


def test_progress_and_chunks_are_shown_live(run: Shell) -> None:
    """A progress bar on standard error; only the streamed text on standard output."""
    code, out, err = run("story", "--input", '{"lines": 5, "pause": 0.1}')
    assert code == 0
    assert out == "".join(f"line {number}\n" for number in range(5))
    bars = re.findall(r"^\[(#*)(\.*)\] +(\d+)%  line (\d)$", err, re.M)
    assert bars[-1] == ("#" * 30, "", "100", "4")
    assert len(bars) == 5
    assert all(len(full) + len(empty) == 30 for full, empty, *_ in bars)


def test_resumed_stream_is_shown_once(run: Shell) -> None:
    """A crash midway is reported, and no word of the text is repeated."""
    code, out, err = run("story", "--input", '{"lines": 8, "pause": 0.03, "dies_at": 5}')
    assert code == 0
    assert out == "".join(f"line {number}\n" for number in range(8))
    assert re.findall(r"^(started|reset)$", err, re.M) == ["started", "reset", "started"]


def test_files_are_saved_with_their_checksums(run: Shell, tmp_path: Path) -> None:
    """--out saves each deliverable under its name; its bytes match the announced sha256."""
    out = tmp_path / "made" / "here"
    code, value, err = run("files", "--out", str(out))
    assert code == 0
    assert json.loads(value) == {"files": 2}
    announced = dict(re.findall(r"^file  (\S+)  \d+ bytes  sha256:([0-9a-f]{64})$", err, re.M))
    assert announced.keys() == {"note.txt", "noise.bin"} == {path.name for path in out.iterdir()}
    for name, digest in announced.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert (out / "note.txt").read_bytes() == b"a note\n"


@pytest.mark.parametrize(
    ("agent", "code"),
    [("picky", "INVALID_INPUT"), ("broken", "INTERNAL_ERROR"), ("crash-queued", "WORKER_CRASHED")],
)
def test_failed_work_exits_with_code_1(run: Shell, agent: str, code: str) -> None:
    """The failure's code is shown; a bug's message stays internal, and where to look is printed."""
    status, out, err = run(agent, "--input", '{"n": 1, "times": 9}')
    assert (status, out) == (1, "")
    assert "failed in" in err
    assert code in err
    assert "must-stay-in-the-log" not in err
    assert ("the work process's log" in err) == (code == "INTERNAL_ERROR")


def test_unknown_capability_lists_the_known_ones(run: Shell) -> None:
    """A misspelt name gets a list of the available ones, and nothing is created."""
    code, out, err = run("qick")
    assert (code, out) == (1, "")
    assert "'qick'" in err
    assert "quick" in err and "story-queued" in err
    assert "_output-check" not in err
    assert "execution " not in err


def test_invalid_json_input_is_refused(run: Shell) -> None:
    """Broken JSON and missing files are reported with the option's name and the reason."""
    bad = [
        '{"n": ',
        "NaN",
        '"\\ud800"',
        "[" * 5000,
        "",
        "@/no/such/file",
    ]
    with ThreadPoolExecutor(4) as pool:
        for code, out, err in pool.map(lambda text: run("quick", "--input", text), bad):
            assert (code, out) == (1, "")
            assert "field: --input" in err
            assert "the body" not in err
            assert len(err.splitlines()) <= 4


def test_non_utf8_input_is_refused(run: Shell, tmp_path: Path) -> None:
    """Any bytes, from a file or standard input, get an error message."""
    file = tmp_path / "noise"
    file.write_bytes(b"\xff\xfe\x00{")
    for code, out, err in (
        run("quick", "--input", f"@{file}"),
        run("quick", "--input", "-", stdin=b"\x80"),
        run("quick", "--input", f"@{tmp_path}"),
    ):
        assert (code, out) == (1, "")
        assert "field: --input" in err


def test_invalid_options_are_refused_before_work_begins(run: Shell, tmp_path: Path) -> None:
    """A label without =, or an output directory that is a file, creates nothing."""
    file = tmp_path / "file"
    file.touch()
    for words in (("--label", "colour"), ("--out", str(file)), ("--out", str(file / "below"))):
        code, out, err = run("files", *words)
        assert (code, out) == (1, "")
        assert "execution " not in err


def test_state_directory_without_a_worker_is_explained(run: Shell, tmp_path: Path) -> None:
    """No worker runs there, or a killed one did: both are explained without a traceback."""
    code, out, err = run("quick", state=tmp_path)
    assert (code, out) == (2, "")
    assert "--state" in err
    for content in ("[]", '{"redis": 5, "url": null, "kernel_token": null}'):
        (tmp_path / "local.json").write_text(content)
        code, out, err = run("quick", state=tmp_path)
        assert (code, out) == (2, "")
    dead = {"redis": "redis://127.0.0.1:9/0", "url": "http://127.0.0.1:9", "kernel_token": "x" * 20}
    (tmp_path / "local.json").write_text(json.dumps(dead))
    code, out, err = run("quick", state=tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("STORE_UNAVAILABLE")


def test_closed_output_pipe_is_not_an_error(run: Shell, local: Local) -> None:
    """`worker run ... | head -1` ends without an error message."""
    words = " ".join(
        [*PYTHON, "worker", "run", "story", "--input", "'{\"lines\": 400}'", "--state", "$STATE"]
    )
    done = subprocess.run(
        ["sh", "-c", f"{words} | head -1"],
        cwd=ROOT,
        env={**local.environ, "STATE": str(local.state)},
        capture_output=True,
        timeout=30,
    )
    assert done.stdout == b"line 0\n"
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
