"""The tool policy decides calls as the kernel's specification says, whatever the call contains."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.policy.judge import (
    NO_RULE,
    PERMISSIVE,
    SECURE,
    Condition,
    Decision,
    Policy,
    PolicyCall,
    PolicyRule,
    RateLimit,
    RuleSet,
    decide,
    explain,
    foreseen,
    judge,
    limit_key,
)
from worker.policy.terms import DAYS, Glob, Predicate, Schedule, duration_us
from worker.store.rate_limits import MemoryRateLimiter

MINUTE = 60_000_000


def us(text: str) -> int:
    """Return microseconds of the store's clock at an ISO time."""
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000


def rule(
    rule_id: str, when: Condition, kind: Any = "allow", priority: int = 1, **decision: Any
) -> PolicyRule:
    return PolicyRule(priority, when, Decision(kind, rule_id, "because", **decision))


def policy(*rules: PolicyRule, default: Decision = NO_RULE) -> Policy:
    return Policy(others=RuleSet(rules, default))


def holds(when: Condition, **call: Any) -> bool:
    """Return whether the condition holds, determined by a decision."""
    policy_call = PolicyCall(**{"agent_id": "researcher", "tool_id": "web.search", **call})
    return decide(policy(rule("it", when)), policy_call).kind == "allow"


# --- globs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("web.search", "web.search", True),
        ("web.search", "web.searches", False),
        ("web.*", "web.search", True),
        ("web.*", "web.search.deep", True),
        ("web.*", "web.", True),
        ("web.*", "web", False),
        ("web.*", "xweb.search", False),
        ("*", "anything.at_all", True),
        ("*", "", True),
        ("*", "a/b", False),
        ("**", "a/b", False),
        ("a*", "a/b", False),
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("*/b", "a/b", True),
        ("a*b*c", "a1b2c", True),
        ("a*b*c", "a1c2b", False),
        ("*x", "xxx", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a?c", "ac", False),
        ("a?c", "aéc", True),
        ("doc_[a-c]", "doc_b", True),
        ("doc_[a-c]", "doc_d", False),
        ("doc_[^a-c]", "doc_d", True),
        ("doc_[^a-c]", "doc_b", False),
        ("[^a]", "/", True),
        ("a[b*]c", "a*c", True),
        ("a[b*]c", "axc", False),
        ("[\\]x]", "]", True),
        ("[\\-x]", "-", True),
        ("a\\*b", "a*b", True),
        ("a\\*b", "axb", False),
        ("a]b", "a]b", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_glob_matches_like_go_path_match(pattern: str, name: str, expected: bool) -> None:
    """Stars and question marks stop at slashes, classes and escapes work, the whole name must match."""
    assert Glob(pattern).matches(name) is expected


@pytest.mark.parametrize(
    "pattern",
    ["[", "[]a]", "[^]", "[^]a]", "[a", "[a-", "[a-]", "[-a]", "[a-b-c]", "a\\", "[\\", "*[", "a*[b-"],
)
def test_malformed_glob_is_compared_literally(pattern: str) -> None:
    """An invalid pattern matches only itself."""
    assert Glob(pattern).matches(pattern)
    for name in ("", "a", "b", "-", "]", pattern + "a", pattern[:-1]):
        assert not Glob(pattern).matches(name)


def test_star_matching_does_not_backtrack() -> None:
    """As in the original, a class that matches a slash limits the star before it."""
    assert Glob("*[^x]b").matches("aab")
    assert not Glob("*[^x]*b").matches("a/b")


_literals = st.sampled_from("ab.é/")
_tokens = st.one_of(
    _literals.map(lambda char: (char, re.escape(char))),
    st.just(("*", "[^/]*")),
    st.just(("?", "[^/]")),
    st.sampled_from([("[ab]", "[ab]"), ("[a-é]", "[a-é]"), ("[^a/]", "[^a/]"), ("\\*", r"\*")]),
)


@given(st.lists(_tokens, max_size=8), st.text("ab.é*/", max_size=10))
def test_glob_agrees_with_its_regular_expression(tokens: list[tuple[str, str]], name: str) -> None:
    """Without classes that match a slash, a glob equals its regular expression."""
    pattern = "".join(token for token, _ in tokens)
    expected = re.fullmatch("".join(expression for _, expression in tokens), name) is not None
    assert Glob(pattern).matches(name) is expected


@given(st.text("[]^-\\*?ab/", max_size=12), st.text("[]^-\\*?ab/", max_size=12))
def test_glob_matching_never_raises(pattern: str, name: str) -> None:
    """Any text can be a pattern; one without special characters equals only itself."""
    matched = Glob(pattern).matches(name)
    assert matched in (True, False)
    if not set(pattern) & set("[\\*?"):
        assert matched is (pattern == name)


def test_many_stars_match_quickly() -> None:
    """A pattern built for backtracking ends at once."""
    assert not Glob("a*" * 60 + "b").matches("a" * 256)


# --- agents and tools --------------------------------------------------------------------------------


def test_empty_condition_always_matches() -> None:
    """A rule without `when` decides every call."""
    assert holds(Condition())


def test_all_conditions_must_match() -> None:
    """A rule is skipped if any of its conditions fails."""
    when = Condition(tool_id=Glob("web.*"), agent_id="researcher", labels=(("env", "dev"),))
    assert holds(when, labels={"env": "dev", "team": "a"})
    assert not holds(when, labels={"env": "prod"})
    assert not holds(when, labels={"env": "dev"}, agent_id="other")
    assert not holds(when, labels={"env": "dev"}, tool_id="shell.exec")


def test_only_tool_calls_are_judged() -> None:
    """A rule for another action never decides a tool call."""
    assert holds(Condition(action="tool.invoke"))
    assert not holds(Condition(action="execution.complete"))
    assert not holds(Condition(action="tool.*"))


def test_one_matching_tool_or_agent_is_enough() -> None:
    """`tool_ids` are globs, `agent_ids` are exact."""
    assert holds(Condition(tool_ids=(Glob("doc_*"), Glob("web.*"))))
    assert not holds(Condition(tool_ids=(Glob("doc_*"), Glob("shell"))))
    assert holds(Condition(agent_ids=("analyst", "researcher")))
    assert not holds(Condition(agent_ids=("analyst", "*")))


def test_missing_label_counts_as_empty() -> None:
    """A rule that requires an empty label matches an execution without it."""
    assert holds(Condition(labels=(("env", ""),)))
    assert not holds(Condition(labels=(("env", "prod"),)))
    assert not holds(Condition(labels=(("env", ""),)), labels={"env": "prod"})


def test_step_and_age_limits_are_inclusive() -> None:
    """Both bounds are included."""
    assert not holds(Condition(min_step_count=100), step_count=99)
    assert holds(Condition(min_step_count=100), step_count=100)
    assert holds(Condition(min_step_count=0))
    assert not holds(Condition(min_duration_ms=1000), age_ms=999)
    assert holds(Condition(min_duration_ms=1000), age_ms=1000)


# --- arguments ---------------------------------------------------------------------------------------


def fits(predicate: Predicate, arguments: Any) -> bool:
    return holds(Condition(arguments=(predicate,)), arguments=arguments)


@pytest.mark.parametrize("arguments", [None, [], "text", 5, True, ["command"]])
def test_non_object_arguments_match_no_predicate(arguments: Any) -> None:
    """Even a predicate that a missing field would satisfy needs an object."""
    assert not fits(Predicate("command", max_length=5), arguments)
    assert fits(Predicate("command", max_length=5), {})


@pytest.mark.parametrize(
    "predicate",
    [
        Predicate("f", pattern="x"),
        Predicate("f", one_of=("x",)),
        Predicate("f", min=1),
        Predicate("f", max=1),
        Predicate("f", max_length=1),
    ],
)
def test_missing_field_passes_unless_required(predicate: Predicate) -> None:
    """Constraints apply to existing fields; `required` demands the field."""
    assert fits(predicate, {"other": 1})
    assert not fits(dataclasses.replace(predicate, required=True), {"other": 1})


@pytest.mark.parametrize(
    ("value", "expected"), [("x", True), ("", False), (0, True), (False, True), (None, True), ([], True)]
)
def test_required_refuses_only_absence_and_the_empty_text(value: Any, expected: bool) -> None:
    """Zero, false and null are values."""
    assert fits(Predicate("f", required=True), {"f": value}) is expected


def test_pattern_matches_anywhere() -> None:
    """A pattern is anchored only if it says so."""
    assert fits(Predicate("f", pattern="cat"), {"f": "a cat sat"})
    assert fits(Predicate("f", pattern="^(ls|cat)"), {"f": "ls -l"})
    assert not fits(Predicate("f", pattern="^(ls|cat)"), {"f": "; ls"})


def test_dollar_matches_only_the_end() -> None:
    """A line break cannot smuggle a second command past an anchored pattern."""
    assert not fits(Predicate("f", pattern="^ls$"), {"f": "ls\n"})
    assert not fits(Predicate("f", pattern="^ls$"), {"f": "ls\nrm -rf /"})


def test_patterns_run_in_linear_time() -> None:
    """An expression that would hang a backtracking engine ends."""
    assert not fits(Predicate("f", pattern="^(a+)+$"), {"f": "a" * 100_000 + "!"})


def test_lone_surrogate_matches_as_replacement_character() -> None:
    """JSON can contain text without a UTF-8 form; it neither fails nor bypasses the pattern."""
    value = json.loads('{"f": "a\\ud800b"}')
    assert fits(Predicate("f", pattern="^a\ufffdb$"), value)
    assert not fits(Predicate("f", pattern="^[a-z]+$"), value)
    assert fits(Predicate("f", max_length=3), value)


@pytest.mark.parametrize("value", [5, True, None, ["x"], {"x": 1}])
def test_non_text_value_fails_text_constraints(value: Any) -> None:
    """Patterns, choices and lengths apply to text only."""
    assert not fits(Predicate("f", pattern="."), {"f": value})
    assert not fits(Predicate("f", one_of=("5", "True", "x")), {"f": value})
    assert not fits(Predicate("f", max_length=100), {"f": value})


@pytest.mark.parametrize("value", ["5", True, False, None, [5], {"v": 5}, float("nan")])
def test_non_number_fails_number_constraints(value: Any) -> None:
    """Text of digits is not a number; neither are true and NaN."""
    assert not fits(Predicate("f", min=-1000), {"f": value})
    assert not fits(Predicate("f", max=1000), {"f": value})


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, False), (1, True), (1.5, True), (30, True), (30.0, True), (30.01, False), (10**400, False)],
)
def test_number_bounds_are_inclusive(value: Any, expected: bool) -> None:
    """`min` and `max` apply together, to numbers of any size."""
    assert fits(Predicate("f", min=1, max=30), {"f": value}) is expected


def test_enum_and_length_constraints() -> None:
    """Choices are exact; a length counts code points, not bytes."""
    assert fits(Predicate("f", one_of=("get", "head")), {"f": "head"})
    assert not fits(Predicate("f", one_of=("get", "head")), {"f": "HEAD"})
    assert fits(Predicate("f", max_length=4), {"f": "ééé😀"})
    assert not fits(Predicate("f", max_length=3), {"f": "ééé😀"})
    assert fits(Predicate("f", max_length=0), {"f": ""})


def test_every_predicate_must_match() -> None:
    """Predicates on several fields are combined with and; nested keys are not searched."""
    both = Condition(arguments=(Predicate("command", pattern="^ls"), Predicate("timeout", max=30)))
    assert holds(both, arguments={"command": "ls", "timeout": 30})
    assert not holds(both, arguments={"command": "ls", "timeout": 31})
    assert not holds(both, arguments={"command": "rm", "timeout": 3})
    assert not fits(Predicate("a.b", required=True), {"a": {"b": "x"}})


def test_secret_argument_is_not_repeated_in_the_explanation() -> None:
    """The reason of a failed predicate names the field, never the value."""
    found = explain(
        policy(rule("it", Condition(arguments=(Predicate("token", pattern="^x$", max_length=2),)))),
        PolicyCall("a", "t", arguments={"token": "s3cr3t"}),
    )
    assert "token" in found.passed_over[0][1]
    assert "s3cr3t" not in found.passed_over[0][1]


# --- schedules ---------------------------------------------------------------------------------------


def open_at(schedule: str, moment: str) -> bool:
    return holds(Condition(schedule=Schedule.parse(schedule)), now_us=us(moment))


def test_schedule_includes_start_and_excludes_end() -> None:
    """17:00 is closed, the last microsecond before it is open. 2 March 2026 is a Monday."""
    office = "Mon-Fri 09:00-17:00 UTC"
    assert not open_at(office, "2026-03-02T08:59:59Z")
    assert open_at(office, "2026-03-02T09:00:00Z")
    assert open_at(office, "2026-03-02T16:59:59Z")
    assert not open_at(office, "2026-03-02T17:00:00Z")
    assert not open_at(office, "2026-03-01T12:00:00Z")
    last = Condition(schedule=Schedule.parse(office))
    assert holds(last, now_us=us("2026-03-02T17:00:00Z") - 1)


def test_schedule_follows_daylight_saving_time() -> None:
    """09:00 in London is another UTC time in July than in January."""
    london = "Mon-Fri 09:00-17:00 Europe/London"
    assert not open_at(london, "2026-01-05T08:30:00Z")
    assert open_at(london, "2026-07-06T08:30:00Z")
    assert not open_at(london, "2026-07-06T16:30:00Z")


def test_weekday_uses_the_schedules_time_zone() -> None:
    """Monday morning in Auckland is still Sunday in UTC."""
    assert open_at("Mon 00:00-12:00 Pacific/Auckland", "2026-03-01T20:00:00Z")
    assert not open_at("Sun 00:00-23:59 Pacific/Auckland", "2026-03-01T20:00:00Z")


def test_overnight_schedule_uses_the_current_weekday() -> None:
    """`Fri 22:00-06:00` is Friday's early morning and late evening, not Saturday's morning."""
    night = "Fri 22:00-06:00 UTC"
    assert open_at(night, "2026-03-06T05:59:00Z")
    assert not open_at(night, "2026-03-06T06:00:00Z")
    assert open_at(night, "2026-03-06T22:00:00Z")
    assert not open_at(night, "2026-03-07T05:00:00Z")


def test_day_ranges_wrap_around_the_week() -> None:
    """`Fri-Mon` is four days."""
    assert Schedule.parse("Fri-Mon 10:00-11:00 UTC").days == {4, 5, 6, 0}
    assert Schedule.parse("Mon,Wed 10:00-11:00 UTC").days == {0, 2}
    assert Schedule.parse("Tue-Tue 10:00-11:00 UTC").days == {1}
    assert Schedule.parse("Sun-Sat 9:05-11:00 UTC").days == set(range(7))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mon-Fri 09:00-17:00",
        "Mon-Fri 09:00 - 17:00 UTC",
        "mon-fri 09:00-17:00 UTC",
        "Mon-Fri-Sun 09:00-17:00 UTC",
        "Mon- 09:00-17:00 UTC",
        "Mon,,Wed 09:00-17:00 UTC",
        "Funday 09:00-17:00 UTC",
        "Mon 24:00-17:00 UTC",
        "Mon 09:00-17:60 UTC",
        "Mon 9-17 UTC",
        "Mon 09:00-17:00pm UTC",
        "Mon -1:00-17:00 UTC",
        "Mon 09:00-09:00 UTC",
        "Mon 09:00-17:00 Mars/Base",
        "Mon 09:00-17:00 ../../etc/passwd",
        "Mon 09:00-17:00 /etc/passwd",
        "Mon 09:00-17:00 America",
        "Mon 09:00-17:00 Local",
    ],
)
def test_invalid_schedule_is_refused(text: str) -> None:
    """An invalid schedule is an error at load, not a rule that silently never matches."""
    with pytest.raises(ValueError, match="schedule"):
        Schedule.parse(text)


_minutes = st.integers(0, 24 * 60 - 1)


@given(
    first=st.integers(0, 6),
    length=st.integers(1, 7),
    hours=st.tuples(_minutes, _minutes).filter(lambda pair: pair[0] != pair[1]),
    zone=st.sampled_from(["UTC", "Europe/London", "Asia/Kolkata", "Pacific/Auckland", "America/St_Johns"]),
    moment=st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),
)
def test_schedule_agrees_with_brute_force(
    first: int, length: int, hours: tuple[int, int], zone: str, moment: datetime
) -> None:
    """Days and minutes listed one by one give the same result as the compact form."""
    start, end = hours
    days = {(first + step) % 7 for step in range(length)}
    minutes = set()
    at = start
    while at != end:
        minutes.add(at)
        at = (at + 1) % (24 * 60)
    clock = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    text = f"{DAYS[first]}-{DAYS[(first + length - 1) % 7]} {clock} {zone}"
    there = moment.astimezone(ZoneInfo(zone))
    expected = there.weekday() in days and there.hour * 60 + there.minute in minutes
    now_us = int(moment.timestamp()) * 1_000_000 + moment.microsecond
    assert Schedule.parse(text).covers(now_us) is expected


# --- durations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("1m", MINUTE),
        ("90s", 90_000_000),
        ("1h30m", 5_400_000_000),
        ("1.5h", 5_400_000_000),
        (".5s", 500_000),
        ("1.s", 1_000_000),
        ("250ms", 250_000),
        ("7us", 7),
        ("7µs", 7),
        ("1500ns", 1),
        ("1h1h", 7_200_000_000),
    ],
)
def test_window_uses_go_duration_syntax(text: str, microseconds: int) -> None:
    """Numbers with units, summed."""
    assert duration_us(text) == microseconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "60",
        "1d",
        "m",
        "-1m",
        "+-1m",
        "1m ",
        "1 m",
        ".s",
        "1e3s",
        "999ns",
        "9" * 30 + "h",
        "٣s",
    ],
)
def test_invalid_window_is_refused(text: str) -> None:
    """Zero, negative, unitless, unknown-unit and absurd durations."""
    with pytest.raises(ValueError, match="duration"):
        duration_us(text)


# --- decisions ---------------------------------------------------------------------------------------


def test_first_matching_rule_decides() -> None:
    """Later rules are not evaluated; earlier ones are explained."""
    rules = (
        rule("never", Condition(agent_id="nobody"), "deny", priority=1),
        rule("first", Condition(tool_id=Glob("web.*")), "require_approval", priority=2),
        rule("second", Condition(), "allow", priority=3),
    )
    found = explain(policy(*rules), PolicyCall("researcher", "web.search"))
    assert found.decision.rule_id == "first"
    assert found.matched is rules[1]
    assert [passed.id for passed, _ in found.passed_over] == ["never"]
    assert found.not_reached == 1


def test_default_applies_without_a_match() -> None:
    """The default's rule id is `default`, and it denies unless the policy says otherwise."""
    call = PolicyCall("researcher", "shell.exec")
    assert decide(policy(), call) == Decision("deny", "default", "No explicit allow rule matched")
    generous = Decision("allow", "default", "fine")
    assert decide(policy(default=generous), call) is generous


def test_agent_without_rules_is_denied() -> None:
    """If only other agents have files, the reason names the agent."""
    only = Policy(agents={"researcher": RuleSet((), Decision("allow", "default", ""))})
    assert decide(only, PolicyCall("researcher", "x")).kind == "allow"
    denied = decide(only, PolicyCall('bob "the" agent', "x"))
    assert denied == Decision("deny", "agent-default", 'no policy configured for agent "bob \\"the\\" agent"')


def test_agents_own_file_replaces_the_global_rules() -> None:
    """Rules for agents without a file do not apply to those that have one."""
    both = Policy(agents={"a": RuleSet((), NO_RULE)}, others=RuleSet((rule("any", Condition()),), NO_RULE))
    assert decide(both, PolicyCall("a", "x")).rule_id == "default"
    assert decide(both, PolicyCall("b", "x")).rule_id == "any"


def test_no_policy_denies_in_production_and_allows_locally() -> None:
    """Both decisions name the default that was applied."""
    call = PolicyCall("a", "x")
    assert decide(SECURE, call).refusal == "policy denied: No policy engine configured (rule: secure-default)"
    assert (decide(PERMISSIVE, call).kind, decide(PERMISSIVE, call).rule_id) == (
        "allow",
        "permissive-default",
    )


def test_denial_names_reason_and_rule() -> None:
    """Protocol clients read this text; other decisions have none."""
    assert Decision("deny", "no-shell", "Never").refusal == "policy denied: Never (rule: no-shell)"
    assert Decision("allow", "x", "fine").refusal is None
    assert Decision("require_approval", "x", "ask").refusal is None


@pytest.mark.parametrize("value", [None, 5, [1, {"a": None}], {"f": {"g": [1]}}, {"f": "\ud800"}, {"": ""}])
def test_any_argument_is_decided(value: Any) -> None:
    """Any JSON argument gets a decision."""
    predicate = Predicate("f", pattern="x", one_of=("a",), min=1, max=2, max_length=3, required=True)
    call = PolicyCall("a\ud800", "t\ud800", arguments=value)
    assert decide(policy(rule("r", Condition(arguments=(predicate,)))), call).rule_id == "default"


# --- rate limits -------------------------------------------------------------------------------------


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = us("2026-03-02T09:00:00Z")

    def __call__(self) -> int:
        return self.now


LIMITED = policy(
    rule("limited", Condition(tool_id=Glob("web.*")), timeout_ms=5, rate_limit=RateLimit(2, MINUTE, "1m")),
    rule("ask", Condition(tool_id=Glob("deploy")), "require_approval", priority=2),
    default=Decision("allow", "default", ""),
)


def test_exceeded_limit_denies_with_its_message() -> None:
    """The third call in a minute is refused, names the rule, and has no timeout or limit."""
    limiter = MemoryRateLimiter(Clock())
    call = PolicyCall("researcher", "web.search")
    assert [judge(LIMITED, call, limiter).kind for _ in range(2)] == ["allow", "allow"]
    denied = judge(LIMITED, call, limiter)
    assert denied.refusal == "rate limit exceeded: max 2 per 1m (rule: limited)"
    assert denied.reason == "rate limit exceeded: max 2 per 1m"
    assert (denied.kind, denied.rate_limited, denied.timeout_ms, denied.rate_limit) == (
        "deny",
        True,
        None,
        None,
    )


def test_limit_counts_per_agent_and_tool() -> None:
    """Another tool under the same rule, or another agent, has its own count."""
    limiter = MemoryRateLimiter(Clock())
    for agent, tool in [("a", "web.search"), ("a", "web.fetch"), ("b", "web.search")]:
        kinds = [judge(LIMITED, PolicyCall(agent, tool), limiter).kind for _ in range(3)]
        assert kinds == ["allow", "allow", "deny"]


def test_sliding_window_ignores_refusals() -> None:
    """A slot is free exactly one window after it was taken, however many calls were refused meanwhile."""
    clock = Clock()
    limiter = MemoryRateLimiter(clock)
    assert limiter.take("k", 2, MINUTE)
    clock.now += MINUTE // 2
    assert limiter.take("k", 2, MINUTE)
    for _ in range(29):
        clock.now += 1_000_000
        assert not limiter.take("k", 2, MINUTE)
    clock.now += 999_999
    assert not limiter.take("k", 2, MINUTE)
    clock.now += 1
    assert limiter.take("k", 2, MINUTE)
    assert not limiter.take("k", 2, MINUTE)


def test_short_window_keeps_calls_of_a_longer_one() -> None:
    """Two rules with different windows share the log of an agent and a tool."""
    clock = Clock()
    limiter = MemoryRateLimiter(clock)
    assert limiter.take("k", 1, 60 * MINUTE)
    clock.now += 2 * MINUTE
    assert limiter.take("k", 1, MINUTE)
    clock.now += 2 * MINUTE
    assert limiter.take("k", 1, MINUTE)
    assert not limiter.take("k", 3, 60 * MINUTE)


def test_only_allowed_calls_are_counted() -> None:
    """Decisions only, approvals and rules without a limit do not touch the limiter."""

    class ForbiddenCounter:
        def take(self, key: str, max: int, window_us: int) -> bool:
            raise AssertionError("counted")

    assert decide(LIMITED, PolicyCall("a", "web.search")).rate_limit == RateLimit(2, MINUTE, "1m")
    assert judge(LIMITED, PolicyCall("a", "deploy"), ForbiddenCounter()).kind == "require_approval"
    assert judge(LIMITED, PolicyCall("a", "free"), ForbiddenCounter()).kind == "allow"
    assert judge(policy(), PolicyCall("a", "free"), ForbiddenCounter()).refusal == (
        "policy denied: No explicit allow rule matched (rule: default)"
    )


@given(st.tuples(*[st.text("a:%3A", max_size=6)] * 2), st.tuples(*[st.text("a:%3A", max_size=6)] * 2))
def test_limit_keys_are_unique(one: tuple[str, str], other: tuple[str, str]) -> None:
    """A colon in an id cannot make one agent use another's limit."""
    assert (limit_key(*one) == limit_key(*other)) is (one == other)
    assert limit_key("researcher", "web.search") == "researcher:web.search"


# --- decisions that need no look at the execution -----------------------------------------------------

CONDITIONS = st.builds(
    Condition,
    tool_id=st.sampled_from([None, Glob("web.*"), Glob("shell")]),
    agent_id=st.sampled_from(["", "", "a"]),
    agent_ids=st.sampled_from([(), (), ("a", "b")]),
    labels=st.sampled_from([(), (), (("env", "prod"),)]),
    arguments=st.sampled_from([(), (Predicate("n", min=2),)]),
    min_step_count=st.sampled_from([None, None, 0, 3]),
    min_duration_ms=st.sampled_from([None, None, 10]),
    schedule=st.sampled_from([None, None, Schedule.parse("Mon-Fri 09:00-17:00 UTC")]),
)
DECISIONS = st.builds(
    Decision,
    st.sampled_from(["allow", "deny", "require_approval"]),
    st.sampled_from(["one", "two"]),
    st.just("because"),
    rate_limit=st.sampled_from([None, None, None, RateLimit(1, MINUTE, "1m")]),
)
RULE_SETS = st.builds(
    RuleSet,
    st.lists(st.builds(PolicyRule, st.just(1), CONDITIONS, DECISIONS), max_size=3).map(tuple),
    DECISIONS,
)
CALLS = st.builds(
    PolicyCall,
    st.sampled_from(["a", "b", "c"]),
    st.just(""),
    labels=st.sampled_from([{}, {"env": "prod"}]),
    step_count=st.integers(0, 4),
    age_ms=st.integers(0, 20),
    now_us=st.sampled_from([us("2026-03-02T10:00:00Z"), us("2026-03-01T10:00:00Z")]),
)


@given(
    RULE_SETS,
    st.lists(CALLS, min_size=5),
    st.sampled_from(["web.x", "shell"]),
    st.sampled_from([{}, {"n": 3}, 1]),
)
def test_foreseen_decision_is_that_of_every_execution(
    rules: RuleSet, calls: list[PolicyCall], tool: str, arguments: Any
) -> None:
    """What is foreseen is what is decided for any execution at any time, and counts nothing."""
    found = foreseen(Policy(others=rules), tool, arguments)
    for call in calls if found else ():
        made = dataclasses.replace(call, tool_id=tool, arguments=arguments)
        assert decide(Policy(others=rules), made) == found and found.rate_limit is None


def test_what_is_foreseen() -> None:
    """Rules about other tools do not matter; rules about executions, and policies of single agents, do."""
    about_shell = rule("shell", Condition(tool_id=Glob("shell"), agent_id="a"))
    allowed = rule("web", Condition(tool_id=Glob("web.*"), arguments=(Predicate("n", min=2),)), priority=2)
    both = policy(about_shell, allowed)
    assert foreseen(both, "web.x", {"n": 3}) == allowed.decision
    assert foreseen(both, "web.x", {"n": 1}) == NO_RULE
    assert foreseen(both, "shell", {}) is None
    assert foreseen(LIMITED, "web.x", {}) is None and foreseen(LIMITED, "deploy", {}) is not None
    assert foreseen(Policy({"a": RuleSet((), NO_RULE)}, both.others), "web.x", {"n": 3}) is None
    assert foreseen(Policy(), "web.x", {}) is None
    assert foreseen(SECURE, "x", None) == SECURE.others.default  # type: ignore[union-attr]
