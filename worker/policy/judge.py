"""The tool policy: which tool calls an agent may make, and the text of each refusal.

Rules are tried in order of rising priority; the first match decides. Nothing here reads a file, a clock
or the store. `decide` looks only at the call; `judge` also counts rate limits, through a port.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

from worker.policy.terms import Glob, Predicate, Schedule

ACTION = "tool.invoke"
Kind = Literal["allow", "deny", "require_approval"]


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `max` calls in any `window_us`; `window` is the text from the policy."""

    max: int
    window_us: int
    window: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on a tool call. Only `allow` has a timeout and a rate limit."""

    kind: Kind
    rule_id: str
    reason: str
    timeout_ms: int | None = None
    rate_limit: RateLimit | None = None
    rate_limited: bool = False

    @property
    def refusal(self) -> str | None:
        """The `error` text for the agent, or None if the call is not refused.

        A rule's denial:    `policy denied: <reason> (rule: <id>)`
        An exhausted limit: `rate limit exceeded: max 2 per 1m (rule: <id>)`
        `intent.denied` records `reason` alone.
        """
        if self.kind != "deny":
            return None
        if self.rate_limited:
            return f"{self.reason} (rule: {self.rule_id})"
        return f"policy denied: {self.reason} (rule: {self.rule_id})"


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """A tool call before it is made. `step_count` and `age_ms` describe the execution so far.

    Calls with the same `id` are copies: a rate limit counts them once. With '' each call counts.
    """

    agent_id: str
    tool_id: str
    arguments: Any = None
    labels: Mapping[str, str] = field(default_factory=dict)
    step_count: int = 0
    age_ms: int = 0
    now_us: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a rule. Every part given must hold; an empty condition always holds."""

    action: str = ""
    tool_id: Glob | None = None
    tool_ids: tuple[Glob, ...] = ()
    agent_id: str = ""
    agent_ids: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    arguments: tuple[Predicate, ...] = ()
    min_step_count: int | None = None
    min_duration_ms: int | None = None
    schedule: Schedule | None = None

    def why_not(self, call: PolicyCall) -> str | None:
        """Returns None if the condition holds for the call, else the first part that does not."""
        return (
            self.why_not_tool(call)
            or self._why_not_agent(call)
            or self._why_not_what(call)
            or self._why_not_when(call)
        )

    @property
    def of_call_alone(self) -> bool:
        """Whether it holds for a call whatever the execution and the time."""
        of_execution = self.agent_id or self.agent_ids or self.labels or self.min_step_count is not None
        return not (of_execution or self.min_duration_ms is not None or self.schedule)

    def why_not_tool(self, call: PolicyCall) -> str | None:
        """The same for the parts that name tools."""
        if self.action and self.action != ACTION:
            return f"action {self.action} is not {ACTION}"
        if self.tool_id and not self.tool_id.matches(call.tool_id):
            return f"tool_id {self.tool_id.text} does not match"
        if self.tool_ids and not any(glob.matches(call.tool_id) for glob in self.tool_ids):
            return f"none of tool_ids {', '.join(glob.text for glob in self.tool_ids)} matches"
        return None

    def _why_not_agent(self, call: PolicyCall) -> str | None:
        if self.agent_id and self.agent_id != call.agent_id:
            return f"agent_id is not {self.agent_id}"
        if self.agent_ids and call.agent_id not in self.agent_ids:
            return f"agent_id is none of {', '.join(self.agent_ids)}"
        return None

    def _why_not_what(self, call: PolicyCall) -> str | None:
        for name, value in self.labels:
            if call.labels.get(name, "") != value:
                return f"label {name} is not {value}"
        if self.arguments and not isinstance(call.arguments, dict):
            return "the call has no arguments object"
        for predicate in self.arguments:
            if (reason := predicate.why_not(call.arguments)) is not None:
                return reason
        return None

    def _why_not_when(self, call: PolicyCall) -> str | None:
        if self.min_step_count is not None and call.step_count < self.min_step_count:
            return f"{call.step_count} steps so far, fewer than {self.min_step_count}"
        if self.min_duration_ms is not None and call.age_ms < self.min_duration_ms:
            return f"the execution is {call.age_ms} ms old, less than {self.min_duration_ms}"
        if self.schedule and not self.schedule.covers(call.now_us):
            return f"outside the schedule {self.schedule.text}"
        return None


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of a policy, with its source location."""

    priority: int
    when: Condition
    decision: Decision
    file: str = ""
    line: int = 0

    @property
    def id(self) -> str:
        return self.decision.rule_id


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules by rising priority, and the default when none matches."""

    rules: tuple[PolicyRule, ...]
    default: Decision


NO_RULE = Decision("deny", "default", "No explicit allow rule matched")


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for agents with their own file, and for all others (None: denied)."""

    agents: Mapping[str, RuleSet] = field(default_factory=lambda: MappingProxyType({}))
    others: RuleSet | None = None

    def rules_for(self, agent_id: str) -> RuleSet:
        """Returns the rules that apply to an agent."""
        found = self.agents.get(agent_id, self.others)
        if found is not None:
            return found
        name = json.dumps(agent_id, ensure_ascii=False)
        return RuleSet((), Decision("deny", "agent-default", f"no policy configured for agent {name}"))


# Defaults without a policy file: deny everything in production, allow everything on a laptop.
SECURE = Policy(others=RuleSet((), Decision("deny", "secure-default", "No policy engine configured")))
PERMISSIVE = Policy(
    others=RuleSet(
        (), Decision("allow", "permissive-default", "No policy file is set: every tool is allowed")
    )
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision and how it was reached: the rules tried before, each with why it did not match."""

    decision: Decision
    passed_over: tuple[tuple[PolicyRule, str], ...]
    matched: PolicyRule | None
    not_reached: int


def explain(policy: Policy, call: PolicyCall) -> Explanation:
    """Decides a call and records the rules tried."""
    found = policy.rules_for(call.agent_id)
    passed_over: list[tuple[PolicyRule, str]] = []
    for position, rule in enumerate(found.rules, start=1):
        reason = rule.when.why_not(call)
        if reason is None:
            return Explanation(rule.decision, tuple(passed_over), rule, len(found.rules) - position)
        passed_over.append((rule, reason))
    return Explanation(found.default, tuple(passed_over), None, 0)


def decide(policy: Policy, call: PolicyCall) -> Decision:
    """Decides a call. The decision names its rate limit but does not count it."""
    return explain(policy, call).decision


def foreseen(policy: Policy, tool_id: str, arguments: Any) -> Decision | None:
    """The decision on this call if it is the same for every execution, at any time, and counts nothing."""
    found = policy.others
    if policy.agents or found is None:
        return None
    call, decision = PolicyCall("", tool_id, arguments), found.default
    for rule in found.rules:
        if rule.when.why_not_tool(call) is not None:
            continue
        if not rule.when.of_call_alone:
            return None
        if rule.when.why_not(call) is None:
            decision = rule.decision
            break
    return None if decision.rate_limit else decision


class RateLimiter(Protocol):
    """Counts calls in a sliding window."""

    def take(self, key: str, max: int, window_us: int, call: str = "") -> bool:
        """Count one call if fewer than `max` were counted in the last `window_us`; else count nothing.

        A call already counted under the same name `call` is allowed again without being counted again.
        """


def limit_key(agent_id: str, tool_id: str) -> str:
    """Returns `agent_id:tool_id`; escapes colons in the agent's name so that no two pairs share a key."""
    return f"{agent_id.replace('%', '%25').replace(':', '%3A')}:{tool_id}"


def judge(policy: Policy, call: PolicyCall, limiter: RateLimiter) -> Decision:
    """Decides a call, then counts it if an allowing rule has a limit. An exhausted limit denies."""
    decision = decide(policy, call)
    limit = decision.rate_limit
    key = limit_key(call.agent_id, call.tool_id)
    if limit is None or limiter.take(key, limit.max, limit.window_us, call.id):
        return decision
    reason = f"rate limit exceeded: max {limit.max} per {limit.window}"
    return replace(decision, kind="deny", reason=reason, timeout_ms=None, rate_limit=None, rate_limited=True)
