"""The tool policy: which tool calls an agent may make, and what each refusal says.

Rules are tried by rising priority and the first that matches decides; nothing here reads a file, a clock
or the store. `decide` looks only at the call, `judge` counts rate limits too, through a port.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol

from worker.executions.policy_terms import Glob, Predicate, Schedule

ACTION = "tool.invoke"
Kind = Literal["allow", "deny", "require_approval"]


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `max` calls in any `window_us`; `window` is how the policy's author wrote it."""

    max: int
    window_us: int
    window: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a tool call. A timeout and a rate limit come with `allow` only."""

    kind: Kind
    rule_id: str
    reason: str
    timeout_ms: int | None = None
    rate_limit: RateLimit | None = None
    rate_limited: bool = False

    @property
    def refusal(self) -> str | None:
        """What the agent reads in `error`, or None where the call is not refused.

        A rule's denial:  `policy denied: <reason> (rule: <id>)`
        A spent limit:    `rate limit exceeded: max 2 per 1m (rule: <id>)`
        `reason` alone is what `intent.denied` records.
        """
        if self.kind != "deny":
            return None
        if self.rate_limited:
            return f"{self.reason} (rule: {self.rule_id})"
        return f"policy denied: {self.reason} (rule: {self.rule_id})"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call before it is made. `step_count` and `age_ms` are the execution's, so far."""

    agent_id: str
    tool_id: str
    arguments: Any = None
    labels: Mapping[str, str] = field(default_factory=dict)
    step_count: int = 0
    age_ms: int = 0
    now_us: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """What a rule asks for. All that is given must hold; an empty condition always does."""

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

    def why_not(self, call: Call) -> str | None:
        """None when the condition holds for the call; else the first part that does not."""
        return self._why_not_who(call) or self._why_not_what(call) or self._why_not_when(call)

    def _why_not_who(self, call: Call) -> str | None:
        if self.action and self.action != ACTION:
            return f"action {self.action} is not {ACTION}"
        if self.tool_id and not self.tool_id.matches(call.tool_id):
            return f"tool_id {self.tool_id.text} does not match"
        if self.tool_ids and not any(glob.matches(call.tool_id) for glob in self.tool_ids):
            return f"none of tool_ids {', '.join(glob.text for glob in self.tool_ids)} matches"
        if self.agent_id and self.agent_id != call.agent_id:
            return f"agent_id is not {self.agent_id}"
        if self.agent_ids and call.agent_id not in self.agent_ids:
            return f"agent_id is none of {', '.join(self.agent_ids)}"
        return None

    def _why_not_what(self, call: Call) -> str | None:
        for name, value in self.labels:
            if call.labels.get(name, "") != value:
                return f"label {name} is not {value}"
        if self.arguments and not isinstance(call.arguments, dict):
            return "the call has no arguments object"
        for predicate in self.arguments:
            if (reason := predicate.why_not(call.arguments)) is not None:
                return reason
        return None

    def _why_not_when(self, call: Call) -> str | None:
        if self.min_step_count is not None and call.step_count < self.min_step_count:
            return f"{call.step_count} steps so far, fewer than {self.min_step_count}"
        if self.min_duration_ms is not None and call.age_ms < self.min_duration_ms:
            return f"the execution is {call.age_ms} ms old, less than {self.min_duration_ms}"
        if self.schedule and not self.schedule.covers(call.now_us):
            return f"outside the schedule {self.schedule.text}"
        return None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy, and where it is written."""

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
    """Rules by rising priority, and what holds when none matches."""

    rules: tuple[Rule, ...]
    default: Decision


NO_RULE = Decision("deny", "default", "No explicit allow rule matched")


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules for the agents that have their own file, and for all others (None: those are denied)."""

    agents: Mapping[str, RuleSet] = field(default_factory=lambda: MappingProxyType({}))
    others: RuleSet | None = None

    def rules_for(self, agent_id: str) -> RuleSet:
        """The rules that hold for an agent."""
        found = self.agents.get(agent_id, self.others)
        if found is not None:
            return found
        name = json.dumps(agent_id, ensure_ascii=False)
        return RuleSet((), Decision("deny", "agent-default", f"no policy configured for agent {name}"))


# Without a policy file: nothing may be called in production, everything on a laptop.
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
    passed_over: tuple[tuple[Rule, str], ...]
    matched: Rule | None
    not_reached: int


def explain(policy: Policy, call: Call) -> Explanation:
    """Decide, and keep what was seen on the way."""
    found = policy.rules_for(call.agent_id)
    passed_over: list[tuple[Rule, str]] = []
    for position, rule in enumerate(found.rules, start=1):
        reason = rule.when.why_not(call)
        if reason is None:
            return Explanation(rule.decision, tuple(passed_over), rule, len(found.rules) - position)
        passed_over.append((rule, reason))
    return Explanation(found.default, tuple(passed_over), None, 0)


def decide(policy: Policy, call: Call) -> Decision:
    """What the policy says about a call. Rate limits are named in the answer, not counted."""
    return explain(policy, call).decision


class RateLimiter(Protocol):
    """Counts calls in a sliding window."""

    def take(self, key: str, max: int, window_us: int) -> bool:
        """Count one call if fewer than `max` were counted in the last `window_us`; else count nothing."""


def limit_key(agent_id: str, tool_id: str) -> str:
    """`agent_id:tool_id`. A colon inside the agent's name is escaped, so that no two pairs share a key."""
    return f"{agent_id.replace('%', '%25').replace(':', '%3A')}:{tool_id}"


def judge(policy: Policy, call: Call, limiter: RateLimiter) -> Decision:
    """Decide, then count the call if an allowing rule has a limit. A spent limit denies."""
    decision = decide(policy, call)
    limit = decision.rate_limit
    if limit is None or limiter.take(limit_key(call.agent_id, call.tool_id), limit.max, limit.window_us):
        return decision
    reason = f"rate limit exceeded: max {limit.max} per {limit.window}"
    return replace(decision, kind="deny", reason=reason, timeout_ms=None, rate_limit=None, rate_limited=True)
