"""Writes one file: counts, digests and caps the bytes on their way into any storage."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from worker.core.errors import InvalidInput, TooLarge
from worker.files.names import safe_name

MAX_SIZE = 100 * 1024 * 1024
_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_MIME = re.compile(rf'{_TOKEN}/{_TOKEN}(?: *; *{_TOKEN}=(?:{_TOKEN}|"[A-Za-z0-9 !#-\[\]-~]*"))*')

Data = bytes | bytearray | memoryview


@dataclass(frozen=True)
class FileRef:
    """A stored file: the key opens it, the rest describes it. `sha256` is 64 lower hex digits."""

    key: str
    name: str
    mime: str
    size: int
    sha256: str


class Sink(Protocol):
    """Receives the bytes of one new file from a writer."""

    def write(self, data: memoryview) -> None: ...
    def commit(self) -> None:
        """Make the file durable, then visible; all or nothing."""

    def abort(self) -> None:
        """Leave nothing behind; never raises."""


class FileWriter:
    """A context manager that accepts bytes and has a `ref` after a successful exit.

    A failed write discards the file, even if the author swallows the error.
    """

    def __init__(
        self, begin: Callable[[str, str], Sink], name: str, mime: str, *, max_size: int = MAX_SIZE
    ) -> None:
        if len(mime) > 127 or not _MIME.fullmatch(mime):
            raise InvalidInput(
                "a file's type must be a media type",
                field="mime",
                expected="type/subtype",
                received=mime[:127],
            )
        self.key = secrets.token_hex(20)
        self.size = 0
        self._begin, self._name, self._mime, self._max = begin, safe_name(name), mime, max_size
        self._digest = hashlib.sha256()
        self._sink: Sink | None = None
        self._failure: BaseException | None = None
        self._ref: FileRef | None = None

    @property
    def ref(self) -> FileRef:
        """The finished file; available only after the `with` block succeeded."""
        if self._ref is None:
            raise ValueError("the file is not finished")
        return self._ref

    def __enter__(self) -> FileWriter:
        if self._sink or self._ref or self._failure:
            raise ValueError("a writer can be used for one file only")
        self._sink = self._begin(self.key, self._mime)
        return self

    def write(self, data: Data) -> int:
        """Write bytes; raises TooLarge before the cap is exceeded, Unavailable if the storage fails."""
        view = memoryview(data).cast("B")
        if self._sink is None:
            raise ValueError("the file is not open")
        try:
            if self._failure is not None:
                raise self._failure
            if self.size + view.nbytes > self._max:
                raise file_too_large(self._max)
            self._sink.write(view)
            self._digest.update(view)
        except BaseException as failure:
            self._failure = failure
            raise
        self.size += view.nbytes
        return view.nbytes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            raise ValueError("the file is not open")
        if kind is not None or self._failure is not None:
            sink.abort()
            if kind is None and self._failure is not None:
                raise self._failure
            return
        try:
            sink.commit()
        except BaseException:
            sink.abort()
            raise
        self._ref = FileRef(self.key, self._name, self._mime, self.size, self._digest.hexdigest())


def write_all(writer: FileWriter, data: Data | Iterable[bytes]) -> FileRef:
    """Write bytes, or an iterable of them, and return the finished file."""
    with writer as out:
        for piece in (data,) if isinstance(data, (bytes, bytearray, memoryview)) else data:
            out.write(piece)
    return writer.ref


def file_too_large(limit: int) -> TooLarge:
    return TooLarge(
        "the file is too large",
        code="FILE_TOO_LARGE",
        expected=f"at most {limit} bytes",
        advice="Deliver several smaller files.",
    )
