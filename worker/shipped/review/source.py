"""Python source read for analysis, safely.

The code is parsed, never run or compiled. Whatever breaks the parser (bad syntax, nesting without
end, characters that are not text) becomes `Unreadable` with a line. Walks are loops, not recursion,
so that a deep tree cannot exhaust the stack.
"""

from __future__ import annotations

import ast
import io
import symtable
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from worker.core.nesting import bounded_recursion

MAX_CODE = 200_000

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)


class Unreadable(Exception):
    """The code is not Python that can be parsed here."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True, eq=False)
class SourceCode:
    """Parsed code with the indexes that rules share."""

    text: str
    tree: ast.Module
    escapes: tuple[int, ...] = ()
    index: dict[type[ast.AST], list[ast.AST]] = field(default_factory=dict)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        """Every node of these kinds, in no promised order."""
        for kind in kinds:
            yield from (node for node in self.index.get(kind, ()) if isinstance(node, kind))

    def functions(self) -> Iterator[Function]:
        yield from self.nodes(ast.FunctionDef)
        yield from self.nodes(ast.AsyncFunctionDef)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines as the parser counts them: form feeds and other separators do not end one."""
        return tuple(self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported name stands for: `sp` for `subprocess`, `run` for `subprocess.run`."""
        found: dict[str, str] = {}
        for node in self.nodes(ast.Import):
            for item in node.names:
                found[item.asname or item.name.partition(".")[0]] = (
                    item.name if item.asname else item.name.partition(".")[0]
                )
        for imported in self.nodes(ast.ImportFrom):
            for item in imported.names:
                found[item.asname or item.name] = f"{imported.module or ''}.{item.name}"
        return found

    @cached_property
    def comments(self) -> tuple[tuple[int, str], ...]:
        """Comments with their lines; none where the tokenizer disagrees with the parser."""
        try:
            tokens = list(tokenize.generate_tokens(io.StringIO(self.text).readline))
        except (tokenize.TokenError, SyntaxError):
            return ()
        return tuple((t.start[0], t.string) for t in tokens if t.type == tokenize.COMMENT)

    def dotted(self, node: ast.AST | None) -> str:
        """`subprocess.run` for a name or attribute chain, with aliases undone; empty for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.aliases.get(node.id, node.id))
        return ".".join(reversed(parts))


def read(text: str) -> SourceCode:
    """Parse the code, or raise `Unreadable`."""
    text = text.removeprefix("\ufeff")
    try:
        with bounded_recursion(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tree = ast.parse(text)
            symtable.symtable(text, "code", "exec")
    except SyntaxError as error:
        raise Unreadable(error.lineno or 1, f"syntax error: {short(error.msg, 120)}") from None
    except (RecursionError, MemoryError):
        raise Unreadable(1, "the code is nested too deeply to be analysed") from None
    except ValueError:
        raise Unreadable(1, "the code holds characters that are not text") from None
    escapes = tuple(sorted({w.lineno for w in caught if "invalid escape" in str(w.message)}))
    source = SourceCode(text, tree, escapes)
    for node in ast.walk(tree):
        source.index.setdefault(type(node), []).append(node)
        for child in ast.iter_child_nodes(node):
            source.parents[child] = node
    return source


def own(function: ast.AST) -> Iterator[ast.AST]:
    """What is inside a function, without what is inside functions and classes nested in it."""
    queue = list(ast.iter_child_nodes(function))
    while queue:
        node = queue.pop()
        yield node
        if not isinstance(node, FUNCTIONS + (ast.Lambda, ast.ClassDef)):
            queue.extend(ast.iter_child_nodes(node))


def bodies(source: SourceCode) -> Iterator[list[ast.stmt]]:
    """Every list of statements that run one after another."""
    for nodes in source.index.values():
        for node in nodes:
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block:
                    yield block


def short(text: str, limit: int = 60) -> str:
    """Text fit for a message."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
