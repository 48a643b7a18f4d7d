"""The tool policy: its rules, the calls it decided last, and a form that asks what it would decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, request

from worker.core.errors import BadRequest
from worker.doors.answers import whole
from worker.doors.dashboard_view import DashboardView
from worker.engine.events import Event, Kind
from worker.engine.listing import Filter
from worker.policy.judge import Condition, Explanation, PolicyCall, explain
from worker.policy.terms import Predicate

_EXAMINED, _LOGS, _SHOWN = 200, 20, 25
_DECISIONS = {
    Kind.INTENT_DENIED: "deny",
    Kind.STEP_CREATED: "allow",
    Kind.STEP_APPROVAL_REQUIRED: "require_approval",
}


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that a log records. `rule` is the recorded one, or what the policy in force says."""

    at: int
    execution: str
    agent: str
    tool: str
    kind: str
    rule: str
    recorded: bool


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/policy")
    def policy() -> Response:
        rules = view.services.policy
        asked, problem, found = dict(request.args), "", None
        if asked.get("tool"):
            try:
                found = explain(rules, _call(view, asked))
            except BadRequest as fault:
                problem = fault.message
        sets = {**rules.agents, **({"all others": rules.others} if rules.others else {})}
        return view.page(
            "policy",
            file=view.services.settings.policy,
            sets=sets,
            conditions=conditions,
            decided=decided(view)[:_SHOWN],
            asked=asked,
            problem=problem,
            found=found,
            agents=sorted(each for each in view.services.catalog.all() if not each.startswith("_")),
        )


def _call(view: DashboardView, asked: dict[str, str]) -> PolicyCall:
    arguments = view.json(asked.get("arguments", "").strip(), "arguments")
    pairs = [line.partition("=") for line in asked.get("labels", "").splitlines() if "=" in line]
    return PolicyCall(
        agent_id=asked.get("agent", "").strip(),
        tool_id=asked["tool"].strip(),
        arguments=arguments,
        labels={name.strip(): value.strip() for name, _, value in pairs},
        step_count=whole(asked.get("steps", ""), 0),
        age_ms=whole(asked.get("age", ""), 0) * 1000,
        now_us=view.services.store.now(),
    )


def decided(view: DashboardView) -> list[Decided]:
    """The newest decisions in the logs of the newest executions that called a tool."""
    services = view.services
    newest = services.executions.page(Filter(), limit=_EXAMINED).executions
    agents = {each.id: each.agent for each in newest}
    found: list[Decided] = []
    for id in services.store.having_steps([*agents])[:_LOGS]:
        events = services.executions.events(id, limit=500)
        found += _of_log(view, id, agents[id], events)
    return sorted(found, key=lambda each: -each.at)


def _of_log(view: DashboardView, id: str, agent: str, events: list[Event]) -> Iterator[Decided]:
    approvals = {event.step_id for event in events if event.kind == Kind.STEP_APPROVAL_REQUIRED}
    for event in events:
        kind = _DECISIONS.get(Kind(event.kind)) if event.kind in _DECISIONS else None
        if kind is None or (kind == "allow" and event.step_id in approvals):
            continue
        data = event.data()
        tool, rule = str(data.get("tool_id", "")), data.get("rule_id")
        yield Decided(
            event.at, id, agent, tool, kind, str(rule) if rule else _rule_now(view, agent, data), bool(rule)
        )


def _rule_now(view: DashboardView, agent: str, data: dict[str, Any]) -> str:
    call = PolicyCall(
        agent, str(data.get("tool_id", "")), data.get("arguments"), now_us=view.services.store.now()
    )
    found: Explanation = explain(view.services.policy, call)
    return found.decision.rule_id


def conditions(when: Condition) -> list[str]:
    """A rule's condition in words, a line each."""
    lines = []
    if when.tool_id:
        lines.append(f"tool {when.tool_id.text}")
    if when.tool_ids:
        lines.append(f"tool {' or '.join(glob.text for glob in when.tool_ids)}")
    if when.agent_id or when.agent_ids:
        lines.append(f"agent {' or '.join([when.agent_id, *when.agent_ids]).removeprefix(' or ')}")
    lines += [f"label {name} is {value}" for name, value in when.labels]
    lines += [f"argument {_predicate(each)}" for each in when.arguments]
    if when.min_step_count is not None:
        lines.append(f"from {when.min_step_count} steps on")
    if when.min_duration_ms is not None:
        lines.append(f"from {when.min_duration_ms} ms on")
    if when.schedule:
        lines.append(f"during {when.schedule.text}")
    return lines or ["every call"]


def _predicate(each: Predicate) -> str:
    parts = [f"matches {each.pattern}" if each.pattern else ""]
    parts.append(f"is one of {', '.join(each.one_of)}" if each.one_of else "")
    parts.append(f"at least {each.min:g}" if each.min is not None else "")
    parts.append(f"at most {each.max:g}" if each.max is not None else "")
    parts.append(f"at most {each.max_length} characters" if each.max_length is not None else "")
    parts.append("is required" if each.required else "")
    return f"{each.argument} {', '.join(filter(None, parts))}"
