"""The candidate output: an agent's result shaped to fit a kernel's schema, voting and size limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.core.errors import BadRequest, Problem
from worker.swarm import dialects, minimal_schema, serde
from worker.swarm.dialects import Dialect

MAX_OUTPUT_BYTES = 65_536
# The kernel nests the output several objects deep in events and in /verify; its parser stops at 127.
MAX_OUTPUT_DEPTH = 100
# The keys a kernel reads from an output for vote counting and cross-checks.
VOTED = ("answer", "decision", "confidence", "check_summary")


class AnswerRefused(Problem):
    """The agent's result cannot be sent as a candidate; the status depends on the request's dialect."""

    code = "INVALID_OUTPUT"
    status = 502
    message = "the answer does not fit the task"
    advice = "Run the task again, or change output_schema."


class ImpossibleSchema(BadRequest):
    """No answer can satisfy the task's output_schema."""

    code = "SCHEMA_UNSATISFIABLE"
    status = 422
    message = "no answer can satisfy output_schema"
    advice = "Correct task_contract.output_schema; the task was not run."


@dataclass(frozen=True, slots=True)
class AgentResult:
    """An agent's result: a value, a text, and further values under the voted names."""

    value: Any = None
    text: str | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


def require_possible(schema: Any) -> None:
    """Refuse a task before it runs if its schema contradicts itself."""
    why = minimal_schema.impossible(schema)
    if why is not None:
        raise ImpossibleSchema(
            f"no answer can satisfy output_schema: {why}", field="task_contract.output_schema", received=why
        )


def shape(result: AgentResult, schema: Any) -> Any:
    """Shape the agent's result into an output: invent nothing, add no key that the schema refuses."""
    value = integers(result.value, schema)
    if isinstance(value, dict):
        output = dict(value)
    else:
        plain = result.text if value is None else value
        # Only a schema that names a type asks for a bare value; voters read the keys of an object.
        named = isinstance(schema, dict) and isinstance(schema.get("type"), str)
        if named and not minimal_schema.check(plain, schema):
            return plain
        output = {} if value is None else {"answer": value}
    beside = {name: result.beside.get(name) for name in VOTED}
    if beside["answer"] is None:
        beside["answer"] = result.text
    for name, value in beside.items():
        if value is not None and name not in output and accepts(name, value, schema):
            output[name] = value
    return output


def integers(value: Any, schema: Any, depth: int = 0) -> Any:
    """Replace 1.0 by 1 where the schema asks for an integer: a kernel does not accept 1.0 as one."""
    if not isinstance(schema, dict) or depth > MAX_OUTPUT_DEPTH:
        return value
    if isinstance(value, dict) and isinstance(schema.get("properties"), dict):
        listed = schema["properties"]
        return {name: integers(each, listed.get(name), depth + 1) for name, each in value.items()}
    if isinstance(value, list) and "items" in schema:
        return [integers(each, schema["items"], depth + 1) for each in value]
    if isinstance(value, float) and schema.get("type") == "integer" and value.is_integer():
        return int(value) if serde.is_integer(int(value)) else value
    return value


def require_fit(output: Any, schema: Any, reading: Dialect) -> None:
    """Refuse an output that the kernel would reject after reading it with its own parser."""
    try:
        if serde.depth(output) > MAX_OUTPUT_DEPTH:
            raise _refused(
                reading, "the answer is nested too deeply", f"at most {MAX_OUTPUT_DEPTH} levels", None
            )
        held = serde.reread(serde.response(output))
    except serde.NotSerdeJson as exc:
        raise _refused(reading, f"the answer is not JSON: {exc.reason}", "JSON", None) from exc
    size = len(serde.compact(held))
    if size > MAX_OUTPUT_BYTES:
        raise _refused(reading, "the answer is too large", f"at most {MAX_OUTPUT_BYTES} bytes", size)
    wrong = minimal_schema.check(held, schema)
    if wrong:
        raise _refused(
            reading, f"the answer does not fit output_schema: {wrong[0]}", "output_schema", wrong[:3]
        )


def _refused(reading: Dialect, message: str, expected: str, received: Any) -> AnswerRefused:
    problem = AnswerRefused(message, field="candidate_output", expected=expected, received=received)
    problem.status = dialects.bad_answer_status(reading)
    return problem


def accepts(name: str, value: Any, schema: Any) -> bool:
    """Whether the schema lets a voted key be added to an object."""
    if name == "confidence" and not (serde.is_number(value) and math.isfinite(value)):
        return False
    if name != "confidence" and not isinstance(value, str):
        return False
    if not isinstance(schema, dict):
        return True
    properties = schema.get("properties")
    sub = properties.get(name) if isinstance(properties, dict) else None
    if sub is None:
        return schema.get("additionalProperties") is not False
    wanted = sub.get("type") if isinstance(sub, dict) else None
    return not isinstance(wanted, str) or minimal_schema.of_type(value, wanted)
