"""The files of one execution."""

from __future__ import annotations

import json
from collections.abc import Mapping

from worker.engine.record import Execution
from worker.engine.step_fields import is_file, is_packed
from worker.files.blobs import read, reference
from worker.files.store import FileRef, Files


def input_of(files: Files, execution: Execution) -> bytes:
    """Returns the input's JSON, from the record or from a file."""
    ref = execution.input_ref
    return read(files, FileRef(**json.loads(ref))) if ref else execution.input


def files_of(execution: Execution, steps: Mapping[str, bytes]) -> set[str]:
    """Returns the keys of all files of an execution: input, output and those of its steps."""
    result = execution.result
    found = [result.get("value_ref"), result.get("said_ref"), *result.get("files", ())]
    found.append(json.loads(execution.input_ref or b"null"))
    found += [json.loads(value) for name, value in steps.items() if is_file(name)]
    keys = {ref["key"] for ref in found if ref}
    packed = (reference(value) for name, value in steps.items() if is_packed(name))
    return keys | {ref.key for ref in packed if ref is not None}
