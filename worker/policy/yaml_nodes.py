"""Reads YAML nodes into plain values and records every error with its line.

Scalars are read as written, so `on`, `12:30` or `5` is text where text is expected.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_NULL, _BOOL = "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"
_WHOLE = re.compile(r"[-+]?(0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = re.compile(r"[-+]?\d{1,300}(\.\d{0,300})?([eE][-+]?\d{1,2})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """A finding about a line of a file; line 0 is the file as a whole."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}" if self.line else f"{self.file}: {self.message}"


def line_of(node: Node) -> int:
    """The line on which a node begins, counted from 1."""
    return int(node.start_mark.line) + 1


@dataclass
class NodeReader:
    """Reads one file; collects errors in `errors` and harmless oddities in `notes`."""

    file: str
    errors: list[PolicyFinding] = field(default_factory=list)
    notes: list[PolicyFinding] = field(default_factory=list)

    def wrong(self, where: Node | int, message: str) -> None:
        """Records an error."""
        self.errors.append(
            PolicyFinding(self.file, where if isinstance(where, int) else line_of(where), message)
        )

    def note(self, where: Node, message: str) -> None:
        """Records a note."""
        self.notes.append(PolicyFinding(self.file, line_of(where), message))

    def compose(self, text: str) -> Node | None:
        """Returns the document's root, or None if it is empty or not YAML."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            self.wrong(mark.line + 1 if mark else 0, "not valid YAML (one document is expected)")
        except yaml.reader.ReaderError as exc:
            self.wrong(text.count("\n", 0, exc.position) + 1, "a character that YAML does not allow")
        except RecursionError:
            self.wrong(0, "nested too deeply")
        except (ValueError, OverflowError):  # an escape beyond the last code point
            self.wrong(0, "not valid YAML (an invalid escape sequence)")
        else:
            return None if root is None else _not_null(root)
        return None

    def mapping(
        self, node: Node | None, name: str, known: frozenset[str], *, narrows: frozenset[str] = frozenset()
    ) -> dict[str, Node]:
        """Returns the known keys of a mapping with their values. Unknown keys and missing values are errors.

        For keys in `narrows` an empty value is an error too: it would widen a rule instead of narrowing it.
        """
        values: dict[str, Node] = {}
        for key, value in self._entries(node, name):
            if key.value not in known:
                self.wrong(key, f"{name} has no key {key.value} (there are {', '.join(sorted(known))})")
            elif _not_null(value) is None:
                self.wrong(key, f"{name}: {key.value} has no value")
            elif key.value in narrows and not value.value:
                self.wrong(key, f"{name}: {key.value} is empty; omit it to match everything")
            else:
                values[key.value] = value
        return values

    def pairs(self, node: Node | None, name: str) -> tuple[tuple[str, str], ...]:
        """Returns all keys of a mapping of texts, with their values."""
        entries = self._entries(node, name)
        for key, value in entries:
            if _not_null(value) is None:
                self.wrong(key, f"{name}: {key.value} has no value")
        return tuple((key.value, self.text(value, f"{name}: {key.value}")) for key, value in entries)

    def _entries(self, node: Node | None, name: str) -> list[tuple[ScalarNode, Node]]:
        """Rejects duplicate keys and merge keys: ignoring one would widen a rule."""
        if node is None:
            return []
        if not isinstance(node, MappingNode):
            self.wrong(node, f"{name} must be a mapping")
            return []
        entries: dict[str, tuple[ScalarNode, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.wrong(key, f"{name} has a key that is not a text")
            elif key.value == "<<":
                self.wrong(key, f"{name} has a merge key (<<), which a policy cannot use")
            elif key.value in entries:
                self.wrong(key, f"{name} has the key {key.value} twice")
            else:
                entries[key.value] = (key, value)
        return list(entries.values())

    def items(self, node: Node | None, name: str) -> list[Node]:
        """Returns the items of a list."""
        if node is None:
            return []
        if not isinstance(node, SequenceNode):
            self.wrong(node, f"{name} must be a list")
            return []
        return list(node.value)

    def text(self, node: Node | None, name: str) -> str:
        """Returns a scalar as written; a missing or null one is the empty text."""
        if node is None or _not_null(node) is None:
            return ""
        if not isinstance(node, ScalarNode):
            self.wrong(node, f"{name} must be a text")
            return ""
        return str(node.value)

    def texts(self, node: Node | None, name: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        return tuple(self.text(item, f"an item of {name}") for item in self.items(node, name))

    def whole(self, node: Node | None, name: str) -> int | None:
        """Returns an unquoted whole number, without the octal and sexagesimal forms of old YAML."""
        if node is None:
            return None
        if isinstance(node, ScalarNode) and node.style is None and _WHOLE.fullmatch(node.value):
            return int(node.value)
        self.wrong(node, f"{name} must be a whole number")
        return None

    def number(self, node: Node | None, name: str) -> float | None:
        """Returns a finite, unquoted number."""
        if node is None:
            return None
        if isinstance(node, ScalarNode) and node.style is None and _NUMBER.fullmatch(node.value):
            return int(node.value) if _WHOLE.fullmatch(node.value) else float(node.value)
        self.wrong(node, f"{name} must be a number")
        return None

    def flag(self, node: Node | None, name: str) -> bool:
        """Returns true or false; a missing value is false."""
        if node is None:
            return False
        if isinstance(node, ScalarNode) and node.tag == _BOOL:
            return node.value.lower() in ("true", "yes", "on")
        self.wrong(node, f"{name} must be true or false")
        return False


def _not_null(node: Node) -> Node | None:
    return None if isinstance(node, ScalarNode) and node.tag == _NULL else node
