"""Files on a real disk: contents, names, crashes and concurrent writers."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.core.errors import InvalidInput, NotFound, Problem, TooLarge, Unavailable
from worker.files.store import DiskFiles, Files, files_from

ROOT = Path(__file__).parents[2]
ABSENT = "0" * 40


class FilesContract:
    """The contract of every file store; each store's test class has a `files` fixture with a cap of 1 MiB."""

    def test_stored_file_is_read_back(self, files: Files) -> None:
        """The reference has the size and sha256 of exactly the bytes that are read back."""
        data = os.urandom(200_001)
        ref = files.put(data, name="logo.png", mime="image/png")
        assert b"".join(files.open(ref.key)) == data
        assert (ref.name, ref.mime, ref.size) == ("logo.png", "image/png", 200_001)
        assert ref.sha256 == hashlib.sha256(data).hexdigest()

    def test_chunks_are_joined(self, files: Files) -> None:
        """Chunks of any bytes-like type make one file with one digest."""
        pieces = [b"one", bytearray(b"two"), memoryview(b"three")]
        ref = files.put((bytes(p) for p in pieces), name="a", mime="text/plain")
        with files.writer("b", "text/plain") as out:
            for piece in pieces:
                assert out.write(piece) == len(piece)
        assert out.ref.sha256 == ref.sha256 == hashlib.sha256(b"onetwothree").hexdigest()
        assert b"".join(files.open(out.ref.key)) == b"onetwothree"

    def test_empty_file_is_valid(self, files: Files) -> None:
        """An empty file is valid, with the digest of no bytes."""
        ref = files.put(b"", name="empty", mime="text/plain")
        assert list(files.open(ref.key)) == []
        assert ref.sha256 == hashlib.sha256(b"").hexdigest()
        found = files.stat(ref.key)
        assert found is not None and found.size == 0

    @pytest.mark.parametrize(
        ("start", "end", "expected"),
        [
            (0, 1, b"0"),
            (3, 7, b"3456"),
            (9, None, b"9"),
            (9, 99, b"9"),
            (10, None, b""),
            (50, 60, b""),
            (4, 4, b""),
        ],
    )
    def test_ranges_are_half_open(self, files: Files, start: int, end: int | None, expected: bytes) -> None:
        """A range returns its bytes, is cut at the end of the file, and may be empty."""
        ref = files.put(b"0123456789", name="a", mime="text/plain")
        assert b"".join(files.open(ref.key, start, end)) == expected

    def test_negative_range_start_is_refused(self, files: Files) -> None:
        """A negative start is refused; counting from the end is up to the caller."""
        ref = files.put(b"0123", name="a", mime="text/plain")
        with pytest.raises(ValueError, match="start"):
            files.open(ref.key, -1)

    def test_missing_file_is_refused_at_open(self, files: Files) -> None:
        """NotFound is raised before the first read, while a door can still answer 404."""
        with pytest.raises(NotFound) as refusal:
            files.open(ABSENT)
        assert refusal.value.code == "FILE_NOT_FOUND"
        assert files.stat(ABSENT) is None

    @pytest.mark.parametrize(
        "key", ["", "..", "../../etc/passwd", "a/b", "A" * 40, "0" * 39, "0" * 41, "0" * 40 + "\n", "٠" * 40]
    )
    def test_foreign_keys_look_unknown(self, files: Files, key: str) -> None:
        """A key that we cannot have made is treated as unknown everywhere."""
        with pytest.raises(NotFound):
            files.open(key)
        assert files.stat(key) is None
        files.delete(key)

    def test_delete_is_idempotent(self, files: Files) -> None:
        """A deleted file is gone, its neighbour remains, and deleting again is no error."""
        ref, neighbour = (files.put(b"x", name="a", mime="text/plain") for _ in "ab")
        files.delete(ref.key)
        files.delete(ref.key)
        assert files.stat(ref.key) is None
        with pytest.raises(NotFound):
            files.open(ref.key)
        assert b"".join(files.open(neighbour.key)) == b"x"

    def test_stat_tells_size_and_age(self, files: Files) -> None:
        """The time of a file is in microseconds."""
        ref = files.put(b"12345", name="a", mime="text/plain")
        found = files.stat(ref.key)
        assert found is not None and found.size == 5
        assert abs(found.modified - time.time() * 1_000_000) < 60_000_000

    def test_keys_are_not_guessable(self, files: Files) -> None:
        """Each file has its own key of 160 random bits, even for the same content."""
        keys = {files.put(b"same", name="same", mime="text/plain").key for _ in range(20)}
        assert len(keys) == 20
        assert all(len(key) == 40 and set(key) <= set("0123456789abcdef") for key in keys)

    def test_size_limit_holds_while_writing(self, files: Files) -> None:
        """The write that would exceed the cap is refused; a file of exactly the cap is accepted."""
        with pytest.raises(TooLarge) as refusal, files.writer("big", "text/plain") as out:
            out.write(b"x" * 1024 * 1024)
            out.write(b"y")
        assert refusal.value.code == "FILE_TOO_LARGE"
        assert files.stat(out.key) is None
        assert files.put(b"x" * 1024 * 1024, name="fits", mime="text/plain").size == 1024 * 1024

    def test_endless_source_is_stopped(self, files: Files) -> None:
        """An endless generator is cut off at the cap, not when memory is full."""
        taken = 0

        def endless() -> Iterator[bytes]:
            nonlocal taken
            while True:
                taken += 1
                yield b"x" * 65536

        with pytest.raises(TooLarge):
            files.put(endless(), name="a", mime="text/plain")
        assert taken == 17

    def test_caught_size_error_leaves_no_file(self, files: Files) -> None:
        """An author who catches TooLarge inside the block does not get a truncated file."""
        with pytest.raises(TooLarge), files.writer("big", "text/plain") as out:
            out.write(b"start")
            for _ in range(2):
                with pytest.raises(TooLarge):
                    out.write(b"x" * (1024 * 1024 + 1))
            with pytest.raises(TooLarge):
                out.write(b"small again")
        assert files.stat(out.key) is None
        with pytest.raises(ValueError, match="not finished"):
            _ = out.ref

    def test_error_while_writing_leaves_no_file(self, files: Files) -> None:
        """The author's exception propagates, and no file is created."""
        with pytest.raises(KeyError), files.writer("a", "text/plain") as out:
            out.write(b"half")
            raise KeyError("author")
        assert files.stat(out.key) is None
        with pytest.raises(ValueError, match="not finished"):
            _ = out.ref

    def test_unfinished_file_is_invisible(self, files: Files) -> None:
        """A file cannot be read while it is being written."""
        with files.writer("a", "text/plain") as out:
            out.write(b"x" * 300_000)
            assert files.stat(out.key) is None
        assert files.stat(out.key) is not None

    def test_writer_cannot_be_reused(self, files: Files) -> None:
        """Entering a finished writer again, or writing outside the block, is refused."""
        writer = files.writer("a", "text/plain")
        with pytest.raises(ValueError, match="not open"):
            writer.write(b"early")
        with writer:
            writer.write(b"x")
        with pytest.raises(ValueError, match="not open"):
            writer.write(b"late")
        with pytest.raises(ValueError, match="one file"), writer:
            pass
        assert b"".join(files.open(writer.ref.key)) == b"x"

    @pytest.mark.parametrize("wrong", ["text", ["text"], 7])
    def test_only_bytes_are_accepted(self, files: Files, wrong: object) -> None:
        """Text and numbers are the author's mistake; they are not encoded by guess."""
        with pytest.raises(TypeError):
            files.put(wrong, name="a", mime="text/plain")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "mime",
        [
            "",
            "text",
            "text/",
            "text/html\r\nX-Evil: 1",
            "text/html\n",
            "a/b c",
            "té/xt",
            "a/" + "b" * 200,
            "a/b;c",
        ],
    )
    def test_invalid_media_type_is_refused(self, files: Files, mime: str) -> None:
        """The type is copied into a header, so only well-formed ones are accepted."""
        with pytest.raises(InvalidInput) as refusal:
            files.put(b"", name="a", mime=mime)
        assert refusal.value.details["field"] == "mime"

    def test_media_type_parameters_are_kept(self, files: Files) -> None:
        """A charset or a quoted parameter is part of the type."""
        mime = 'text/plain; charset=utf-8; title="a b"'
        assert files.put(b"", name="a", mime=mime).mime == mime

    def test_unsafe_name_is_cleaned(self, files: Files) -> None:
        """An unsafe name is cleaned before it is stored."""
        assert files.put(b"", name="../../etc/pass\r\nwd", mime="a/b").name == "etc_pass wd"

    def test_reader_may_be_closed_early(self, files: Files) -> None:
        """A client that disconnects closes the source; further reads return nothing."""
        ref = files.put(b"x" * 300_000, name="a", mime="text/plain")
        chunks = files.open(ref.key)
        assert len(next(chunks)) > 0
        chunks.close()
        chunks.close()
        assert list(chunks) == []

    def test_concurrent_writers_are_independent(self, files: Files) -> None:
        """Concurrent writers each get their own complete file."""
        results: list[tuple[bytes, str]] = []

        def write(mark: int) -> None:
            for number in range(5):
                data = bytes([mark, number]) * 40_000
                results.append((data, files.put(data, name="same", mime="text/plain").key))

        threads = [threading.Thread(target=write, args=(mark,)) for mark in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({key for _, key in results}) == 40
        assert all(b"".join(files.open(key)) == data for data, key in results)


class TestDiskFiles(FilesContract):
    """The contract on a directory, and what is specific to disks."""

    @pytest.fixture(name="files")
    def _files(self, tmp_path: Path) -> DiskFiles:
        return DiskFiles(tmp_path / "files", max_size=1024 * 1024)

    def test_files_and_directories_are_private(self, files: DiskFiles) -> None:
        """Only the worker's user may read a file or list a directory."""
        old = os.umask(0)
        try:
            private = DiskFiles(files.directory.parent / "private")
            ref = private.put(b"x", name="a", mime="text/plain")
        finally:
            os.umask(old)
        path = private.directory / ref.key[:2] / ref.key[2:4] / ref.key
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for directory in (private.directory, private.directory / "tmp", path.parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700

    def test_no_part_files_remain(self, files: DiskFiles) -> None:
        """After success, refusal and error no part file is left."""
        files.put(b"x", name="a", mime="text/plain")
        with pytest.raises(TooLarge):
            files.put(b"x" * 2_000_000, name="a", mime="text/plain")
        with pytest.raises(ZeroDivisionError), files.writer("a", "a/b"):
            _ = 1 // 0
        assert list((files.directory / "tmp").iterdir()) == []
        assert len(_stored(files)) == 1

    def test_open_reader_survives_deletion(self, files: DiskFiles) -> None:
        """A download in progress completes although retention removes the file meanwhile."""
        data = os.urandom(300_000)
        ref = files.put(data, name="a", mime="text/plain")
        chunks = files.open(ref.key)
        first = next(chunks)
        files.delete(ref.key)
        assert first + b"".join(chunks) == data

    def test_truncated_file_is_an_error(self, files: DiskFiles) -> None:
        """Bytes missing from an open file are reported."""
        ref = files.put(b"x" * 200_000, name="a", mime="text/plain")
        chunks = files.open(ref.key)
        os.truncate(files.directory / ref.key[:2] / ref.key[2:4] / ref.key, 100_000)
        with pytest.raises(Unavailable):
            list(chunks)

    def test_kill_before_rename_leaves_only_a_part_file(self, files: DiskFiles) -> None:
        """A process killed between write and rename leaves only a part file, which a sweep removes."""
        child = _child(
            files,
            """
            with files.writer("a", "text/plain") as out:
                out.write(b"x" * 500_000)
                print(out.key, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            """,
        )
        key = child.communicate(timeout=60)[0].strip()
        assert child.returncode == -signal.SIGKILL
        assert files.stat(key) is None and _stored(files) == []
        assert [part.name for part in (files.directory / "tmp").iterdir()] == [f"{key}.part"]
        assert files.sweep(3600) == 0
        assert files.sweep(-1) == 1
        assert list((files.directory / "tmp").iterdir()) == []

    def test_acknowledged_files_survive_a_kill(self, files: DiskFiles) -> None:
        """Whenever a process dies, acknowledged files are complete and no file is torn."""
        child = _child(
            files,
            """
            while True:
                ref = files.put(b"x" * 150_000, name="a", mime="text/plain")
                print(ref.key, ref.sha256, flush=True)
            """,
        )
        assert child.stdout is not None
        acknowledged = [child.stdout.readline().split() for _ in range(12)]
        child.kill()
        acknowledged += [line.split() for line in child.communicate(timeout=60)[0].splitlines()]
        for key, digest in acknowledged:
            assert hashlib.sha256(b"".join(files.open(key))).hexdigest() == digest
        assert all(path.stat().st_size == 150_000 for path in _stored(files))
        assert len(_stored(files)) - len(acknowledged) in (0, 1)

    def test_sweep_spares_a_living_writer(self, files: DiskFiles) -> None:
        """A slow writer in another process keeps its part file, however old it is."""
        child = _child(
            files,
            """
            with files.writer("a", "text/plain") as out:
                out.write(b"slow")
                print(out.key, flush=True)
                sys.stdin.read()
            """,
        )
        assert child.stdout is not None
        key = child.stdout.readline().strip()
        os.utime(files.directory / "tmp" / f"{key}.part", (0, 0))
        assert files.sweep(60) == 0
        child.communicate("", timeout=60)
        assert child.returncode == 0
        assert b"".join(files.open(key)) == b"slow"

    def test_sweep_removes_only_old_parts(self, files: DiskFiles) -> None:
        """Only part files older than the given age are removed, never finished files."""
        ref = files.put(b"x", name="a", mime="text/plain")
        os.utime(files.directory / ref.key[:2] / ref.key[2:4] / ref.key, (0, 0))
        for name, age in (("old", 500), ("young", 100)):
            part = files.directory / "tmp" / f"{name}.part"
            part.write_bytes(b"left")
            os.utime(part, (time.time() - age,) * 2)
        assert files.sweep(300) == 1
        assert [part.name for part in (files.directory / "tmp").iterdir()] == ["young.part"]
        assert files.stat(ref.key) is not None

    @pytest.mark.parametrize("flush_late", [True, False])
    def test_full_disk_leaves_no_file(self, files: DiskFiles, flush_late: bool) -> None:
        """When the disk is full, the author sees Unavailable and no partial file remains."""
        size = 30_000 if flush_late else 500_000
        child = _child(
            files,
            f"""
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
            try:
                files.put(b"x" * {size}, name="a", mime="text/plain")
            except Unavailable as refusal:
                print(refusal.code, refusal.message)
            """,
        )
        logged, printed = child.communicate(timeout=60)[0].splitlines()
        assert "files.storage_failed" in logged and "errno=27" in logged
        assert printed.startswith("STORAGE_UNAVAILABLE file storage is unavailable")
        assert _stored(files) == [] and list((files.directory / "tmp").iterdir()) == []

    def test_processes_share_the_directory(self, files: DiskFiles) -> None:
        """A file stored by one process can be read by another."""
        child = _child(files, 'print(files.put(b"from there", name="a", mime="a/b").key)')
        key = child.communicate(timeout=60)[0].strip()
        assert b"".join(files.open(key)) == b"from there"

    def test_no_file_descriptor_leaks(self, files: DiskFiles) -> None:
        """Writers that succeed or fail, and readers finished or closed, release their descriptors."""
        ref = files.put(b"x" * 100_000, name="a", mime="a/b")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            list(files.open(ref.key))
            files.open(ref.key).close()
            files.put(b"x", name="a", mime="a/b")
            with pytest.raises(Problem):
                files.put(b"x" * 2_000_000, name="a", mime="a/b")
        assert len(os.listdir("/proc/self/fd")) == before


def test_path_selects_the_disk(tmp_path: Path) -> None:
    """A plain path selects files on disk, with the given cap."""
    files = files_from(str(tmp_path / "deep" / "files"), max_size=3)
    assert isinstance(files, DiskFiles)
    with pytest.raises(TooLarge):
        files.put(b"1234", name="a", mime="a/b")


@pytest.mark.parametrize(
    "url",
    ["", "ftp://host/x", "file:///x", "s3://", "s3:///x", "s3://UPPER/x", "s3://b@x/y", "s3://bucket/x?y"],
)
def test_unknown_files_url_is_explained(url: str) -> None:
    """A URL of an unknown kind is refused with the setting's name."""
    with pytest.raises(ValueError, match="FILES_URL"):
        files_from(url)


def test_disk_is_refused_on_a_dyno(tmp_path: Path) -> None:
    """Where the disk is neither shared nor persistent, a bucket is required."""
    with pytest.raises(ValueError, match="dyno"):
        files_from(str(tmp_path), dyno=True)


def test_unusable_directory_is_explained(tmp_path: Path) -> None:
    """A path under a plain file is refused with the setting's name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="FILES_URL"):
        files_from(str(tmp_path / "file" / "sub"))


def _stored(files: DiskFiles) -> list[Path]:
    return [path for path in files.directory.glob("??/??/*") if path.is_file()]


def _child(files: DiskFiles, body: str) -> subprocess.Popen[str]:
    code = (
        "import os, resource, signal, sys\n"
        "from worker.files.store import DiskFiles\n"
        "from worker.core.errors import Unavailable\n"
        f"files = DiskFiles({str(files.directory)!r})\n" + textwrap.dedent(body)
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
