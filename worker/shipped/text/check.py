"""Whether a value satisfies a stranger's schema, in bounded time.

Patterns run on RE2, references stay inside the schema, and every keyword evaluated is counted, so that
neither a clever pattern nor a nest of anyOf can hold the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MAX_STEPS = 40_000
MAX_PARTS = 4_000
MAX_PATTERN = 1_000


class _BudgetSpent(Exception):
    """The schema takes more steps than we give it."""


def satisfies(value: Any, schema: Any) -> bool:
    """True only when the validator says so; a schema that is broken or too costly is not satisfied."""
    return sound(schema) and Checker().holds(value, schema)


def sound(schema: Any) -> bool:
    """Whether this is a schema of reasonable size whose keywords have values of the right kind."""
    from jsonschema import exceptions, validators

    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or not _bounded(schema):
        return False
    try:
        validators.validator_for(schema, default=validators.Draft202012Validator).check_schema(schema)
    except (exceptions.SchemaError, RecursionError, TypeError, AttributeError):
        return False
    return True


def matches(pattern: Any, text: str) -> bool:
    """Whether a schema's pattern is found in the text; one that RE2 cannot read matches nothing."""
    import re2

    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
        return False
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).search(text) is not None
    except (re2.error, UnicodeEncodeError):
        return False


class Checker:
    """Checks values against sound schemas; all its verdicts together have one number of steps to spend."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def holds(self, value: Any, schema: Any) -> bool:
        from jsonschema import exceptions, validators
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        try:
            base = validators.validator_for(schema, default=validators.Draft202012Validator)
            counted = {name: self._counting(keyword) for name, keyword in base.VALIDATORS.items()}
            counted["pattern"] = self._counting(_pattern)
            bounded = validators.extend(base, validators=counted)  # type: ignore[no-untyped-call]
            return bool(bounded(schema, registry=Registry()).is_valid(value))
        except (
            exceptions.UnknownType,
            Unresolvable,
            RecursionError,
            _BudgetSpent,
            TypeError,
            AttributeError,
            ArithmeticError,
        ):
            return False

    def _counting(self, keyword: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            self.left -= 1
            if self.left < 0:
                raise _BudgetSpent
            yield from keyword(validator, value, instance, schema) or ()

        return counted


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not matches(pattern, instance):
        yield ValidationError("does not match")


def _bounded(schema: Any) -> bool:
    """Few enough parts, and no patternProperties: those would run on Python's backtracking engine."""
    queue = [schema]
    parts = 0
    while queue:
        item = queue.pop()
        parts += 1
        if parts > MAX_PARTS:
            return False
        if isinstance(item, dict):
            if "patternProperties" in item:
                return False
            queue.extend(item.values())
        elif isinstance(item, list):
            queue.extend(item)
    return True
