"""Compares the register of error codes with the source."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from worker.core.error_codes import Charged, ErrorCode
from worker.core.errors import Problem
from worker.core.failure_codes import FAILED_EXECUTIONS, REGISTER
from worker.core.settings import Settings
from worker.doors.hire_views import _FAILED_STATUS
from worker.swarm.task import _GAVE_UP, _STATUS

ROOT = Path(__file__).parents[2]
CODES: dict[str, ErrorCode] = {each.code: each for group in REGISTER.values() for each in group}
REGISTERS = {"error_codes.py", "failure_codes.py"}

IN_CAPITALS = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*")
# Calls whose first argument is a code.
WITH_CODE = {"Failed", "failure", "_refusal", "OfferMismatch"}
# Upper-case words with an underscore that are neither codes nor settings.
NO_CODES = {
    "AUTHORIZATION_TOO_LONG",  # why an authorization is refused; callers get the x402 code
    "AUTHORIZATION_TOO_SHORT",
    "CHAT_API_KEY",  # the chat agent's own settings
    "CHAT_BASE_URL",
    "CHAT_MODEL",
    "CONTENT_LENGTH",  # WSGI's names of headers
    "CONTENT_TYPE",
    "DIVERGE_MODE",  # a mode of the swarm's tasks
    "GLIBC_TUNABLES",  # the C library's
    "MAX_CONTENT_LENGTH",  # Flask's
    "PATH_INFO",  # WSGI's
    "QUERY_STRING",
    "RAW_URI",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "REQUEST_METHOD",
    "SCRIPT_NAME",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "MAX_SIZE",
    "FACILITATOR_GAS_KEY",
    "LOCAL_GAS_KEY",
    "LOCAL_SEEKER_KEY",
    "SEEKER_KEY",
    "TOOL_TEXT",  # the purse's text for models
    "WORKER_CHECKPOINTS",
}
# Failures that only a contract causes; a swarm task has none of them.
ONLY_HIRED = {"DEADLINE_MISSED", "PAYMENT_MISSING", "SLA_TIMEOUT"}


def source() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "worker").rglob("*.py")):
        if path.name not in REGISTERS:
            yield path, ast.parse(path.read_text())


def codes_in(node: ast.AST | None) -> Iterator[str]:
    """Yield upper-case literals in an expression, such as both arms of a conditional."""
    for part in ast.walk(node) if node is not None else ():
        value = part.value if isinstance(part, ast.Constant) else None
        if isinstance(value, str) and IN_CAPITALS.fullmatch(value):
            yield value


def code_places(node: ast.AST) -> Iterator[ast.AST | None]:
    """Yield the expressions of a node that are used as a code."""
    match node:
        case ast.Call():
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "code")
            yield node.args[0] if name in WITH_CODE and node.args else None
        case ast.Assign(targets=[ast.Name(id="code")]):
            yield node.value
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            yield from (value for name, value in _paired(names, values) if getattr(name, "id", "") == "code")
        case ast.Dict():
            pairs = _paired(node.keys, node.values)
            yield from (value for key, value in pairs if getattr(key, "value", None) == "code")
        case ast.arguments():
            plain = [*node.posonlyargs, *node.args]
            pairs = [
                *_paired(plain[len(plain) - len(node.defaults) :], node.defaults),
                *_paired(node.kwonlyargs, node.kw_defaults),
            ]
            yield from (value for name, value in pairs if name.arg == "code")


def _paired(names: Sequence[Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    return list(zip(names, values, strict=True))


def used_as_codes() -> set[str]:
    places = (place for _, tree in source() for node in ast.walk(tree) for place in code_places(node))
    return {code for place in places for code in codes_in(place)}


def in_capitals() -> set[str]:
    return {word for _, tree in source() for word in codes_in(tree)}


def problem_classes() -> list[type[Problem]]:
    """Return every Problem class of the worker that has its own code."""
    for path, tree in source():
        if any(isinstance(node, ast.ClassDef) and "code" in _class_names(node) for node in tree.body):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found: list[type[Problem]] = [Problem]
    for each in found:
        found.extend(kind for kind in each.__subclasses__() if kind.__module__.startswith("worker."))
    return found


def _class_names(node: ast.ClassDef) -> set[str]:
    targets = [target for line in node.body if isinstance(line, ast.Assign) for target in line.targets]
    return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}


def test_every_code_in_the_source_is_registered() -> None:
    """A literal used as a code has an entry."""
    used = used_as_codes()
    assert {
        "INVALID_INPUT",
        "PRICE_TOO_LOW",
        "AGENT_FAILED",
        "SERVICE_UNAVAILABLE",
        "PAYMENT_INVALID",
    } <= used
    assert used - CODES.keys() == set()


def test_unregistered_capital_words_are_not_codes() -> None:
    """Every upper-case word is registered, a setting, or listed above."""
    words = {word for word in in_capitals() if "_" in word}
    words = {word for word in words if not word.startswith("HTTP_")}  # WSGI's names of headers
    assert words - CODES.keys() - set(Settings.names()) - NO_CODES == set()
    assert words >= NO_CODES


def test_every_registered_code_is_used() -> None:
    """A code that the source no longer uses must be removed from the register."""
    assert CODES.keys() - in_capitals() == set()


def test_every_code_has_one_entry() -> None:
    """A code has the same meaning everywhere."""
    rows = Counter(each.code for group in REGISTER.values() for each in group)
    assert [code for code, count in rows.items() if count > 1] == []


@pytest.mark.parametrize("code", CODES)
def test_register_entries_are_complete(code: str) -> None:
    """An entry has statuses, a meaning and an advice."""
    row = CODES[code]
    assert row.statuses and all(400 <= status < 600 for status in row.statuses)
    for text in (row.meaning, row.advice):
        assert text[0].isupper() or text[0] == "`" or text.split()[0].isidentifier()
        assert text.endswith(".")


def test_statuses_of_classes_are_registered() -> None:
    """The entry of each problem class allows its status, and its unknown charge."""
    classes = problem_classes()
    assert len({kind.code for kind in classes}) > 50
    for kind in classes:
        row = CODES[kind.code]
        assert kind.status in row.statuses, kind
        assert kind.charged is False or row.charged is not Charged.NEVER, kind


def test_statuses_of_literal_codes_are_registered() -> None:
    """`code=` and `status=` of one call match an entry."""
    found = 0
    for _, tree in source():
        for node in ast.walk(tree):
            words = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
            status = getattr(words.get("status"), "value", None)
            for code in codes_in(words.get("code")) if isinstance(status, int) else ():
                assert status in CODES[code].statuses, code
                found += 1
    assert found > 5


def test_statuses_of_failed_executions_are_registered() -> None:
    """A failed execution is answered with a status of its entry, at the HIRE and at the swarm door."""
    assert _FAILED_STATUS.keys() | _STATUS.keys() <= CODES.keys()
    for row in FAILED_EXECUTIONS:
        assert _FAILED_STATUS.get(row.code, 500) in row.statuses, row.code
        if row.code in ONLY_HIRED:
            continue
        swarm = {"CANCELLED": 409, **_STATUS}.get(row.code, _GAVE_UP)
        assert swarm in row.statuses or (swarm == _GAVE_UP and 503 in row.statuses), row.code
