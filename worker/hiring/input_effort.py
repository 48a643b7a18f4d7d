"""Bounds the cost of validating untrusted input against our own schemas in the web process.

The cost is the number of keywords evaluated, so the result for a value does not depend on the machine.
`uniqueItems` compares canonical texts, because the library compares every pair of objects.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jsonschema import ValidationError, validators
from jsonschema.protocols import Validator
from referencing import Registry

from worker.capabilities.declare import Capability
from worker.core.canonical import canonical
from worker.core.errors import TooLarge
from worker.hiring.task import TaskInput
from worker.schemas.validators import compile_schema, validate

# About 15 ms.
MOST_STEPS = 5_000
# Valid bodies that are kept for each capability, and the bytes of the longest.
_MOST_KEPT, _LONGEST_KEPT = 128, 1_024

_left: ContextVar[int] = ContextVar("steps_left")
_extend: Any = validators.extend
Keyword = Callable[[Any, Any, Any, Any], Any]


class _TooMuch(Exception):
    """The value needs more steps than allowed."""


class BoundedCheck:
    """One capability's input schema with a bound on the validation cost."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        # Bodies that were valid.
        self.passed: OrderedDict[bytes, None] = OrderedDict()
        plain = compile_schema(schema)
        self._validator: Validator = plain
        # An open schema has no keywords to count.
        if isinstance(plain.schema, dict):
            dialect: Any = type(plain)
            keywords = {name: _counted(keyword) for name, keyword in dialect.VALIDATORS.items()}
            keywords["uniqueItems"] = _counted(_unique)
            extended: Any = _extend(dialect, keywords)
            self._validator = extended(plain.schema, registry=Registry())

    def remember(self, raw: bytes) -> None:
        """Keeps a valid body, if it is short."""
        if len(raw) <= _LONGEST_KEPT:
            self.passed[raw] = None
        if len(self.passed) > _MOST_KEPT:
            self.passed.popitem(last=False)

    def problems(self, value: Any) -> list[dict[str, Any]]:
        """Returns the value's violations; raises TooLarge if the check exceeds its step limit."""
        steps = _left.set(MOST_STEPS)
        try:
            return validate(self._validator, value)
        except _TooMuch:
            raise TooLarge(
                "the input has too many values for its schema to be checked", expected="fewer values"
            ) from None
        finally:
            _left.reset(steps)


class BoundedChecks:
    """One check per capability, rebuilt when its schema changes."""

    def __init__(self) -> None:
        self._kept: dict[str, BoundedCheck] = {}

    def problems(self, capability: Capability, body: TaskInput) -> list[dict[str, Any]]:
        """Returns the violations of the body as input of this capability; refuses what is not JSON.

        A short body that was valid is not checked again, such as when its payment arrives.
        """
        schema = capability.input_schema or {}
        check = self._kept.get(capability.name)
        if check is None or check.schema != schema:
            check = self._kept[capability.name] = BoundedCheck(schema)
        if body.raw in check.passed:
            return []
        problems = check.problems(body.value)
        if not problems:
            check.remember(body.raw)
        return problems


def _counted(keyword: Keyword) -> Keyword:
    def check(validator: Any, asked: Any, instance: Any, schema: Any) -> Any:
        left = _left.get() - 1
        if left < 0:
            raise _TooMuch
        _left.set(left)
        return keyword(validator, asked, instance, schema)

    return check


def _unique(validator: Any, asked: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if asked and isinstance(instance, list) and len({canonical(item) for item in instance}) < len(instance):
        yield ValidationError("not unique")
