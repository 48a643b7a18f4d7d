"""Storage port for the bytes of deliverables, and its disk implementation.

The storage knows a file only by a random key; name, type, size and digest are in the `FileRef` that the
record stores. A file exists under its key only once it is complete and durable.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from worker.core.errors import NotFound
from worker.files.failures import file_not_found, storage_errors, storage_failed
from worker.files.writer import MAX_SIZE, Data, FileRef, FileWriter, Sink, write_all

__all__ = [
    "MAX_SIZE",
    "Chunks",
    "DiskFiles",
    "FileRef",
    "FileWriter",
    "Files",
    "FileStat",
    "files_from",
]

OK = "ok"
CHUNK = 64 * 1024
# Work is refused while fewer bytes are free: the size of the largest deliverable, or of many small ones.
SPARE_BYTES = 100 << 20
KEY = re.compile(r"[0-9a-f]{40}")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class FileStat:
    """The storage's own metadata; `modified` is in microseconds of the storage's clock."""

    size: int
    modified: int


class ByteSource(Protocol):
    """An open source of bytes."""

    def read(self, size: int = -1, /) -> bytes | None: ...
    def close(self) -> None: ...


class Chunks(Protocol):
    """A file's bytes in chunks. Close it if the reader stops early."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...
    def close(self) -> None: ...


class Files(Protocol):
    """The port. Ranges are half-open: [start, end)."""

    def writer(self, name: str, mime: str) -> FileWriter: ...
    def put(self, data: Data | Iterable[bytes], *, name: str, mime: str) -> FileRef: ...
    def open(self, key: str, start: int = 0, end: int | None = None) -> Chunks:
        """Raise NotFound at once, not at the first read, if there is no such file."""

    def stat(self, key: str) -> FileStat | None: ...
    def delete(self, key: str) -> None:
        """Deleting a missing file is no error."""

    def check(self) -> str:
        """Returns 'ok', or why no file can be stored now."""

    def sweep(self, older_than: float) -> int:
        """Remove files that dead writers left over `older_than` seconds ago; return how many."""


class DiskFiles:
    """Files in a directory that every process of the worker shares."""

    def __init__(
        self, directory: str | Path, *, max_size: int = MAX_SIZE, spare_bytes: int = SPARE_BYTES
    ) -> None:
        self.directory = Path(directory)
        self.max_size = max_size
        self._spare_bytes = spare_bytes
        self._parts = self.directory / "tmp"
        self._make_directories()

    def writer(self, name: str, mime: str) -> FileWriter:
        return FileWriter(self._begin, name, mime, max_size=self.max_size)

    def put(self, data: Data | Iterable[bytes], *, name: str, mime: str) -> FileRef:
        return write_all(self.writer(name, mime), data)

    def open(self, key: str, start: int = 0, end: int | None = None) -> Chunks:
        check_start(start)
        try:
            file = self._path(key).open("rb", buffering=0)
        except FileNotFoundError as error:
            raise file_not_found() from error
        except OSError as error:
            raise storage_failed(error) from error
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        return FileReader(file, (size if end is None else min(end, size)) - start)

    def stat(self, key: str) -> FileStat | None:
        with storage_errors(), suppress(FileNotFoundError, NotFound):
            found = self._path(key).stat()
            return FileStat(found.st_size, found.st_mtime_ns // 1000)
        return None

    def delete(self, key: str) -> None:
        with storage_errors(), suppress(FileNotFoundError, NotFound):
            self._path(key).unlink()

    def check(self) -> str:
        with storage_errors():
            free = shutil.disk_usage(self._make_directories()).free
            if free < self._spare_bytes:
                return f"the disk is full: {free >> 20} MB free, {self._spare_bytes >> 20} MB needed"
            self._now()
        return OK

    def sweep(self, older_than: float) -> int:
        with storage_errors():
            self._make_directories()
            limit = self._now() - older_than
            return sum(self._remove_orphan(part, limit) for part in self._parts.iterdir())

    def _begin(self, key: str, mime: str) -> Sink:
        part, path = self._parts / f"{key}.part", self._path(key)
        with storage_errors():
            try:
                return _DiskSink(part, path)
            except FileNotFoundError:  # the directory was emptied or removed
                self._make_directories()
                return _DiskSink(part, path)

    def _make_directories(self) -> Path:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._parts.mkdir(mode=0o700, exist_ok=True)
        return self.directory

    def _path(self, key: str) -> Path:
        check_key(key)
        return self.directory / key[:2] / key[2:4] / key

    def _now(self) -> float:
        """The file system's clock: it timestamps the files and may be on another machine."""
        probe = self._parts / f"{secrets.token_hex(20)}.part"
        try:
            probe.write_bytes(b"-")
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    @staticmethod
    def _remove_orphan(part: Path, limit: float) -> bool:
        try:
            with part.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime > limit:
                    return False
                # A live writer holds this lock while it writes, however slowly.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
                return True
        except (BlockingIOError, FileNotFoundError):
            return False


class _DiskSink:
    """A temporary file, renamed to its final path on commit."""

    def __init__(self, part: Path, path: Path) -> None:
        self._part, self._path = part, path
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file = os.fdopen(handle, "wb", buffering=CHUNK)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, data: memoryview) -> None:
        with storage_errors():
            self._file.write(data)

    def commit(self) -> None:
        with storage_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            low = self._path.parent
            low.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._part.rename(self._path)
            # Also the upper levels: another writer may have created a directory and not synced it yet.
            for directory in (low, low.parent, low.parent.parent):
                _sync_directory(directory)
            self._file.close()

    def abort(self) -> None:
        with suppress(OSError):
            self._file.close()
        for path in (self._part, self._path):
            with suppress(OSError):
                path.unlink()


class FileReader:
    """Reads a bounded number of bytes from an open source and closes it."""

    def __init__(self, source: ByteSource, left: int) -> None:
        self._source, self._left = source, left

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._left <= 0:
            self.close()
            raise StopIteration
        try:
            data = self._source.read(min(CHUNK, self._left))
        except OSError as error:
            self.close()
            raise storage_failed(error) from error
        if not data:
            self.close()
            raise storage_failed(EOFError())
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._left = 0
        self._source.close()


def files_from(url: str, *, dyno: bool = False, max_size: int = MAX_SIZE) -> Files:
    """Choose by FILES_URL: a directory, or `s3://bucket/prefix`. ValueError tells the operator why not."""
    if url.startswith("s3://"):
        parts = urlsplit(url)
        if not BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
            raise ValueError("FILES_URL must look like s3://bucket/prefix")
        from worker.files.s3 import S3Files, s3_client

        return S3Files(parts.netloc, parts.path.strip("/"), s3_client(), max_size=max_size)
    if "://" in url or not url:
        raise ValueError("FILES_URL must be a directory or s3://bucket/prefix")
    if dyno:
        raise ValueError(
            "FILES_URL must be s3://bucket/prefix here: a dyno's disk is temporary and not shared"
        )
    try:
        return DiskFiles(url, max_size=max_size)
    except OSError as error:
        raise ValueError("FILES_URL names a directory that cannot be written") from error


def check_key(key: str) -> None:
    """Accept only our own key format, because keys become part of a path."""
    if not KEY.fullmatch(key):
        raise file_not_found()


def check_start(start: int) -> None:
    """Refuse negative offsets; the door resolves suffix ranges."""
    if start < 0:
        raise ValueError("start must not be negative")


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
