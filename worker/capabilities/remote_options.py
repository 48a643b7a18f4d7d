"""Reads remote agents declared in `worker.toml`: the options of `@agent`, by the same rules.

A schema is a table, or the path of a JSON file beside `worker.toml`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from worker.capabilities.declaration import Fault, agent_faults, schema_faults

REMOTE_OPTIONS = (
    "description",
    "input_schema",
    "output_schema",
    "example_input",
    "example_output",
    "inline",
    "stream",
    "settle",
    "attempts",
    "model",
    "tags",
    "version",
)
_SCHEMAS = ("input_schema", "output_schema")


def read_options(table: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], list[Fault]]:
    """Returns the options of this table in the form that `@agent` takes, and all errors in them."""
    options: dict[str, Any] = {}
    faults: list[Fault] = []
    for name in REMOTE_OPTIONS:
        if name not in table:
            continue
        value = table[name]
        if name in _SCHEMAS and isinstance(value, str):
            try:
                value = json.loads((folder / value).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                faults.append((name, value, f"a table, or a JSON file in {folder or Path('.')}"))
                continue
        options[name] = tuple(value) if name == "tags" and isinstance(value, list) else value
    faults += _faults(options)
    return options, faults


def _faults(options: Mapping[str, Any]) -> Iterator[Fault]:
    found = [*agent_faults("remote", options)]
    yield from found or schema_faults(options)
