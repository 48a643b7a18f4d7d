"""Files on a real disk: what is promised about bytes, names, crashes and neighbours."""

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

from worker.delivery.files import DiskFiles, Files, files_from
from worker.errors import InvalidInput, NotFound, Problem, TooLarge, Unavailable

ROOT = Path(__file__).parents[2]
ABSENT = "0" * 40


class FilesContract:
    """What every store keeps to; each store's test class brings a `files` fixture with a cap of 1 MiB."""

    def test_a_file_comes_back_as_it_was_put(self, files: Files) -> None:
        """The reference carries size and sha256 of exactly the bytes that are read back."""
        data = os.urandom(200_001)
        ref = files.put(data, name="logo.png", mime="image/png")
        assert b"".join(files.open(ref.key)) == data
        assert (ref.name, ref.mime, ref.size) == ("logo.png", "image/png", 200_001)
        assert ref.sha256 == hashlib.sha256(data).hexdigest()

    def test_pieces_are_joined(self, files: Files) -> None:
        """Chunks of any bytes-like kind make one file with one digest."""
        pieces = [b"one", bytearray(b"two"), memoryview(b"three")]
        ref = files.put((bytes(p) for p in pieces), name="a", mime="text/plain")
        with files.writer("b", "text/plain") as out:
            for piece in pieces:
                assert out.write(piece) == len(piece)
        assert out.ref.sha256 == ref.sha256 == hashlib.sha256(b"onetwothree").hexdigest()
        assert b"".join(files.open(out.ref.key)) == b"onetwothree"

    def test_an_empty_file_is_a_file(self, files: Files) -> None:
        """No bytes are a valid content, with the digest of nothing."""
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
        """A range gives its bytes, is cut at the end of the file, and may be empty."""
        ref = files.put(b"0123456789", name="a", mime="text/plain")
        assert b"".join(files.open(ref.key, start, end)) == expected

    def test_a_negative_start_is_a_mistake(self, files: Files) -> None:
        """Counting from the end is the caller's business, so a negative start is refused."""
        ref = files.put(b"0123", name="a", mime="text/plain")
        with pytest.raises(ValueError, match="start"):
            files.open(ref.key, -1)

    def test_a_missing_file_is_refused_at_open(self, files: Files) -> None:
        """NotFound comes before the first read, when a door can still answer 404."""
        with pytest.raises(NotFound) as refusal:
            files.open(ABSENT)
        assert refusal.value.code == "FILE_NOT_FOUND"
        assert files.stat(ABSENT) is None

    @pytest.mark.parametrize(
        "key", ["", "..", "../../etc/passwd", "a/b", "A" * 40, "0" * 39, "0" * 41, "0" * 40 + "\n", "٠" * 40]
    )
    def test_only_our_own_keys_open_anything(self, files: Files, key: str) -> None:
        """A key that we could not have made looks like an unknown one, wherever it is used."""
        with pytest.raises(NotFound):
            files.open(key)
        assert files.stat(key) is None
        files.delete(key)

    def test_delete_is_final_and_repeatable(self, files: Files) -> None:
        """A deleted file is gone, its neighbour stays, and deleting again is no error."""
        ref, neighbour = (files.put(b"x", name="a", mime="text/plain") for _ in "ab")
        files.delete(ref.key)
        files.delete(ref.key)
        assert files.stat(ref.key) is None
        with pytest.raises(NotFound):
            files.open(ref.key)
        assert b"".join(files.open(neighbour.key)) == b"x"

    def test_stat_tells_size_and_age(self, files: Files) -> None:
        """The time of a file is given in microseconds."""
        ref = files.put(b"12345", name="a", mime="text/plain")
        found = files.stat(ref.key)
        assert found is not None and found.size == 5
        assert abs(found.modified - time.time() * 1_000_000) < 60_000_000

    def test_keys_are_not_guessable(self, files: Files) -> None:
        """Each file has a key of its own, of 160 random bits, even for the same content."""
        keys = {files.put(b"same", name="same", mime="text/plain").key for _ in range(20)}
        assert len(keys) == 20
        assert all(len(key) == 40 and set(key) <= set("0123456789abcdef") for key in keys)

    def test_the_cap_holds_while_writing(self, files: Files) -> None:
        """The write that would pass the cap is refused; a file of exactly the cap is not."""
        with pytest.raises(TooLarge) as refusal, files.writer("big", "text/plain") as out:
            out.write(b"x" * 1024 * 1024)
            out.write(b"y")
        assert refusal.value.code == "FILE_TOO_LARGE"
        assert files.stat(out.key) is None
        assert files.put(b"x" * 1024 * 1024, name="fits", mime="text/plain").size == 1024 * 1024

    def test_an_endless_source_is_stopped(self, files: Files) -> None:
        """A generator that never ends is cut off at the cap, not when memory is full."""
        taken = 0

        def endless() -> Iterator[bytes]:
            nonlocal taken
            while True:
                taken += 1
                yield b"x" * 65536

        with pytest.raises(TooLarge):
            files.put(endless(), name="a", mime="text/plain")
        assert taken == 17

    def test_a_swallowed_refusal_gives_no_file(self, files: Files) -> None:
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

    def test_an_error_inside_the_block_leaves_nothing(self, files: Files) -> None:
        """The author's own exception passes through, and the file never exists."""
        with pytest.raises(KeyError), files.writer("a", "text/plain") as out:
            out.write(b"half")
            raise KeyError("author")
        assert files.stat(out.key) is None
        with pytest.raises(ValueError, match="not finished"):
            _ = out.ref

    def test_a_file_is_invisible_until_it_is_whole(self, files: Files) -> None:
        """Nobody can read a file that is still being written."""
        with files.writer("a", "text/plain") as out:
            out.write(b"x" * 300_000)
            assert files.stat(out.key) is None
        assert files.stat(out.key) is not None

    def test_a_writer_makes_one_file(self, files: Files) -> None:
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
    def test_only_bytes_are_taken(self, files: Files, wrong: object) -> None:
        """Text or numbers are a mistake of the author, not something to encode by guess."""
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
    def test_a_type_that_is_no_media_type_is_refused(self, files: Files, mime: str) -> None:
        """A type goes into a header as it is, so only well-formed ones are taken."""
        with pytest.raises(InvalidInput) as refusal:
            files.put(b"", name="a", mime=mime)
        assert refusal.value.details["field"] == "mime"

    def test_parameters_of_a_type_are_kept(self, files: Files) -> None:
        """A charset or a quoted parameter is part of the type."""
        mime = 'text/plain; charset=utf-8; title="a b"'
        assert files.put(b"", name="a", mime=mime).mime == mime

    def test_the_name_in_the_reference_is_safe(self, files: Files) -> None:
        """A hostile name is cleaned before anybody stores it."""
        assert files.put(b"", name="../../etc/pass\r\nwd", mime="a/b").name == "etc_pass wd"

    def test_closing_a_reader_early_is_fine(self, files: Files) -> None:
        """A client that goes away closes the source; further reads give nothing."""
        ref = files.put(b"x" * 300_000, name="a", mime="text/plain")
        chunks = files.open(ref.key)
        assert len(next(chunks)) > 0
        chunks.close()
        chunks.close()
        assert list(chunks) == []

    def test_many_writers_do_not_meet(self, files: Files) -> None:
        """Writers at the same moment each get their own whole file."""
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
    """The contract on a directory, and what only a disk has."""

    @pytest.fixture(name="files")
    def _files(self, tmp_path: Path) -> DiskFiles:
        return DiskFiles(tmp_path / "files", max_size=1024 * 1024)

    def test_files_and_directories_are_private(self, files: DiskFiles) -> None:
        """Only the worker's own user may read a file or list a directory."""
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

    def test_nothing_temporary_stays(self, files: DiskFiles) -> None:
        """After success, refusal and error no part file is left."""
        files.put(b"x", name="a", mime="text/plain")
        with pytest.raises(TooLarge):
            files.put(b"x" * 2_000_000, name="a", mime="text/plain")
        with pytest.raises(ZeroDivisionError), files.writer("a", "a/b"):
            _ = 1 // 0
        assert list((files.directory / "tmp").iterdir()) == []
        assert len(_stored(files)) == 1

    def test_a_reader_survives_deletion(self, files: DiskFiles) -> None:
        """A download under way ends whole although retention removes the file meanwhile."""
        data = os.urandom(300_000)
        ref = files.put(data, name="a", mime="text/plain")
        chunks = files.open(ref.key)
        first = next(chunks)
        files.delete(ref.key)
        assert first + b"".join(chunks) == data

    def test_a_file_cut_short_is_an_error_not_a_short_answer(self, files: DiskFiles) -> None:
        """Bytes that vanished under a reader are reported."""
        ref = files.put(b"x" * 200_000, name="a", mime="text/plain")
        chunks = files.open(ref.key)
        os.truncate(files.directory / ref.key[:2] / ref.key[2:4] / ref.key, 100_000)
        with pytest.raises(Unavailable):
            list(chunks)

    def test_killed_before_the_rename(self, files: DiskFiles) -> None:
        """A process killed between write and rename leaves no file, only a part that a sweep removes."""
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

    def test_whatever_was_acknowledged_survives_a_kill(self, files: DiskFiles) -> None:
        """At whatever moment a process dies, acknowledged files are whole and no file is torn."""
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

    def test_a_sweep_spares_a_living_writer(self, files: DiskFiles) -> None:
        """A slow writer in another process keeps its part, however old it is."""
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

    def test_a_sweep_is_judged_by_age(self, files: DiskFiles) -> None:
        """Only parts older than asked go; finished files never do."""
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
    def test_a_full_disk_is_our_fault_and_leaves_nothing(self, files: DiskFiles, flush_late: bool) -> None:
        """When the disk takes no more, the author sees Unavailable and no half file stays."""
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
        assert child.communicate(timeout=60)[0].startswith("STORAGE_UNAVAILABLE files cannot be stored")
        assert _stored(files) == [] and list((files.directory / "tmp").iterdir()) == []

    def test_processes_share_the_directory(self, files: DiskFiles) -> None:
        """What one process stored, another reads."""
        child = _child(files, 'print(files.put(b"from there", name="a", mime="a/b").key)')
        key = child.communicate(timeout=60)[0].strip()
        assert b"".join(files.open(key)) == b"from there"

    def test_no_descriptor_leaks(self, files: DiskFiles) -> None:
        """Writers that end well or badly, and readers finished or closed, give their descriptors back."""
        ref = files.put(b"x" * 100_000, name="a", mime="a/b")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            list(files.open(ref.key))
            files.open(ref.key).close()
            files.put(b"x", name="a", mime="a/b")
            with pytest.raises(Problem):
                files.put(b"x" * 2_000_000, name="a", mime="a/b")
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_is_chosen_by_its_path(tmp_path: Path) -> None:
    """A plain path gives files on disk, with the cap asked for."""
    files = files_from(str(tmp_path / "deep" / "files"), max_size=3)
    assert isinstance(files, DiskFiles)
    with pytest.raises(TooLarge):
        files.put(b"1234", name="a", mime="a/b")


@pytest.mark.parametrize(
    "url",
    ["", "ftp://host/x", "file:///x", "s3://", "s3:///x", "s3://UPPER/x", "s3://b@x/y", "s3://bucket/x?y"],
)
def test_a_wrong_address_is_explained(url: str) -> None:
    """An address of no known kind is refused with the setting's name."""
    with pytest.raises(ValueError, match="FILES_URL"):
        files_from(url)


def test_a_directory_is_refused_on_a_dyno(tmp_path: Path) -> None:
    """Where the disk is neither shared nor kept, only a bucket will do."""
    with pytest.raises(ValueError, match="dyno"):
        files_from(str(tmp_path), dyno=True)


def test_a_directory_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    """A path under a plain file is refused with the setting's name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="FILES_URL"):
        files_from(str(tmp_path / "file" / "sub"))


def _stored(files: DiskFiles) -> list[Path]:
    return [path for path in files.directory.glob("??/??/*") if path.is_file()]


def _child(files: DiskFiles, body: str) -> subprocess.Popen[str]:
    code = (
        "import os, resource, signal, sys\n"
        "from worker.delivery.files import DiskFiles\n"
        "from worker.errors import Unavailable\n"
        f"files = DiskFiles({str(files.directory)!r})\n" + textwrap.dedent(body)
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
