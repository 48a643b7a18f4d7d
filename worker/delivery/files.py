"""Where the bytes of deliverables are kept, and the port that hides it.

A file has no name in the store but a random key; name, type, size and digest travel in a `FileRef`
that the record keeps. A file exists under its key only when it is whole and durable.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from worker.delivery.filewriter import MAX_SIZE, Data, FileRef, FileWriter, Sink, write_all
from worker.errors import NotFound, Unavailable

__all__ = ["MAX_SIZE", "Chunks", "DiskFiles", "FileRef", "FileWriter", "Files", "Stat", "files_from"]

CHUNK = 64 * 1024
KEY = re.compile(r"[0-9a-f]{40}")
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class Stat:
    """What the store itself knows about a file; `modified` is in microseconds of the store's clock."""

    size: int
    modified: int


class Source(Protocol):
    """What a reading draws from."""

    def read(self, size: int = -1, /) -> bytes | None: ...
    def close(self) -> None: ...


class Chunks(Protocol):
    """Bytes of a file, piece by piece. Close it when the reader goes away early."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __next__(self) -> bytes: ...
    def close(self) -> None: ...


class Files(Protocol):
    """The port. Ranges are half-open: [start, end)."""

    def writer(self, name: str, mime: str) -> FileWriter: ...
    def put(self, data: Data | Iterable[bytes], *, name: str, mime: str) -> FileRef: ...
    def open(self, key: str, start: int = 0, end: int | None = None) -> Chunks:
        """Raise NotFound at once, not at the first read, if there is no such file."""

    def stat(self, key: str) -> Stat | None: ...
    def delete(self, key: str) -> None:
        """Deleting what is not there is no error."""

    def sweep(self, older_than: float) -> int:
        """Remove what dead writers left more than `older_than` seconds ago; return how many."""


class DiskFiles:
    """Files in a directory that every process of the worker shares."""

    def __init__(self, directory: str | Path, *, max_size: int = MAX_SIZE) -> None:
        self.directory = Path(directory)
        self.max_size = max_size
        self._parts = self.directory / "tmp"
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._parts.mkdir(mode=0o700, exist_ok=True)

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
            raise storage_failed() from error
        size = os.fstat(file.fileno()).st_size
        file.seek(start)
        return Reading(file, (size if end is None else min(end, size)) - start)

    def stat(self, key: str) -> Stat | None:
        try:
            with storage_errors(), suppress(FileNotFoundError):
                found = self._path(key).stat()
                return Stat(found.st_size, found.st_mtime_ns // 1000)
        except NotFound:
            pass
        return None

    def delete(self, key: str) -> None:
        with storage_errors(), suppress(FileNotFoundError, NotFound):
            self._path(key).unlink()

    def sweep(self, older_than: float) -> int:
        with storage_errors():
            limit = self._now() - older_than
            return sum(self._remove_orphan(part, limit) for part in self._parts.iterdir())

    def _begin(self, key: str, mime: str) -> Sink:
        return _DiskSink(self._parts / f"{key}.part", self._path(key))

    def _path(self, key: str) -> Path:
        check_key(key)
        return self.directory / key[:2] / key[2:4] / key

    def _now(self) -> float:
        """The file system's own clock: it dates the files, and may be on another machine."""
        probe = self._parts / f"{secrets.token_hex(20)}.part"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    @staticmethod
    def _remove_orphan(part: Path, limit: float) -> bool:
        try:
            with part.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime > limit:
                    return False
                # A living writer holds this lock for as long as it writes, however slowly.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                part.unlink()
                return True
        except (BlockingIOError, FileNotFoundError):
            return False


class _DiskSink:
    """A temporary file that becomes the file by one rename."""

    def __init__(self, part: Path, path: Path) -> None:
        self._part, self._path = part, path
        with storage_errors():
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
            # Also the upper levels: another writer may have made a directory and not yet synced it.
            for directory in (low, low.parent, low.parent.parent):
                _sync_directory(directory)
            self._file.close()

    def abort(self) -> None:
        with suppress(OSError):
            self._file.close()
        for path in (self._part, self._path):
            with suppress(OSError):
                path.unlink()


class Reading:
    """A bounded number of bytes from an open source, which it closes."""

    def __init__(self, source: Source, left: int) -> None:
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
            raise storage_failed() from error
        if not data:
            self.close()
            raise storage_failed()
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._left = 0
        self._source.close()


def files_from(url: str, *, dyno: bool = False, max_size: int = MAX_SIZE) -> Files:
    """Choose by FILES_URL: a directory, or `s3://bucket/prefix`. ValueError tells an operator why not."""
    if url.startswith("s3://"):
        parts = urlsplit(url)
        if not BUCKET.fullmatch(parts.netloc) or parts.query or parts.fragment:
            raise ValueError("FILES_URL must look like s3://bucket/prefix")
        from worker.delivery.files_s3 import S3Files, s3_client

        return S3Files(parts.netloc, parts.path.strip("/"), s3_client(), max_size=max_size)
    if "://" in url or not url:
        raise ValueError("FILES_URL must be a directory or s3://bucket/prefix")
    if dyno:
        raise ValueError(
            "FILES_URL must be s3://bucket/prefix here: a dyno's disk is neither shared nor kept"
        )
    try:
        return DiskFiles(url, max_size=max_size)
    except OSError as error:
        raise ValueError("FILES_URL names a directory that cannot be written") from error


def check_key(key: str) -> None:
    """Only keys of our own making become part of a path."""
    if not KEY.fullmatch(key):
        raise file_not_found()


def check_start(start: int) -> None:
    """A range counts from the beginning; suffixes are the door's business."""
    if start < 0:
        raise ValueError("start must not be negative")


def file_not_found() -> NotFound:
    return NotFound(
        "there is no such file", code="FILE_NOT_FOUND", advice="Check the address, and its end date."
    )


def storage_failed() -> Unavailable:
    return Unavailable("files cannot be stored or read right now", code="STORAGE_UNAVAILABLE")


@contextmanager
def storage_errors() -> Iterator[None]:
    """Give every fault of the file system one name; the cause stays on the exception."""
    try:
        yield
    except OSError as error:
        raise storage_failed() from error


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
