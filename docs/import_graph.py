"""Which room imports which, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

Edge = tuple[str, str]


def edges(package: Path, rooms: set[str]) -> set[Edge]:
    """Imports between rooms, those inside functions and for types included."""
    found: set[Edge] = set()
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        targets = _imported(ast.parse(path.read_text()), package.name)
        found |= {(room, target) for target in targets if room in rooms and target in rooms}
    return {(room, target) for room, target in found if room != target}


def reduced(graph: set[Edge]) -> set[Edge]:
    """The graph without the edges that a longer way implies; for a graph without cycles."""
    return {
        (start, end)
        for start, end in graph
        if not any(_leads(graph, middle, end) for first, middle in graph if first == start and middle != end)
    }


def _leads(graph: set[Edge], start: str, end: str) -> bool:
    return start == end or any(_leads(graph, middle, end) for first, middle in graph if first == start)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The rooms that a module names in its imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == package and len(parts) > 1:
                yield parts[1]
