"""Validates contracts and manifests, and bounds untrusted schemas.

Our own two schemas are compiled once per process. A web process only measures an untrusted schema
(`bound_schema`); compiling and applying it may take seconds or hang in a regular expression, so
`compile_schema`, `validate` and `CompiledSchemas` belong in work processes under a time limit.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from threading import Lock
from typing import Any

import referencing
from jsonschema import FormatChecker, validators
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from worker.core.canonical import canonical, digest
from worker.core.errors import BadRequest, Problem
from worker.core.fields import field_path, parse_time, shown
from worker.core.nesting import bounded_recursion
from worker.data import SCHEMAS

MAX_SCHEMA_BYTES = 32 * 1024
MAX_SCHEMA_DEPTH = 64
# Compile time grows with the number of possible subschemas, and with references times anchors.
MAX_SUBSCHEMAS = 1_500
MAX_REFERENCES = 200
MAX_VIOLATIONS = 20

_DIALECTS = {
    "https://json-schema.org/draft/2020-12/schema": validators.Draft202012Validator,
    "https://json-schema.org/draft/2019-09/schema": validators.Draft201909Validator,
    "http://json-schema.org/draft-07/schema": validators.Draft7Validator,
    "http://json-schema.org/draft-06/schema": validators.Draft6Validator,
    "http://json-schema.org/draft-04/schema": validators.Draft4Validator,
}
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
# Errors that a hostile schema can cause in the validator. Not Exception: a time limit must pass through.
_BREAKS = (Unresolvable, RecursionError, re.error, ValueError, TypeError, LookupError, ArithmeticError)

_EXPECTED = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
    "pattern": "text that matches {}",
    "const": "{}",
}
_EXPECTED_PLAIN = {
    "uniqueItems": "unique items",
    "additionalProperties": "no other properties",
    "unevaluatedProperties": "no other properties",
    "additionalItems": "no further items",
    "unevaluatedItems": "no further items",
    "contains": "an item that matches the schema",
    "anyOf": "one of the alternatives",
    "oneOf": "exactly one of the alternatives",
    "not": "something else",
}


class SchemaRefused(Problem):
    """An untrusted schema that we neither compile nor sign."""

    code, status = "SCHEMA_REFUSED", 422
    message = "the schema is not supported"
    advice = "Send a smaller, self-contained JSON Schema, or {} for none. You were not charged."


def check_contract(doc: Any, draft: bool) -> None:
    """Refuse a malformed contract; a draft needs no id, signatures or hash."""
    _refuse_unless_valid(_ours("contract.json", "draft" if draft else None), doc, "the contract is malformed")


def check_manifest(doc: Any) -> None:
    """Refuse a malformed agent manifest."""
    _refuse_unless_valid(_ours("agent-manifest.json", None), doc, "the manifest is malformed")


def is_open(schema: Any) -> bool:
    """Whether the schema accepts everything: absent, `true` or `{}`."""
    return schema is None or schema is True or schema == {}


def bound_schema(schema: Any, *, field: str = "schema") -> None:
    """Refuse a schema for its size, depth, dialect or references, without compiling it."""
    if is_open(schema):
        return
    if not isinstance(schema, dict):
        raise SchemaRefused(field=field, expected="a JSON Schema object", received=shown(schema))
    for way, key, value in _members(schema, field):
        if key in _REFERENCES and isinstance(value, str) and not value.startswith("#"):
            raise SchemaRefused(
                "the schema refers to another document",
                field=_join(field, _path(way, key)),
                expected="a reference that begins with #",
                received=shown(value),
            )
        if key == "$schema" and _dialect(value) is None:
            raise SchemaRefused(
                "the schema's dialect is unknown",
                field=_join(field, _path(way, key)),
                expected=list(_DIALECTS),
                received=shown(value),
            )
        if key == "$id" and way is not None and isinstance(value, str):
            # A nested $id would change the base of references that begin with #.
            raise SchemaRefused("only the whole schema may have an $id", field=_join(field, _path(way, key)))
    _bound_parts(schema, field)
    size = len(canonical(schema))
    if size > MAX_SCHEMA_BYTES:
        raise SchemaRefused(
            "the schema is too large",
            field=field,
            expected=f"at most {MAX_SCHEMA_BYTES} bytes",
            received=size,
        )


def _bound_parts(schema: dict[str, Any], field: str) -> None:
    """Refuse a schema with so many parts that compiling it would take too long."""
    parts = references = 0
    for _, key, value in _members(schema, field):
        parts += 1 + sum(isinstance(item, dict | bool) for item in value) if isinstance(value, list) else 1
        references += key in _REFERENCES
    for found, most, name in ((parts, MAX_SUBSCHEMAS, "parts"), (references, MAX_REFERENCES, "references")):
        if found > most:
            raise SchemaRefused(
                f"the schema has too many {name}", field=field, expected=f"at most {most}", received=found
            )


def compile_schema(schema: Any, *, field: str = "schema") -> Validator:
    """A validator that fetches nothing and asserts no formats. Use only in a work process."""
    bound_schema(schema, field=field)
    if is_open(schema):
        return validators.Draft202012Validator(True)
    dialect = _dialect(schema.get("$schema")) or validators.Draft202012Validator
    try:
        with bounded_recursion():
            dialect.check_schema(schema)
    except SchemaError as fault:
        raise SchemaRefused(
            "the schema is not valid JSON Schema",
            field=_join(field, fault.absolute_path),
            expected=_expected(fault),
            received=shown(fault.instance),
        ) from fault
    except _BREAKS as fault:
        raise SchemaRefused("the schema does not compile", field=field) from fault
    _check_references(schema, field)
    compiled: Validator = dialect(schema, registry=referencing.Registry())
    return compiled


def validate(validator: Validator, value: Any) -> list[dict[str, Any]]:
    """Up to twenty violations, each with field, expected and received; empty if the value is valid."""
    try:
        with bounded_recursion():
            errors = list(islice(validator.iter_errors(value), 5 * MAX_VIOLATIONS))
    except _BREAKS as fault:
        raise SchemaRefused("the schema cannot be applied to this value") from fault
    found: dict[str, dict[str, Any]] = {}
    for error in sorted(errors, key=_place):
        for violation in _violations(error):
            found.setdefault(violation["field"], violation)
    return list(found.values())[:MAX_VIOLATIONS]


class CompiledSchemas:
    """LRU cache of compiled schemas by digest."""

    def __init__(self, max: int = 256) -> None:
        self._max = max
        self._kept: OrderedDict[str, Validator] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, schema: Any, *, field: str = "schema") -> Validator:
        """The validator of this schema, compiled now or cached."""
        bound_schema(schema, field=field)
        key = digest(schema)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        compiled = compile_schema(schema, field=field)
        with self._lock:
            self._kept[key] = compiled
            while len(self._kept) > self._max:
                self._kept.popitem(last=False)
        return compiled


# Path to an object: its parent's path and the key or index there; None for the root.
Way = tuple[Any, str | int] | None


def _members(schema: dict[str, Any], field: str) -> Iterator[tuple[Way, str, Any]]:
    """Every key of every object in the schema with the path to that object, bounded in depth."""
    pending: list[tuple[Way, int, Any]] = [(None, 0, schema)]
    while pending:
        way, depth, found = pending.pop()
        if depth >= MAX_SCHEMA_DEPTH:
            raise SchemaRefused(
                "the schema is nested too deeply", field=field, expected=f"at most {MAX_SCHEMA_DEPTH} levels"
            )
        items: Iterable[tuple[str | int, Any]]
        if isinstance(found, dict):
            items = found.items()
            for key, value in found.items():
                yield way, key, value
        else:
            items = enumerate(found)
        pending.extend(
            ((way, key), depth + 1, value) for key, value in items if isinstance(value, dict | list)
        )


def _path(way: Way, key: str) -> list[str | int]:
    path: list[str | int] = [key]
    while way is not None:
        way, step = way
        path.append(step)
    return path[::-1]


def _check_references(schema: dict[str, Any], field: str) -> None:
    """Refuse unresolvable references before the schema is used."""
    root = referencing.Resource.from_contents(schema, default_specification=DRAFT202012)
    resolver = referencing.Registry().resolver_with_root(root)
    for way, key, value in _members(schema, field):
        if key not in _REFERENCES or not isinstance(value, str):
            continue
        try:
            resolver.lookup(value)
        except _BREAKS as fault:
            raise SchemaRefused(
                "the schema refers to a place it does not have",
                field=_join(field, _path(way, key)),
                received=shown(value),
            ) from fault


def _dialect(name: Any) -> Any:
    return _DIALECTS.get(name.removesuffix("#")) if isinstance(name, str) else None


@cache
def _ours(file: str, part: str | None) -> Validator:
    """One of our own schemas, or a definition inside it, with formats asserted."""
    schema = json.loads((SCHEMAS / file).read_text("utf-8"))
    if part is not None:
        schema = {"$schema": schema["$schema"], "$defs": schema["$defs"], "$ref": f"#/$defs/{part}"}
    # Python's $ also matches before a final newline; our patterns must match the whole text.
    extend: Any = validators.extend
    strict = extend(validators.Draft202012Validator, {"pattern": _whole_pattern})
    compiled: Validator = strict(schema, registry=referencing.Registry(), format_checker=_formats())
    return compiled


def _whole_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not re.fullmatch(pattern, instance):
        yield ValidationError("pattern")


def _formats() -> FormatChecker:
    checker = FormatChecker(formats=())

    @checker.checks("date-time", raises=BadRequest)
    def _date_time(value: Any) -> bool:
        return not isinstance(value, str) or parse_time(value, "$") is not None

    @checker.checks("uri")
    def _uri(value: Any) -> bool:
        return not isinstance(value, str) or re.fullmatch(r"https?://[!-~]+", value) is not None

    @checker.checks("email")
    def _email(value: Any) -> bool:
        return not isinstance(value, str) or re.fullmatch(r"[!-?A-~]+@[!-?A-~]+", value) is not None

    return checker


def _refuse_unless_valid(validator: Validator, doc: Any, message: str) -> None:
    violations = validate(validator, doc)
    if violations:
        refusal = BadRequest(message, **violations[0])
        if len(violations) > 1:
            refusal.details["violations"] = violations
        raise refusal


def _violations(error: ValidationError) -> Iterator[dict[str, Any]]:
    path = list(error.absolute_path)
    asked: Any = error.validator_value
    if error.validator == "required" and isinstance(error.instance, dict):
        for name in asked:
            if name not in error.instance:
                yield {"field": field_path([*path, name]), "expected": "a value", "received": "nothing"}
        return
    yield {"field": field_path(path), "expected": _expected(error), "received": shown(error.instance)}


def _place(error: ValidationError) -> list[tuple[int, str]]:
    return [(part, "") if isinstance(part, int) else (-1, part) for part in error.absolute_path]


def _expected(error: ValidationError | SchemaError) -> Any:
    """What the failed keyword expects, in our own wording."""
    keyword, asked = str(error.validator), error.validator_value
    if keyword == "type":
        return " or ".join(asked) if isinstance(asked, list) else str(asked)
    if keyword == "enum" and isinstance(asked, list):
        return [shown(value) for value in asked[:MAX_VIOLATIONS]]
    if keyword == "format":
        return f"a {asked}"
    if keyword in _EXPECTED:
        return _EXPECTED[keyword].format(shown(asked))
    return _EXPECTED_PLAIN.get(keyword, f"what {shown(keyword)} asks for")


def _join(field: str, path: Iterable[str | int]) -> str:
    inner = field_path(path)
    if inner == "$":
        return field
    return f"{field}{inner}" if inner.startswith("[") else f"{field}.{inner}"
