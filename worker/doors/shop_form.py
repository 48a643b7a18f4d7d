"""The form in which a visitor enters a capability's input: fields from its schema and example, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.capabilities.declare import Capability
from worker.core.canonical import parse
from worker.core.errors import InvalidInput, Problem

# The field of a form whose input is one JSON text.
WHOLE = "input"
_PREFIX = "field."
# Texts that may be this long get several lines.
_LONG = 120
_TRUE = "true"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field; `kind` is text, long, number, flag, choice, list (one entry a line) or json."""

    name: str
    kind: str
    value: str
    required: bool
    hint: str = ""
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Its name in the form."""
        return self.name if self.name == WHOLE and self.kind == "json" else _PREFIX + self.name

    @property
    def id(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.key)

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").replace("-", " ").capitalize()


def fields_of(capability: Capability, given: Mapping[str, str] | None = None) -> list[FormField]:
    """The form of a capability, filled with its example or with what a visitor sent before."""
    example = capability.example_input
    properties = _properties(capability)
    if not properties:
        shown = json.dumps(example if example is not None else {}, indent=2, ensure_ascii=False)
        return [FormField(WHOLE, "json", (given or {}).get(WHOLE, shown), True, "JSON")]
    required = set((capability.input_schema or {}).get("required", ()))
    made = [
        _field(name, rule, example.get(name) if isinstance(example, dict) else None, name in required, given)
        for name, rule in properties.items()
    ]
    return sorted(made, key=lambda each: not each.required)


def read_form(capability: Capability, form: Mapping[str, str]) -> Any:
    """The input that a visitor sent; fields left empty are left out."""
    fields = fields_of(capability, form)
    if fields[0].key == WHOLE:
        return _json(WHOLE, form.get(WHOLE, ""))
    found: dict[str, Any] = {}
    for each in fields:
        text = form.get(each.key, "")
        if text.strip() or (each.required and each.kind in ("text", "long")):
            found[each.name] = _value(each, text)
    return found


def _properties(capability: Capability) -> dict[str, Any]:
    """The input's properties: those of the schema, then others that the example has."""
    schema, example = capability.input_schema or {}, capability.example_input
    declared = schema.get("properties")
    named = dict(declared) if isinstance(declared, Mapping) else {}
    if isinstance(example, dict) and (not named or schema.get("additionalProperties", True) is not False):
        named |= {name: {} for name in example if name not in named}
    return named


def _field(name: str, rule: Any, example: Any, required: bool, given: Mapping[str, str] | None) -> FormField:
    rule = rule if isinstance(rule, Mapping) else {}
    kind = _kind(rule, example)
    value = _shown(kind, example)
    if given is not None:
        value = given.get(_PREFIX + name, "")
    choices = tuple(map(str, rule.get("enum", ()))) if kind == "choice" else ()
    return FormField(name, kind, value, required, _hint(kind, rule), choices)


def _kind(rule: Mapping[str, Any], example: Any) -> str:
    declared = rule.get("type")
    if isinstance(rule.get("enum"), list) and all(isinstance(each, str) for each in rule["enum"]):
        return "choice"
    if declared == "string" or (declared is None and isinstance(example, str)):
        text = example if isinstance(example, str) else ""
        return "long" if "\n" in text or len(text) > 60 or rule.get("maxLength", 0) > _LONG else "text"
    if declared == "boolean" or isinstance(example, bool):
        return "flag"
    if declared in ("number", "integer") or isinstance(example, int | float):
        return "number"
    items = rule.get("items")
    texts = isinstance(items, Mapping) and items.get("type") == "string"
    if declared == "array" and texts:
        return "list"
    return "json"


def _shown(kind: str, example: Any) -> str:
    if example is None:
        return ""
    if kind == "list":
        return "\n".join(example)
    if kind in ("text", "long", "choice"):
        return str(example)
    return json.dumps(example, ensure_ascii=False, indent=2)


def _hint(kind: str, rule: Mapping[str, Any]) -> str:
    items = rule.get("items")
    if kind == "list":
        title = items.get("title") if isinstance(items, Mapping) else None
        return f"one {title} per line" if title else "one per line"
    if kind == "json":
        return "JSON"
    described = rule.get("description")
    return described if isinstance(described, str) else ""


def _value(field: FormField, text: str) -> Any:
    # Browsers send line ends as CR LF.
    text = text.replace("\r\n", "\n")
    if field.kind in ("text", "long", "choice"):
        return text
    if field.kind == "list":
        return [line.strip() for line in text.splitlines() if line.strip()]
    if field.kind == "flag":
        return text == _TRUE
    return _json(field.name, text)


def _json(name: str, text: str) -> Any:
    try:
        return parse(text.encode())
    except Problem as refused:
        raise InvalidInput("this field is not valid JSON", field=name, expected="JSON") from refused
