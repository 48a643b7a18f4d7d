"""The part of JSON Schema that a kernel checks: top-level type, required keys, types of listed properties.

The rest of a schema is ignored, so that our "passed" can never contradict the kernel's own check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.swarm import serde

_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
    "number": serde.is_number,
    "integer": serde.is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, (list, tuple)),
    "null": lambda value: value is None,
}
TYPES = tuple(_TYPES)


def check(value: Any, schema: Any) -> list[str]:
    """List everything that makes the value invalid, in plain words; empty means valid."""
    if not isinstance(schema, dict):
        return ["output_schema must be a JSON object"]
    wrong: list[str] = []
    wanted = schema.get("type")
    if isinstance(wanted, str) and not of_type(value, wanted):
        wrong.append(f"the output must be of type {_shown(wanted)}")
    required = schema.get("required")
    if isinstance(required, list):
        if isinstance(value, dict):
            wrong += [
                f"required key {_shown(key)} is missing"
                for key in required
                if isinstance(key, str) and key not in value
            ]
        else:
            wrong.append("required keys need an output that is an object")
    properties = schema.get("properties")
    if isinstance(properties, dict) and isinstance(value, dict):
        for key, sub in properties.items():
            if key in value and isinstance(sub, dict):
                wanted = sub.get("type")
                if isinstance(wanted, str) and not of_type(value[key], wanted):
                    wrong.append(f"key {_shown(key)} must be of type {_shown(wanted)}")
    return wrong


def of_type(value: Any, name: str) -> bool:
    """Whether the value is of the named type; nothing is of an unknown type."""
    test = _TYPES.get(name)
    return test is not None and test(value)


def impossible(schema: Any) -> str | None:
    """Why no output can fit this schema, or None."""
    if not isinstance(schema, dict):
        return "output_schema must be a JSON object"
    wanted = schema.get("type")
    if isinstance(wanted, str) and wanted not in _TYPES:
        return f"type {_shown(wanted)} does not exist"
    required = schema.get("required")
    if not isinstance(required, list):
        return None
    if isinstance(wanted, str) and wanted != "object":
        return f"required keys need an object, but type is {_shown(wanted)}"
    properties = schema.get("properties")
    for key in required:
        sub = properties.get(key) if isinstance(properties, dict) and isinstance(key, str) else None
        name = sub.get("type") if isinstance(sub, dict) else None
        if isinstance(name, str) and name not in _TYPES:
            return f"required key {_shown(key)} has type {_shown(name)}, which does not exist"
    return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
