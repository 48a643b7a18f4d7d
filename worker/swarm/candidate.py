"""The candidate output: an agent's result in the shape that a kernel's schema, voting and size limit take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.errors import BadRequest, Problem
from worker.swarm import minimal_schema, readings, serde
from worker.swarm.readings import Reading

MAX_OUTPUT_BYTES = 65_536
# The kernel wraps the output several objects deep in events and in /verify, and its parser stops at 127.
MAX_OUTPUT_DEPTH = 100
# What a kernel reads from an output when it counts votes and cross-checks.
VOTED = ("answer", "decision", "confidence", "check_summary")


class AnswerRefused(Problem):
    """The agent's answer cannot be sent as a candidate; the status depends on the request's reading."""

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
class Said:
    """An agent's result: a value, a text, and what it says beside them under the voted names."""

    value: Any = None
    text: str | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


def require_possible(schema: Any) -> None:
    """Refuse a task before it runs when its schema contradicts itself."""
    why = minimal_schema.impossible(schema)
    if why is not None:
        raise ImpossibleSchema(
            f"no answer can satisfy output_schema: {why}", field="task_contract.output_schema", received=why
        )


def shape(said: Said, schema: Any) -> Any:
    """An output of what the agent gave: nothing is invented, no key is added that the schema refuses."""
    if isinstance(said.value, dict):
        output = dict(said.value)
    else:
        plain = said.text if said.value is None else said.value
        # Only a schema that names a type asks for a bare value; voters read the keys of an object.
        named = isinstance(schema, dict) and isinstance(schema.get("type"), str)
        if named and not minimal_schema.check(plain, schema):
            return plain
        output = {} if said.value is None else {"answer": said.value}
    beside = {name: said.beside.get(name) for name in VOTED}
    if beside["answer"] is None:
        beside["answer"] = said.text
    for name, value in beside.items():
        if value is not None and name not in output and _welcome(name, value, schema):
            output[name] = value
    return output


def require_fit(output: Any, schema: Any, reading: Reading) -> None:
    """Refuse an output that the kernel, holding it as its own parser reads it, would not accept."""
    try:
        if serde.depth(output) > MAX_OUTPUT_DEPTH:
            raise _refused(
                reading, "the answer is nested too deep", f"at most {MAX_OUTPUT_DEPTH} levels", None
            )
        held = serde.reread(serde.response(output))
    except serde.NotJson as exc:
        raise _refused(reading, f"the answer is not JSON: {exc.reason}", "JSON", None) from exc
    size = len(serde.compact(held))
    if size > MAX_OUTPUT_BYTES:
        raise _refused(reading, "the answer is too large", f"at most {MAX_OUTPUT_BYTES} bytes", size)
    wrong = minimal_schema.check(held, schema)
    if wrong:
        raise _refused(
            reading, f"the answer does not fit output_schema: {wrong[0]}", "output_schema", wrong[:3]
        )


def _refused(reading: Reading, message: str, expected: str, received: Any) -> AnswerRefused:
    problem = AnswerRefused(message, field="candidate_output", expected=expected, received=received)
    problem.status = readings.bad_answer_status(reading)
    return problem


def _welcome(name: str, value: Any, schema: Any) -> bool:
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
