"""Agents, runners and tools: what is offered, where it runs, who is connected and how it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from flask import Blueprint, Response

from worker.capabilities.declare import Capability
from worker.doors.dashboard_policy import decided
from worker.doors.dashboard_view import DashboardView


@dataclass(frozen=True, slots=True)
class AgentRow:
    """A capability, and how its runs went; `waiting` and `connected` are those of a remote one."""

    capability: Capability
    runs: int
    mean_us: int
    connected: int
    waiting: int


@dataclass(frozen=True, slots=True)
class ToolRow:
    """A tool that was called, or that a runner offers. `calls`: of remote agents, or through runners."""

    name: str
    recent: int
    calls: int
    mean_us: int
    runners: tuple[str, ...]


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/agents")
    def agents() -> Response:
        services = view.services
        stats, connected = services.store.stats(), services.connection_list.connected()
        names = [each.name for each in connected if each.kind == "agent"]
        rows = [
            AgentRow(
                each,
                int(stats.get(f"run count {each.name}", 0)),
                int(stats.get(f"mean_us {each.name}", 0)),
                names.count(each.name),
                services.connection_list.waiting(each.name) if each.remote else 0,
            )
            for each in sorted(services.catalog.all().values(), key=lambda each: each.name)
            if not each.name.startswith("_")
        ]
        unknown = sorted(set(names) - {row.capability.name for row in rows})
        return view.page(
            "agents",
            rows=rows,
            connected=connected,
            unknown=unknown,
            tools=_tools(
                stats,
                services.connection_list.published_tools(),
                Counter(each.tool for each in decided(view)),
            ),
            queue=services.queue_status.read(),
            listings=services.listings.all(),
            warnings=services.listings.warnings(),
        )


def _tools(
    stats: Mapping[str, bytes], published: Mapping[str, list[str]], recent: Mapping[str, int]
) -> list[ToolRow]:
    begin = "step count "
    called = {name.removeprefix(begin) for name in stats if name.startswith(begin)}
    offered: dict[str, list[str]] = {}
    for runner, tools in published.items():
        for tool in tools:
            offered.setdefault(tool, []).append(runner)
    rows = []
    for name in sorted(called | set(offered) | set(recent)):
        calls = int(stats.get(f"step count {name}", 0))
        mean_us = int(stats.get(f"step us {name}", 0)) // max(1, calls)
        rows.append(ToolRow(name, recent.get(name, 0), calls, mean_us, tuple(offered.get(name, ()))))
    return rows
