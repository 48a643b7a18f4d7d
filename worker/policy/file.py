"""Loads a tool policy from a YAML file or a directory, or reports all of its errors.

A directory has a file per agent (`<agent_id>.yaml` or `.yml`) and may have `_global.yaml`, whose rules
are merged into every agent's own by priority and apply alone to agents without a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from yaml.nodes import Node

from worker.core.errors import Problem
from worker.policy.judge import (
    ACTION,
    NO_RULE,
    PERMISSIVE,
    SECURE,
    Condition,
    Decision,
    Kind,
    Policy,
    PolicyRule,
    RateLimit,
    RuleSet,
)
from worker.policy.terms import Glob, Predicate, Schedule, duration_us
from worker.policy.yaml_nodes import NodeReader, PolicyFinding, line_of

GLOBAL = "_global"
KINDS: Mapping[str, Kind] = {"allow": "allow", "deny": "deny", "require_approval": "require_approval"}

_FILE = frozenset({"rules", "default"})
_RULE = frozenset({"id", "priority", "when", "then", "rate_limit"})
_THEN = frozenset({"decision", "reason", "timeout_ms"})
_LIMIT = frozenset({"max", "window"})
_PREDICATE = frozenset({"field", "pattern", "one_of", "min", "max", "max_length", "required"})
_WHEN = frozenset(
    {"action", "tool_id", "tool_ids", "agent_id", "agent_ids", "labels", "arguments"}
    | {"min_step_count", "min_duration_ms", "schedule"}
)
# An empty `when` matches every call, even if it was meant as a restriction.
_RULE_NARROWS = frozenset({"when"})

_T = TypeVar("_T")


class PolicyInvalid(Problem):
    """A policy that cannot be used; `findings` lists every error with file and line."""

    code = "INVALID_POLICY"
    message = "the tool policy has errors"
    advice = "Correct the lines named and start again; `worker policy check` reads a policy without starting."

    def __init__(self, findings: tuple[PolicyFinding, ...]) -> None:
        super().__init__(
            "\n".join([f"the tool policy has errors: {len(findings)}", *map(str, findings)]),
            errors=[{"file": f.file, "line": f.line, "message": f.message} for f in findings],
        )
        self.findings = findings


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy and its findings. It is usable only without errors; notes are harmless."""

    policy: Policy
    errors: tuple[PolicyFinding, ...]
    notes: tuple[PolicyFinding, ...]
    files: tuple[str, ...]


def load(path: str | Path) -> Policy:
    """Loads the policy at a path; raises `PolicyInvalid` with all of its errors."""
    reading = read(path)
    if reading.errors:
        raise PolicyInvalid(reading.errors)
    return reading.policy


def policy_for(path: str | Path | None, *, production: bool) -> Policy:
    """Loads the configured policy; without one, production allows nothing, other environments everything."""
    if path:
        return load(path)
    return SECURE if production else PERMISSIVE


def read(path: str | Path) -> LoadedPolicy:
    """Reads a file or a directory to the end, whatever errors it has."""
    path = Path(path)
    if path.is_dir():
        return _read_directory(path)
    file = _read_file(path)
    file.check_priorities(())
    return LoadedPolicy(Policy(others=file.rule_set()), tuple(file.errors), tuple(file.notes), (str(path),))


def _read_directory(path: Path) -> LoadedPolicy:
    files: dict[str, _PolicyFile] = {}
    doubles: list[PolicyFinding] = []
    for entry in _policy_files(path):
        if entry.stem in files:
            other = files[entry.stem].reader.file
            doubles.append(PolicyFinding(str(entry), 0, f"{other} is already the policy of {entry.stem}"))
        else:
            files[entry.stem] = _read_file(entry)
    if not files:
        doubles.append(
            PolicyFinding(str(path), 0, "the directory cannot be read or has no .yaml or .yml file")
        )
    shared = files.get(GLOBAL)
    merged: tuple[PolicyRule, ...] = tuple(shared.rules) if shared else ()
    agents: dict[str, RuleSet] = {}
    for name, file in files.items():
        file.check_priorities(() if name == GLOBAL else merged)
        if name != GLOBAL:
            agents[name] = file.rule_set(merged)
    return LoadedPolicy(
        Policy(MappingProxyType(agents), shared.rule_set() if shared else None),
        tuple(doubles + [error for file in files.values() for error in file.errors]),
        tuple(note for file in files.values() for note in file.notes),
        tuple(file.reader.file for file in files.values()),
    )


def _policy_files(path: Path) -> list[Path]:
    """Includes dangling links: silently skipping one would lose its rules."""
    try:
        entries = sorted(path.iterdir())
    except OSError:
        return []
    return [
        entry
        for entry in entries
        if entry.suffix.lower() in (".yaml", ".yml") and not entry.name.startswith(".") and not entry.is_dir()
    ]


@dataclass
class _PolicyFile:
    """A file being read: its rules as written, its default, its findings."""

    reader: NodeReader
    rules: list[PolicyRule] = field(default_factory=list)
    default: Decision = NO_RULE

    @property
    def errors(self) -> list[PolicyFinding]:
        return sorted(self.reader.errors, key=lambda finding: finding.line)

    @property
    def notes(self) -> list[PolicyFinding]:
        return sorted(self.reader.notes, key=lambda finding: finding.line)

    def rule_set(self, merged: tuple[PolicyRule, ...] = ()) -> RuleSet:
        rules = sorted([*self.rules, *merged], key=lambda rule: rule.priority)
        return RuleSet(tuple(rules), self.default)

    def check_priorities(self, merged: tuple[PolicyRule, ...]) -> None:
        """Requires unique priorities after merging; otherwise the order of two rules would be a guess."""
        taken = {rule.priority: rule for rule in merged}
        for rule in self.rules:
            other = taken.setdefault(rule.priority, rule)
            if other is not rule:
                taker = f"rule {other.id} at {other.file}:{other.line}"
                self.reader.wrong(rule.line, f"rule {rule.id}: priority {rule.priority} is taken by {taker}")


def _read_file(path: Path) -> _PolicyFile:
    file = _PolicyFile(NodeReader(str(path)))
    reader = file.reader
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError:
        reader.wrong(0, "the file cannot be read")
        return file
    except UnicodeDecodeError:
        reader.wrong(0, "the file is not UTF-8")
        return file
    document = reader.compose(text)
    if not reader.errors and (document is None or not document.value):
        reader.wrong(1, "the policy is empty: it has neither rules nor a default")
    root = reader.mapping(document, "the policy", _FILE)
    lines: dict[str, int] = {}
    for node in reader.items(root.get("rules"), "rules"):
        rule = _rule(reader, node)
        if rule.id in lines:
            reader.wrong(node, f"rule {rule.id}: the id is already used in line {lines[rule.id]}")
        if rule.id:
            lines.setdefault(rule.id, rule.line)
        file.rules.append(rule)
    if "default" in root:
        file.default = _default(reader, root["default"])
    return file


def _rule(reader: NodeReader, node: Node) -> PolicyRule:
    """Reads as much of a rule as possible; after an error it is not used."""
    values = reader.mapping(node, "a rule", _RULE, narrows=_RULE_NARROWS)
    rule_id = reader.text(values.get("id"), "id")
    name = f"rule {rule_id}"
    if not rule_id:
        name = "a rule without id"
        reader.wrong(node, "a rule has no id")
    kind, reason, timeout = _then(reader, values.get("then"), node, name)
    limit = _rate_limit(reader, values["rate_limit"], name) if "rate_limit" in values else None
    if limit and kind != "allow":
        reader.note(values["rate_limit"], f"{name}: rate_limit requires the decision allow")
    allowed = kind == "allow"
    return PolicyRule(
        reader.whole(values.get("priority"), f"{name}: priority") or 0,
        _when(reader, values.get("when"), name),
        Decision(kind, rule_id, reason, timeout if allowed else None, limit if allowed else None),
        reader.file,
        line_of(node),
    )


def _then(reader: NodeReader, node: Node | None, rule: Node, name: str) -> tuple[Kind, str, int | None]:
    values = reader.mapping(node, f"{name}: then", _THEN)
    written = reader.text(values.get("decision"), f"{name}: decision")
    kind = _kind(reader, written, values.get("decision", node or rule), name)
    reason = reader.text(values.get("reason"), f"{name}: reason")
    timeout = _at_least(reader, values.get("timeout_ms"), f"{name}: timeout_ms", 0)
    return kind, reason, timeout or None


def _default(reader: NodeReader, node: Node) -> Decision:
    values = reader.mapping(node, "default", _THEN)
    written = reader.text(values.get("decision"), "default: decision")
    reason = reader.text(values.get("reason"), "default: reason")
    return Decision(_kind(reader, written, values.get("decision", node), "default"), "default", reason)


def _kind(reader: NodeReader, written: str, node: Node, name: str) -> Kind:
    if written not in KINDS:
        got = f"not {written}" if written else "and is missing"
        reader.wrong(node, f"{name}: decision must be allow, deny or require_approval, {got}")
    return KINDS.get(written, "deny")


def _rate_limit(reader: NodeReader, node: Node, name: str) -> RateLimit | None:
    values = reader.mapping(node, f"{name}: rate_limit", _LIMIT)
    maximum = reader.whole(values.get("max"), f"{name}: rate_limit.max")
    if "max" not in values or (maximum is not None and maximum <= 0):
        reader.wrong(values.get("max", node), f"{name}: rate_limit.max must be at least 1")
    window = reader.text(values.get("window"), f"{name}: rate_limit.window")
    where = values.get("window", node)
    window_us = _parsed(reader, where, f"{name}: rate_limit.window", duration_us, window)
    return None if maximum is None or window_us is None else RateLimit(maximum, window_us, window)


def _when(reader: NodeReader, node: Node | None, name: str) -> Condition:
    values = reader.mapping(node, f"{name}: when", _WHEN, narrows=_WHEN)

    def text(key: str) -> str:
        return reader.text(values.get(key), f"{name}: {key}")

    def texts(key: str) -> tuple[str, ...]:
        found = reader.texts(values.get(key), f"{name}: {key}")
        if "" in found:
            reader.wrong(values[key], f"{name}: an item of {key} is empty")
        return found

    def glob(key: str, pattern: str) -> Glob:
        compiled = Glob(pattern)
        if compiled.parts is None:
            reader.wrong(values[key], f"{name}: {key} is not a pattern (in a glob, [ and \\ have a meaning)")
        return compiled

    predicates = [
        _predicate(reader, item, f"{name}: argument {position}")
        for position, item in enumerate(reader.items(values.get("arguments"), f"{name}: arguments"), start=1)
    ]
    action, tool_id, schedule = text("action"), text("tool_id"), text("schedule")
    if action not in ("", ACTION):
        reader.wrong(values["action"], f"{name}: action must be {ACTION}, not {action}")
    return Condition(
        action=action,
        tool_id=glob("tool_id", tool_id) if tool_id else None,
        tool_ids=tuple(glob("tool_ids", pattern) for pattern in texts("tool_ids")),
        agent_id=text("agent_id"),
        agent_ids=texts("agent_ids"),
        labels=reader.pairs(values.get("labels"), f"{name}: labels"),
        arguments=tuple(predicate for predicate in predicates if predicate is not None),
        min_step_count=_at_least(reader, values.get("min_step_count"), f"{name}: min_step_count", 0),
        min_duration_ms=_at_least(reader, values.get("min_duration_ms"), f"{name}: min_duration_ms", 1),
        schedule=_parsed(reader, values["schedule"], name, Schedule.parse, schedule) if schedule else None,
    )


def _predicate(reader: NodeReader, node: Node, name: str) -> Predicate | None:
    values = reader.mapping(node, name, _PREDICATE, narrows=_PREDICATE)
    argument = reader.text(values.get("field"), f"{name}: field")
    if not argument:
        reader.wrong(node, f"{name} names no field")
    pattern = reader.text(values.get("pattern"), f"{name}: pattern")
    one_of = reader.texts(values.get("one_of"), f"{name}: one_of")
    required = reader.flag(values.get("required"), f"{name}: required")
    if not (pattern or one_of or required or values.keys() & {"min", "max", "max_length"}):
        reader.wrong(node, f"{name} has no constraint (pattern, one_of, min, max, max_length, required)")
    smallest = reader.number(values.get("min"), f"{name}: min")
    largest = reader.number(values.get("max"), f"{name}: max")
    length = _at_least(reader, values.get("max_length"), f"{name}: max_length", 0)
    where = values.get("pattern", node)

    def build(text: str) -> Predicate:
        return Predicate(argument, text, one_of, smallest, largest, length, required)

    return _parsed(reader, where, name, build, pattern)


def _at_least(reader: NodeReader, node: Node | None, name: str, least: int) -> int | None:
    value = reader.whole(node, name)
    if node is not None and value is not None and value < least:
        reader.wrong(node, f"{name} must be at least {least}")
    return value


def _parsed(reader: NodeReader, node: Node, name: str, parse: Callable[[str], _T], text: str) -> _T | None:
    """Returns the parsed term; a parser's error is reported on this line, in the parser's own words."""
    try:
        return parse(text)
    except ValueError as exc:
        reader.wrong(node, f"{name}: {exc}")
        return None
