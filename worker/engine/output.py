"""Converts a function's return value to what is delivered: a type, a value and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.core.json import NotJson
from worker.files.blobs import INLINE_BYTES
from worker.files.store import FileRef, Files

TEXT = "text/plain; charset=utf-8"
# Maximum length of an author's message.
MOST_MESSAGE = 2_000


class OutputType(StrEnum):
    TEXT = "text"
    JSON = "json"
    FILE = "file"
    MULTIPLE = "multiple"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Output:
    """Finished work. `value` is the text or the JSON value; `files` are deliverables by name."""

    type: OutputType
    value: Any
    has_value: bool
    files: tuple[FileRef, ...]


@dataclass(frozen=True, slots=True)
class WorkResult:
    """The result of the work, ready to be sealed. `file` is the key of the file with a long output."""

    outcome: str
    output: bytes = b""
    result: bytes = b""
    error: bytes = b""
    payload: bytes = b""
    file: str = ""


def store_value(files: Files, value: Any, packed: bytes, *, text: bool) -> tuple[bytes, FileRef | None]:
    """Returns what the record stores of an output: its JSON, or nothing and the file of a long one."""
    if len(packed) <= INLINE_BYTES:
        return packed, None
    if text:
        return b"", files.put(value.encode(), name="output.txt", mime=TEXT)
    return b"", files.put(packed, name="output.json", mime="application/json")


def shape(returned: Any, files: Sequence[FileRef], *, streamed: str | None = None) -> Output:
    """Chooses the output type from the return value and the files written."""
    if streamed is not None:
        return Output(OutputType.STREAM, streamed, True, tuple(files))
    has_value = returned is not None
    if has_value and not isinstance(returned, str | Mapping | list | tuple | int | float | bool):
        raise NotJson(type(returned).__name__)
    if files and not has_value:
        return Output(OutputType.FILE if len(files) == 1 else OutputType.MULTIPLE, None, False, tuple(files))
    if files:
        return Output(OutputType.MULTIPLE, returned, True, tuple(files))
    if isinstance(returned, str):
        return Output(OutputType.TEXT, returned, True, ())
    return Output(OutputType.JSON, returned, True, ())
