"""`worker run` as a program among programs: no terminal, its streams and its exit code are all there is."""

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
def test_the_output_is_all_there_is_on_standard_output(run: Shell, agent: str) -> None:
    """The value as JSON, ready for a pipe; who and how long is told beside it."""
    code, out, err = run(agent, "--input", '{"n": "drei Äpfel"}')
    assert code == 0
    assert json.loads(out) == {"n": "drei Äpfel", "attempt": 1}
    assert re.search(r"^execution [0-9a-f-]{36}$", err, re.M)
    assert re.search(r"^completed in \d+\.\d\d s$", err, re.M)


def test_input_comes_from_a_file_or_from_standard_input(run: Shell, tmp_path: Path) -> None:
    """@FILE and - are read as they are, non-ASCII and all."""
    file = tmp_path / "input.json"
    file.write_text('{"n": "ü"}', encoding="utf-8")
    assert json.loads(run("quick", "--input", f"@{file}")[1])["n"] == "ü"
    assert json.loads(run("quick", "--input", "-", stdin=b'{"n": [1, 2]}')[1])["n"] == [1, 2]


def test_progress_and_chunks_are_shown_as_they_come(run: Shell) -> None:
    """A bar on standard error, the streamed text and nothing else on standard output."""
    code, out, err = run("story", "--input", '{"lines": 5, "pause": 0.1}')
    assert code == 0
    assert out == "".join(f"line {number}\n" for number in range(5))
    bars = re.findall(r"^\[(#*)(\.*)\] +(\d+)%  line (\d)$", err, re.M)
    assert bars[-1] == ("#" * 30, "", "100", "4")
    assert len(bars) == 5
    assert all(len(full) + len(empty) == 30 for full, empty, *_ in bars)


def test_a_stream_that_is_taken_up_again_is_shown_once(run: Shell) -> None:
    """A crash in the middle is told, and repeats no word of the text."""
    code, out, err = run("story", "--input", '{"lines": 8, "pause": 0.03, "dies_at": 5}')
    assert code == 0
    assert out == "".join(f"line {number}\n" for number in range(8))
    assert re.findall(r"^(started|reset)$", err, re.M) == ["started", "reset", "started"]


def test_files_are_saved_whole(run: Shell, tmp_path: Path) -> None:
    """--out saves each deliverable under its name; its bytes have the sha256 that was announced."""
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
def test_failed_work_is_exit_code_1(run: Shell, agent: str, code: str) -> None:
    """What failed is named by its code; what a bug said stays in the house, and where to look is told."""
    status, out, err = run(agent, "--input", '{"n": 1, "times": 9}')
    assert (status, out) == (1, "")
    assert "failed in" in err
    assert code in err
    assert "must-stay-in-the-house" not in err
    assert ("the work process's log" in err) == (code == "INTERNAL_ERROR")


def test_an_unknown_capability_is_named_with_the_known(run: Shell) -> None:
    """A misspelt name is answered with what is on offer, and nothing is created."""
    code, out, err = run("qick")
    assert (code, out) == (1, "")
    assert "'qick'" in err
    assert "quick" in err and "story-queued" in err
    assert "_output-check" not in err
    assert "execution " not in err


def test_input_that_is_no_json_is_refused(run: Shell) -> None:
    """Broken JSON and missing files are told by the name of the option, and what is wrong with it."""
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


def test_bytes_that_are_no_text_are_refused(run: Shell, tmp_path: Path) -> None:
    """Whatever comes in by file or standard input, there is an answer."""
    file = tmp_path / "noise"
    file.write_bytes(b"\xff\xfe\x00{")
    for code, out, err in (
        run("quick", "--input", f"@{file}"),
        run("quick", "--input", "-", stdin=b"\x80"),
        run("quick", "--input", f"@{tmp_path}"),
    ):
        assert (code, out) == (1, "")
        assert "field: --input" in err


def test_bad_options_are_refused_before_work_begins(run: Shell, tmp_path: Path) -> None:
    """A label without =, or a place for files that is a file, creates nothing."""
    file = tmp_path / "file"
    file.touch()
    for words in (("--label", "colour"), ("--out", str(file)), ("--out", str(file / "below"))):
        code, out, err = run("files", *words)
        assert (code, out) == (1, "")
        assert "execution " not in err


def test_a_state_directory_without_a_worker_is_explained(run: Shell, tmp_path: Path) -> None:
    """No worker runs there, or one ran and was killed: both are told without a traceback."""
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


def test_a_reader_who_leaves_early_is_no_error_of_ours(run: Shell, local: Local) -> None:
    """`worker run ... | head -1` ends without a complaint."""
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
