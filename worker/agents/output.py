"""From what a function returned to what is delivered: a type, a value and files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from worker.delivery.files import FileRef

# An author's message may be so long.
MOST_MESSAGE = 2_000


class OutputType(StrEnum):
    TEXT = "text"
    JSON = "json"
    FILE = "file"
    MULTIPLE = "multiple"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Output:
    """A finished piece of work. `value` is the text or the JSON value; `files` are deliverables by name."""

    type: OutputType
    value: Any
    has_value: bool
    files: tuple[FileRef, ...]


class NotJson(ValueError):
    """The function returned something that JSON has no form for."""


def shape(returned: Any, files: Sequence[FileRef], *, streamed: str | None = None) -> Output:
    """Decides the output type as the house says: by what came back and which files were written."""
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


def encode(value: Any) -> bytes:
    """The value's JSON as it is stored and delivered."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise NotJson(type(value).__name__) from error


def short(text: object, most: int) -> str:
    """What an author wrote as a message: valid, and not longer than it may be."""
    return str(text)[:most].encode(errors="replace").decode()
