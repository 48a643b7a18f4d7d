"""Rules about names: imported or assigned for nothing, never defined, defined twice, hiding builtins."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import lru_cache

from worker.shipped.review.rules import rule
from worker.shipped.review.scopes import Names, Scope, resolve
from worker.shipped.review.source import FUNCTIONS, SourceCode, bodies, own, short

Hits = Iterator[tuple[int, str]]

_BUILTINS = frozenset(dir(builtins)) | {
    "__file__",
    "__name__",
    "__doc__",
    "__spec__",
    "__package__",
    "__path__",
    "__loader__",
    "__builtins__",
    "__annotations__",
    "__class__",
    "__module__",
    "__qualname__",
    "WindowsError",
}
_HIDEABLE = frozenset(name for name in dir(builtins) if name[0].islower())
_SNAKE = re.compile(r"_*[a-z0-9_]*_*")
_CAPS = re.compile(r"_*[A-Z][A-Za-z0-9]*")


@lru_cache(maxsize=1)
def names_of(source: SourceCode) -> Names:
    """Resolved once per source, by whichever rule comes first."""
    return resolve(source)


@rule("unused-import", "warning", "unused")
def unused_import(source: SourceCode) -> Hits:
    optional = _optional_lines(source)
    for scope in names_of(source).scopes:
        for name, found in scope.bindings.items():
            first = found[0]
            if first.kind != "import" or name in scope.used or name == "_" or first.line in optional:
                continue
            yield first.line, f"`{short(name)}` is imported but never used"


@rule("unused-variable", "warning", "unused")
def unused_variable(source: SourceCode) -> Hits:
    for scope in names_of(source).scopes:
        if scope.kind != "function" or _reads_everything(scope):
            continue
        for name, found in scope.bindings.items():
            kinds = {binding.kind for binding in found}
            if name in scope.used or name.startswith("_") or not kinds <= {"assign", "with", "except"}:
                continue
            yield found[0].line, f"`{short(name)}` is assigned but never used"


@rule("undefined-name", "error", "bugs")
def undefined_name(source: SourceCode) -> Hits:
    names = names_of(source)
    if names.star or any(source.dotted(call.func) in {"globals", "vars"} for call in source.nodes(ast.Call)):
        return
    guarded = _guarded_lines(source)
    for name, line in names.unresolved:
        if name not in _BUILTINS and line not in guarded:
            yield line, f"`{short(name)}` is not defined anywhere in this code"


@rule("redefined", "warning", "bugs")
def redefined(source: SourceCode) -> Hits:
    """A function, class or import replaced in the same block before anything read it."""
    read: dict[str, list[int]] = {}
    for scope in names_of(source).scopes:
        for name, lines in scope.used.items():
            read.setdefault(name, []).extend(lines)
    for block in bodies(source):
        seen: dict[str, int] = {}
        for node in block:
            for name in _defines(node):
                before = seen.get(name)
                if before is not None and not any(
                    before <= line <= node.lineno for line in read.get(name, ())
                ):
                    yield (
                        node.lineno,
                        f"`{short(name)}` was already defined on line {before} and not used since",
                    )
                seen[name] = node.lineno


@rule("shadowed-builtin", "info", "style")
def shadowed_builtin(source: SourceCode) -> Hits:
    for scope in names_of(source).scopes:
        if scope.kind == "class":
            continue
        for name, found in scope.bindings.items():
            if name in _HIDEABLE:
                yield found[0].line, f"`{name}` hides the builtin of that name"


@rule("wildcard-import", "warning", "style")
def wildcard_import(source: SourceCode) -> Hits:
    for node in source.nodes(ast.ImportFrom):
        if any(item.name == "*" for item in node.names):
            yield node.lineno, f"`from {short(node.module or '.')} import *` hides where names come from"


@rule("naming", "info", "style")
def naming(source: SourceCode) -> Hits:
    for function in source.functions():
        name = function.name
        if not _SNAKE.fullmatch(name) and name.isascii() and not name.startswith(("visit_", "do_", "test")):
            yield function.lineno, f"function `{short(name)}` is not written in snake_case"
    for node in source.nodes(ast.ClassDef):
        if not _CAPS.fullmatch(node.name) and node.name.isascii():
            yield node.lineno, f"class `{short(node.name)}` is not written in CapWords"


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return [] if node.decorator_list or node.name == "_" else [node.name]
    if isinstance(node, ast.ImportFrom):
        return [item.asname or item.name for item in node.names if item.name != "*"]
    if isinstance(node, ast.Import):
        return [item.asname or item.name for item in node.names]
    return []


def _reads_everything(scope: Scope) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"locals", "eval", "exec"}
        for node in own(scope.node)
    )


def _lines_of(nodes: list[ast.stmt]) -> set[int]:
    return {n for node in nodes for n in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def _handled(source: SourceCode, *errors: str) -> Iterator[ast.Try]:
    """Try statements that catch one of these errors by name."""
    for node in source.nodes(ast.Try):
        for handler in node.handlers:
            caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            if any(isinstance(one, ast.Name) and one.id in errors for one in caught):
                yield node
                break


def _guarded_lines(source: SourceCode) -> set[int]:
    """Where a NameError is expected, a missing name is a question, not a mistake."""
    return {line for node in _handled(source, "NameError") for line in _lines_of(node.body)}


def _optional_lines(source: SourceCode) -> set[int]:
    """An import that may fail is often only a test whether something is there."""
    return {
        line
        for node in _handled(source, "ImportError", "ModuleNotFoundError")
        for line in _lines_of(node.body)
    }
