"""AGENT_KEYS: who may connect to the kernel door with its own key, in which role, with which tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from worker.core.values import InvalidValue

AGENT, RUNNER = "agent", "runner"
EXPECTED = "comma-separated agent:name:key or runner:name:key:tool|tool"


@dataclass(frozen=True, slots=True)
class AgentKey:
    """One entry. Only runners have tools. `old` marks an entry without a role, which means an agent."""

    role: str
    name: str
    key: str = field(repr=False)
    tools: frozenset[str] = frozenset()
    old: bool = False


def agent_keys(value: str) -> tuple[AgentKey, ...]:
    """Parses the setting. An agent's key may contain colons, a runner's may not; no duplicates allowed."""
    entries = tuple(_entry(part.strip()) for part in value.split(","))
    if len({(entry.role, entry.name) for entry in entries}) < len(entries):
        raise InvalidValue("each agent and each runner once")
    if len({entry.key for entry in entries}) < len(entries):
        raise InvalidValue("a different key for each agent and runner")
    return entries


def to_rewrite(entries: Iterable[AgentKey]) -> str | None:
    """Names the entries without a role and how to rewrite them; None when all entries have one."""
    names = [entry.name for entry in entries if entry.old]
    if not names:
        return None
    return (
        f"without a role: {', '.join(names)}; such a key works for an agent only. "
        "Write agent:NAME:KEY or runner:NAME:KEY:TOOL|TOOL"
    )


def _entry(text: str) -> AgentKey:
    parts = [part.strip() for part in text.split(":")]
    role = parts[0]
    if not all(parts) or len(parts) < 2:
        raise InvalidValue(EXPECTED)
    if role == RUNNER:
        return _runner(text)
    if role == AGENT and len(parts) > 2:
        _, name, key = text.split(":", 2)
        return AgentKey(AGENT, name.strip(), key.strip())
    if role == AGENT or len(parts) > 2:
        raise InvalidValue(EXPECTED)
    return AgentKey(AGENT, parts[0], parts[1], old=True)


def _runner(text: str) -> AgentKey:
    parts = [part.strip() for part in text.split(":", 3)]
    tools = [tool.strip() for tool in parts[3].split("|")] if len(parts) == 4 else []
    if not tools or not all(tools):
        raise InvalidValue("the tools of each runner: runner:name:key:tool|tool")
    return AgentKey(RUNNER, parts[1], parts[2], frozenset(tools))
