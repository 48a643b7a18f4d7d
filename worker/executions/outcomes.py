"""What a remote agent's work came to, checked and described as the work of a local one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from worker.agents.blobs import INLINE_BYTES, described, remove
from worker.agents.catalog import Catalog
from worker.agents.output import OutputType, encode, shape
from worker.contracts.schema import Validators, is_open, validate
from worker.delivery.files import FileRef, Files
from worker.executions.store import ExecutionStore

# Applies a contract's own schema where that can do no harm; says what is wrong, or None.
CheckOutput = Callable[[Any, Any], str | None]
INVALID = "OUTPUT_SCHEMA_INVALID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Ready to be sealed."""

    outcome: str
    output: bytes = b""
    result: bytes = b""
    error: bytes = b""
    payload: bytes = b""
    file: str = ""


class Outcomes:
    """Makes outcomes."""

    def __init__(self, store: ExecutionStore, catalog: Catalog, files: Files, *, check: CheckOutput) -> None:
        self._store = store
        self._catalog = catalog
        self._files = files
        self._check = check
        self._validators = Validators()

    def failed(self, message: str, code: str = "AGENT_FAILED") -> Outcome:
        error = encode({"error": message, "code": code, "details": {}, "retryable": False})
        return Outcome("failed", error=error, payload=error)

    def completed(self, output: Any) -> Outcome:
        made = shape(output, [])
        value, ref = encode(output), None
        if len(value) > INLINE_BYTES:
            ref = self._put(output, value, text=made.type is OutputType.TEXT)
            value = b""
        result: dict[str, Any] = {"type": made.type, "files": []}
        payload = b'{"output":' + (value or b"null")
        if ref is not None:
            result["value_ref"] = asdict(ref)
            payload += b',"output_file":' + encode(described(ref))
        key = ref.key if ref is not None else ""
        return Outcome("completed", value, encode(result), b"", payload + b"}", key)

    def discard(self, outcome: Outcome) -> None:
        """Nobody wanted it."""
        remove(self._files, outcome.file)

    def _put(self, output: Any, value: bytes, *, text: bool) -> FileRef:
        if text:
            return self._files.put(output.encode(), name="output.txt", mime="text/plain; charset=utf-8")
        return self._files.put(value, name="output.json", mime="application/json")

    def problem(self, id: str, output: Any) -> str | None:
        """What is wrong with the output, where the capability or a contract promised a shape."""
        execution = self._store.get(id)
        if execution is None:
            return None
        capability = self._catalog.get(execution.agent)
        if capability is not None and capability.output_schema:
            problems = validate(self._validators.get(capability.output_schema), output)
            if problems:
                return _told(problems[0])
        schema = execution.context.get("output_schema") if "contract" in execution.raw else None
        return None if is_open(schema) else self._check(schema, output)


def _told(problem: Mapping[str, Any]) -> str:
    return f"the output does not fit its schema: {problem.get('field', '$')} is not {problem.get('expected')}"
