"""Validates and describes the results of remote agents, in the same form as local ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from worker.capabilities.catalog import Catalog
from worker.core.json import encode
from worker.engine.output import OutputType, WorkResult, shape, store_value
from worker.engine.transitions import ExecutionStore
from worker.files.blobs import described, remove
from worker.files.store import Files
from worker.schemas.validators import CompiledSchemas, is_open, validate

# Applies a contract's own schema where that is safe; returns what is wrong, or None.
CheckOutput = Callable[[Any, Any], str | None]
INVALID = "OUTPUT_SCHEMA_INVALID"
# The only detail revealed about an output that breaks a schema: the seeker did not pay for it.
OUTPUT_UNFIT = "the output does not fit the promised schema"


class RemoteResults:
    """Validates and describes the results of remote agents."""

    def __init__(self, store: ExecutionStore, catalog: Catalog, files: Files, *, check: CheckOutput) -> None:
        self._store = store
        self._catalog = catalog
        self._files = files
        self._check = check
        self._validators = CompiledSchemas()

    def failed(self, message: str, code: str = "AGENT_FAILED") -> WorkResult:
        error = encode({"error": message, "code": code, "details": {}, "retryable": False})
        return WorkResult("failed", error=error, payload=error)

    def completed(self, output: Any) -> WorkResult:
        shaped = shape(output, [])
        text = shaped.type is OutputType.TEXT
        value, ref = store_value(self._files, output, encode(output), text=text)
        result: dict[str, Any] = {"type": shaped.type, "files": []}
        payload = b'{"output":' + (value or b"null")
        if ref is not None:
            result["value_ref"] = asdict(ref)
            payload += b',"output_file":' + encode(described(ref))
        key = ref.key if ref is not None else ""
        return WorkResult("completed", value, encode(result), b"", payload + b"}", key)

    def discard(self, outcome: WorkResult) -> None:
        """Deletes the file of a result that was not accepted."""
        remove(self._files, outcome.file)

    def problem(self, id: str, output: Any) -> str | None:
        """Returns what is wrong with the output if the capability or a contract has a schema for it."""
        execution = self._store.get(id)
        if execution is None:
            return None
        capability = self._catalog.get(execution.agent)
        if capability is not None and capability.output_schema:
            problems = validate(self._validators.get(capability.output_schema), output)
            if problems:
                return _describe(problems[0])
        schema = execution.context.get("output_schema") if execution.contract else None
        return None if is_open(schema) else self._check(schema, output)


def _describe(problem: Mapping[str, Any]) -> str:
    return f"the output does not fit its schema: {problem.get('field', '$')} is not {problem.get('expected')}"
