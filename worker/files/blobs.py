"""Values too large for the record: the store holds a reference, a file holds the bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from worker.core.errors import Unavailable
from worker.core.json import encode
from worker.files.store import FileRef, Files

INLINE_BYTES = 32 * 1024
# No JSON begins with it, so a reference cannot be mistaken for a value.
_REFERENCE = b"@"


def pack(files: Files, value: bytes, *, name: str, most: int = INLINE_BYTES) -> bytes:
    """What to store for a JSON value: the value, or a reference to its file."""
    if len(value) <= most:
        return value
    return _REFERENCE + encode(asdict(files.put(value, name=name, mime="application/json")))


def discard(files: Files, stored: bytes) -> None:
    """Removes the file of a packed value that was not stored."""
    ref = reference(stored)
    if ref is not None:
        remove(files, ref.key)


def remove(files: Files, key: str) -> None:
    """Removes an unused file, best effort."""
    if key:
        with suppress(Unavailable):
            files.delete(key)


def unpack(files: Files, stored: bytes) -> Any:
    """The JSON value behind `stored`."""
    ref = reference(stored)
    return json.loads(stored if ref is None else read(files, ref))


def reference(stored: bytes) -> FileRef | None:
    return FileRef(**json.loads(stored[1:])) if stored.startswith(_REFERENCE) else None


def read(files: Files, ref: FileRef) -> bytes:
    return b"".join(files.open(ref.key))


def described(ref: FileRef) -> dict[str, Any]:
    """A file's public description: everything but its key."""
    return {"name": ref.name, "mime": ref.mime, "size": ref.size, "sha256": ref.sha256}
