"""Values too large for the record: the store then holds a reference, and the bytes lie in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from worker.agents.output import encode
from worker.delivery.files import FileRef, Files
from worker.errors import Unavailable
from worker.executions.record import Execution

INLINE_BYTES = 32 * 1024
# No JSON begins with it, so a reference cannot be taken for a value.
_REFERENCE = b"@"
# Names under which a job remembers the files it wrote, and the values of `once`.
FILE, ONCE = "file:", "once:"


def pack(files: Files, value: bytes, *, name: str) -> bytes:
    """What to store for a JSON value: itself, or where it lies."""
    if len(value) <= INLINE_BYTES:
        return value
    return _REFERENCE + encode(asdict(files.put(value, name=name, mime="application/json")))


def measured(value: bytes, *, name: str) -> bytes:
    """The same for a value that only an event tells of: what is long is described, and stored nowhere."""
    if len(value) <= INLINE_BYTES:
        return value
    sha256 = hashlib.sha256(value).hexdigest()
    return _REFERENCE + encode(asdict(FileRef("", name, "application/json", len(value), sha256)))


def discard(files: Files, stored: bytes) -> None:
    """Removes the file of a value that was packed, and then kept by nobody."""
    ref = reference(stored)
    if ref is not None:
        remove(files, ref.key)


def remove(files: Files, key: str) -> None:
    """Removes a file that nobody wants, if that can be done now: nobody waits for it."""
    if key:
        with suppress(Unavailable):
            files.delete(key)


def unpack(files: Files, stored: bytes) -> Any:
    """The JSON value that was packed."""
    ref = reference(stored)
    return json.loads(stored if ref is None else read(files, ref))


def reference(stored: bytes) -> FileRef | None:
    return FileRef(**json.loads(stored[1:])) if stored.startswith(_REFERENCE) else None


def read(files: Files, ref: FileRef) -> bytes:
    return b"".join(files.open(ref.key))


def described(ref: FileRef) -> dict[str, Any]:
    """What may be shown of a file: all but the key that opens it."""
    return {"name": ref.name, "mime": ref.mime, "size": ref.size, "sha256": ref.sha256}


def files_of(execution: Execution, steps: Mapping[str, bytes]) -> set[str]:
    """The keys of all files that an execution has: what came in, what came out, what lies between."""
    result = execution.result
    found = [result.get("value_ref"), result.get("said_ref"), *result.get("files", ())]
    found.append(json.loads(execution.raw.get("input_ref") or b"null"))
    found += [json.loads(value) for name, value in steps.items() if name.startswith(FILE)]
    keys = {ref["key"] for ref in found if ref}
    packed = (" value", " args")
    values = [v for name, v in steps.items() if name.startswith((ONCE, "signal ")) or name.endswith(packed)]
    return keys | {ref.key for ref in map(reference, values) if ref is not None}
