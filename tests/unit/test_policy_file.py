"""Loading a policy file reports all errors at once, each with its line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from worker.cli import policy as policy_cli
from worker.policy.file import PolicyInvalid, load, policy_for, read
from worker.policy.judge import PERMISSIVE, SECURE, Decision, PolicyCall, RateLimit, decide

SHIPPED = Path(__file__).parents[2] / "config" / "policy.yaml"


@pytest.fixture(name="write")
def _write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "policy.yaml") -> Path:
        path = tmp_path / name
        path.write_text(dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write


Write = Callable[..., Path]


def found(path: Path) -> list[tuple[int, str]]:
    """Return line and message of every error."""
    return [(error.line, error.message) for error in read(path).errors]


def test_complete_rule_is_read(write: Write) -> None:
    """Every key of the format appears in the resulting decision."""
    loaded = load(
        write("""
        rules:
          - id: careful
            priority: 30
            when:
              action: tool.invoke
              tool_id: "shell.*"
              tool_ids: ["*.exec", other]
              agent_id: researcher
              agent_ids: [researcher, analyst]
              labels: {env: prod, beta: true, level: 5}
              arguments:
                - {field: command, pattern: "^(ls|cat)", required: true, max_length: 20}
                - {field: mode, one_of: [on, off]}
                - {field: timeout, min: 1, max: 2.5e1}
              min_step_count: 2
              min_duration_ms: 1000
              schedule: Mon-Fri 09:00-17:00 UTC
            then: {decision: allow, reason: "ok", timeout_ms: 10000}
            rate_limit: {max: 30, window: 1m}
        default: {decision: require_approval, reason: ask}
        """)
    )
    call = PolicyCall(
        agent_id="researcher",
        tool_id="shell.exec",
        arguments={"command": "ls", "mode": "on", "timeout": 25},
        labels={"env": "prod", "beta": "true", "level": "5"},
        step_count=2,
        age_ms=1000,
        now_us=1772442000_000_000,  # Monday 2 March 2026, 09:00 UTC
    )
    assert decide(loaded, call) == Decision("allow", "careful", "ok", 10000, RateLimit(30, 60_000_000, "1m"))
    fallback = Decision("require_approval", "default", "ask")
    for changed in (
        {"agent_id": "analyst"},
        {"tool_id": "shell.run"},
        {"arguments": {"command": "ls", "mode": "true", "timeout": 25}},
        {"arguments": {"command": "ls", "timeout": 25.1}},
        {"arguments": {"timeout": 25}},
        {"labels": {"env": "prod", "beta": "True", "level": "5"}},
        {"step_count": 1},
        {"age_ms": 999},
        {"now_us": call.now_us - 1},
    ):
        assert decide(loaded, PolicyCall(**{**_fields(call), **changed})) == fallback


def _fields(call: PolicyCall) -> dict[str, object]:
    return {name: getattr(call, name) for name in PolicyCall.__slots__}


def test_rules_are_sorted_by_priority(write: Write) -> None:
    """The lowest number comes first, negative ones before all; the default is 0."""
    loaded = load(
        write("""
        rules:
          - {id: last, priority: 9, then: {decision: allow}}
          - {id: none, then: {decision: allow}}
          - {id: first, priority: -1, then: {decision: allow}}
        """)
    )
    assert loaded.others is not None
    assert [rule.id for rule in loaded.others.rules] == ["first", "none", "last"]


def test_a_policy_without_rules_denies(write: Write) -> None:
    """A file may have only a default, or deliberately no rule."""
    assert decide(load(write("rules: []")), PolicyCall("a", "x")).kind == "deny"
    assert decide(load(write("default: {decision: allow}")), PolicyCall("a", "x")).kind == "allow"


RULE = "rules:\n  - id: a\n    {}\n    then: {{decision: allow}}\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "the policy is empty"),
        ("# only a comment\n", 1, "the policy is empty"),
        ("null\n", 1, "the policy is empty"),
        ("{}", 1, "the policy is empty"),
        ("rules:\n", 1, "rules has no value"),
        ("rules: []\ndefault:\n", 2, "default has no value"),
        ("default: {}", 1, "decision must be"),
        ("default: {reason: closed}", 1, "decision must be"),
        ("version: 2\nrules: []", 1, "the policy has no key version"),
        (RULE.format("wen: {tool_id: x}"), 3, "a rule has no key wen (there are id, priority"),
        (RULE.format("when: {tool: x}"), 3, "rule a: when has no key tool"),
        (RULE.format("when: {max_duration_ms: 5}"), 3, "has no key max_duration_ms"),
        (RULE.format("when: {action: tool.invok}"), 3, "action must be tool.invoke, not tool.invok"),
        (RULE.format("when:"), 3, "a rule: when has no value"),
        (RULE.format("when: {}"), 3, "a rule: when is empty"),
        (RULE.format("when: {tool_id: }"), 3, "tool_id has no value"),
        (RULE.format("when: {tool_id: ''}"), 3, "tool_id is empty"),
        (RULE.format("when: {tool_ids: []}"), 3, "tool_ids is empty"),
        (RULE.format("when: {tool_ids: [x, '']}"), 3, "an item of tool_ids is empty"),
        (RULE.format("when: {agent_ids: [~]}"), 3, "an item of agent_ids is empty"),
        (RULE.format("when: {labels: {}}"), 3, "labels is empty"),
        (RULE.format("when: {labels: {env: }}"), 3, "labels: env has no value"),
        (RULE.format("when: {arguments: []}"), 3, "arguments is empty"),
        (RULE.format("when: {arguments: [{field: f, patern: x}]}"), 3, "argument 1 has no key patern"),
        (RULE.format("when: {arguments: [{field: f, min: 1, pattern: ''}]}"), 3, "pattern is empty"),
        (RULE.format("when: {schedule: ''}"), 3, "schedule is empty"),
        (RULE.format("when: {tool_id: 'shell.['}"), 3, "tool_id is not a pattern"),
        (RULE.format("rate_limit: {max: 1, window: 1s, per: agent}"), 3, "rate_limit has no key per"),
        ("rules: [{id: a, then: {decison: deny}}]", 1, "then has no key decison"),
    ],
)
def test_unknown_fields_are_errors(write: Write, text: str, line: int, words: str) -> None:
    """A misspelt key, one without a value and an empty condition would allow everything."""
    assert any(at == line and words in message for at, message in found(write(text))), found(write(text))


def test_timeouts_and_limits_belong_to_allow(write: Write) -> None:
    """A rule that denies or asks has neither, and a limit there gives a note."""
    path = write("""
        rules:
          - id: a
            then: {decision: deny, reason: no, timeout_ms: 5}
            rate_limit: {max: 1, window: 1s}
        """)
    assert decide(load(path), PolicyCall("a", "y")) == Decision("deny", "a", "no")
    assert [note.line for note in read(path).notes] == [4]


def test_zero_timeout_means_none(write: Write) -> None:
    """Zero leaves the step timeout unchanged."""
    path = write("rules: [{id: a, then: {decision: allow, timeout_ms: 0}}]")
    assert decide(load(path), PolicyCall("a", "y")).timeout_ms is None


def test_all_errors_are_listed_with_their_lines(write: Write) -> None:
    """One load finds all errors."""
    path = write("""
        rules:
          - priority: 1
            then: {decision: allow}
          - id: twice
            priority: 2
            then: {decision: maybe}
          - id: twice
            priority: 1
            when:
              arguments:
                - {pattern: x}
                - {field: f}
                - field: g
                  pattern: "(?=x)"
              min_step_count: -1
              min_duration_ms: 0
              schedule: Mon-Fri 09:00 UTC
            then:
              decision: allow
              timeout_ms: -1
            rate_limit:
              max: 0
              window: soon
        default: {decision: perhaps}
        """)
    errors = found(path)
    assert [line for line, _ in errors] == [2, 6, 7, 7, 11, 12, 14, 15, 16, 17, 20, 22, 23, 24]
    for (_, message), words in zip(
        errors,
        [
            "no id",
            "not maybe",
            "already used in line 4",
            "priority 1 is taken",
            "names no field",
            "no constraint",
            "RE2",
            "min_step_count must be at least 0",
            "min_duration_ms must be at least 1",
            "schedule",
            "timeout_ms must be at least 0",
            "rate_limit.max must be at least 1",
            "duration",
            "default: decision",
        ],
        strict=True,
    ):
        assert words in message


def test_loading_raises_all_errors(write: Write) -> None:
    """The error lists file, line and message, as text and as data."""
    path = write("rules:\n  - {then: {decision: allow}}\n  - {id: b, priority: 1}\n")
    with pytest.raises(PolicyInvalid) as caught:
        load(path)
    problem = caught.value
    assert problem.code == "INVALID_POLICY"
    assert [error["line"] for error in problem.details["errors"]] == [2, 3]
    assert f"{path}:2: a rule has no id" in str(problem)
    assert f"{path}:3: rule b: decision must be allow, deny or require_approval, and is missing" in str(
        problem
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rules: 5", 1),
        ("- a\n- b", 1),
        ("rules:\n  - 5", 2),
        ("rules: [{id: [a], then: {decision: allow}}]", 1),
        ("rules: [{id: a, priority: high, then: {decision: allow}}]", 1),
        ("rules: [{id: a, priority: '5', then: {decision: allow}}]", 1),
        ("rules: [{id: a, priority: 1.5, then: {decision: allow}}]", 1),
        ("rules: [{id: a, priority: 1:30, then: {decision: allow}}]", 1),
        ("rules: [{id: a, priority: 010, then: {decision: allow}}]", 1),
        ("rules: [{id: a, priority: 99999999999999999999, then: {decision: allow}}]", 1),
        ("rules:\n- id: a\n  when: {tool_ids: web.*}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {labels: [a]}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {labels: {a: [b]}}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: [x]\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {arguments: {field: x}}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {arguments: [{field: x, min: .nan}]}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {arguments: [{field: x, max: big}]}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {arguments: [{field: x, required: 1}]}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {arguments: [{field: x, max_length: -1}]}\n  then: {decision: allow}", 3),
        ("rules:\n- id: a\n  when: {arguments: [{field: x, pattern: '(a{999}){999}'}]}", 3),
        ("rules:\n- id: a\n  then: {decision: allow}\n  rate_limit: {max: 1}", 4),
        ("rules:\n- id: a\n  then: {decision: allow}\n  rate_limit: {window: 1s}", 4),
        ("rules:\n- id: a\n  then: {decision: allow}\n  rate_limit: 5", 4),
        ("rules:\n- id: a\n  then: {decision: allow}\n  then: {decision: deny}", 4),
        ("rules:\n- id: a\n  then: {decision: Allow}", 3),
        ("rules:\n- id: a\n  when: {? [x] : y}\n  then: {decision: allow}", 3),
        ("default: deny", 1),
        ("rules:\n  - id: a\n   bad indent: x", 3),
        ("rules: [*nowhere]", 1),
        ("a: 1\n---\nb: 2", 2),
        ("a: 1\nb: \x07", 2),
    ],
)
def test_malformed_value_is_an_error_with_its_line(write: Write, text: str, line: int) -> None:
    """Wrong types, wrong forms and broken YAML are reported, never ignored."""
    assert line in [at for at, _ in found(write(text))]


def test_a_merge_key_is_refused(write: Write) -> None:
    """The loader does not support merge keys: the rule would match every call."""
    path = write("""
        rules:
          - id: a
            when: &web {tool_id: web.*}
            then: {decision: allow}
          - id: b
            priority: 1
            when: {<<: *web}
            then: {decision: allow}
        """)
    assert [line for line, _ in found(path)] == [7]


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00",
        b"[" * 20_000,
        b'a: "\\UFFFFFFFF"',
        b'a: "\\U00110000"',
        b"a: &x [*x]",
        b"? &a {? *a : b}\n: c",
    ],
)
def test_any_bytes_are_parsed_or_refused(tmp_path: Path, content: bytes) -> None:
    """Any file is loaded or refused by its errors, without an exception."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(content)
    reading = read(path)
    assert reading.errors or decide(reading.policy, PolicyCall("a", "x")).kind == "deny"


def test_error_messages_omit_parser_text(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """Errors use our own words, and the pattern engine prints nothing."""
    [(_, syntax)] = found(write("a: [1"))
    [(_, pattern)] = found(
        write("rules: [{id: a, when: {arguments: [{field: f, pattern: '('}]}, then: {decision: allow}}]")
    )
    assert syntax == "not valid YAML (one document is expected)"
    assert pattern == "rule a: argument 1: pattern is not a valid RE2 expression"
    assert capfd.readouterr().err == ""


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    """Some editors write a byte order mark."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xef\xbb\xbfdefault: {decision: allow}")
    assert decide(load(path), PolicyCall("a", "x")).kind == "allow"


def test_a_missing_file_is_an_error_without_a_line(tmp_path: Path) -> None:
    """A mistyped path is never treated as an empty policy."""
    [error] = read(tmp_path / "nowhere.yaml").errors
    assert str(error) == f"{tmp_path / 'nowhere.yaml'}: the file cannot be read"


# --- directories -------------------------------------------------------------------------------------

GLOBAL = """
rules:
  - {id: brake, priority: 1, when: {min_step_count: 100}, then: {decision: deny, reason: enough}}
  - {id: shared, priority: 50, when: {tool_id: web.*}, then: {decision: allow}}
default: {decision: allow, reason: of the global file}
"""
OWN = """
rules:
  - {id: own, priority: 20, when: {tool_id: web.search}, then: {decision: require_approval}}
"""


def test_agent_and_global_rules_are_merged(write: Write) -> None:
    """Rules are merged by priority; the default is the agent's own, never the global one."""
    path = write(GLOBAL, "_global.yaml").parent
    write(OWN, "researcher.yml")
    loaded = load(path)
    assert [rule.id for rule in loaded.agents["researcher"].rules] == ["brake", "own", "shared"]
    assert decide(loaded, PolicyCall("researcher", "web.search", step_count=100)).rule_id == "brake"
    assert decide(loaded, PolicyCall("researcher", "web.search")).rule_id == "own"
    assert decide(loaded, PolicyCall("researcher", "web.fetch")).rule_id == "shared"
    assert decide(loaded, PolicyCall("researcher", "other")).reason == "No explicit allow rule matched"


def test_an_agent_without_a_file_has_the_global_policy(write: Write) -> None:
    """The global rules and the global default apply."""
    path = write(GLOBAL, "_global.yml").parent
    write(OWN, "researcher.yaml")
    assert decide(load(path), PolicyCall("other", "web.search")).rule_id == "shared"
    assert decide(load(path), PolicyCall("other", "x")) == Decision("allow", "default", "of the global file")
    assert decide(load(path), PolicyCall("_global", "x")).reason == "of the global file"


def test_without_a_global_file_other_agents_are_denied(write: Write) -> None:
    """The denial names the agent."""
    path = write(OWN, "researcher.yaml").parent
    decision = decide(load(path), PolicyCall("other", "x"))
    assert decision.refusal == 'policy denied: no policy configured for agent "other" (rule: agent-default)'


def test_priorities_are_unique_in_the_merged_set(write: Write) -> None:
    """A clash with the global file is an error in the agent's file that names the other location."""
    path = write(GLOBAL, "_global.yaml").parent
    write(OWN.replace("20", "50"), "researcher.yaml")
    write(OWN.replace("20", "51"), "analyst.yaml")
    [error] = read(path).errors
    assert (Path(error.file).name, error.line) == ("researcher.yaml", 2)
    assert "rule shared at" in error.message
    assert "_global.yaml:3" in error.message


def test_duplicate_priority_is_reported_once(write: Write) -> None:
    """The error is not repeated for every agent."""
    path = write(GLOBAL.replace("50", "1"), "_global.yaml").parent
    write(OWN, "a.yaml")
    write(OWN, "b.yaml")
    assert [(Path(error.file).name, error.line) for error in read(path).errors] == [("_global.yaml", 3)]


def test_same_rule_id_in_two_files_is_allowed(write: Write) -> None:
    """Ids are unique within a file, as the format says."""
    path = write(GLOBAL, "_global.yaml").parent
    write(OWN.replace("own", "shared"), "researcher.yaml")
    assert read(path).errors == ()


def test_errors_of_all_files_are_listed(write: Write) -> None:
    """One broken file does not stop the directory from being read."""
    path = write("rules: 5", "_global.yaml").parent
    write("rules: [", "a.yaml")
    write("default: {decision: x}", "b.yaml")
    assert [Path(error.file).name for error in read(path).errors] == ["_global.yaml", "a.yaml", "b.yaml"]


def test_two_files_for_one_agent_are_an_error(write: Write) -> None:
    """Neither file may silently win."""
    path = write(OWN, "researcher.yaml").parent
    write(OWN, "researcher.yml")
    assert "already the policy of researcher" in read(path).errors[0].message


def test_only_policy_files_are_read(write: Write, tmp_path: Path) -> None:
    """Other files, hidden ones and directories are ignored; the extension may be upper case."""
    write("{", "notes.txt")
    write("{", ".#researcher.yaml")
    (tmp_path / "sub.yaml").mkdir()
    write(OWN, "researcher.YAML")
    assert list(load(tmp_path).agents) == ["researcher"]


def test_a_directory_without_policies_is_an_error(tmp_path: Path) -> None:
    """An empty directory would silently deny everything."""
    [error] = read(tmp_path).errors
    assert "no .yaml or .yml file" in error.message


def test_broken_symlink_is_an_error(tmp_path: Path, write: Write) -> None:
    """Unreadable rules are not treated as no rules."""
    write(OWN, "researcher.yaml")
    (tmp_path / "_global.yaml").symlink_to(tmp_path / "gone")
    assert [error.message for error in read(tmp_path).errors] == ["the file cannot be read"]


def test_default_policy_depends_on_the_environment(write: Write) -> None:
    """Production denies everything by default, others allow it; a configured path takes precedence."""
    assert policy_for(None, production=True) is SECURE
    assert policy_for("", production=False) is PERMISSIVE
    path = write("default: {decision: require_approval}")
    for production in (True, False):
        assert (
            decide(policy_for(path, production=production), PolicyCall("a", "x")).kind == "require_approval"
        )


# --- the shipped policy ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("shell", {"command": "ls -l src/"}, "allow"),
        ("shell.exec", {"command": "pwd"}, "allow"),
        ("shell.exec", {"command": "ls; rm -rf /"}, "require_approval"),
        ("shell.exec", {"command": "ls $(id)"}, "require_approval"),
        ("shell.exec", {"command": "ls\nrm -rf /"}, "require_approval"),
        ("shell.exec", {"command": "ls" + " a" * 300}, "require_approval"),
        ("shell.exec", {"command": ["ls"]}, "require_approval"),
        ("shell_exec", None, "require_approval"),
        ("deploy.production", {}, "require_approval"),
        ("files.delete", {}, "require_approval"),
        ("web.search", {"query": "x"}, "allow"),
        ("calculator", {}, "allow"),
    ],
)
def test_shipped_policy_stops_irreversible_tools(tool: str, arguments: object, expected: str) -> None:
    """The shipped policy has no errors or notes, stops irreversible tools and allows the rest."""
    reading = read(SHIPPED)
    assert (reading.errors, reading.notes) == ((), ())
    assert decide(reading.policy, PolicyCall("a", tool, arguments=arguments)).kind == expected


def test_shipped_policy_stops_after_500_steps_or_an_hour() -> None:
    """After 500 steps or an hour no further tool is called."""
    shipped = load(SHIPPED)
    assert decide(shipped, PolicyCall("a", "web.search", step_count=500)).rule_id == "runaway-steps"
    assert decide(shipped, PolicyCall("a", "calculator", age_ms=3_600_000)).rule_id == "runaway-duration"


# --- the command line --------------------------------------------------------------------------------


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    policy_cli.add(parser.add_subparsers())
    args = parser.parse_args(["policy", *words])
    code: int = args.handler(args)
    return code


def test_check_command_prints_ok_or_every_error(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0 or 1; errors go to stderr."""
    path = write(GLOBAL, "_global.yaml").parent
    write(OWN, "researcher.yaml")
    assert run("check", str(path)) == 0
    assert capsys.readouterr().out == "ok: 3 rules in 2 file(s)\n"
    broken = write("colour: red\nrules: [{id: a}]\ndefault: {decision: x}", "broken.yaml")
    assert run("check", str(broken)) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    lines = [line.split(" ")[1] for line in seen.err.splitlines()]
    assert lines == [f"{broken}:1:", f"{broken}:2:", f"{broken}:3:"]


@pytest.mark.parametrize("text", ["", "wen: x", "rules: [{id: a, when: {tool: x}, then: {decision: allow}}]"])
def test_both_commands_take_the_same_file_options(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Argument, --policy or setting; both commands accept and refuse the same."""
    fine, wrong = write("default: {decision: allow}", "fine.yaml"), write(text, "wrong.yaml")
    call = ["--agent", "a", "--tool", "t"]
    for path, code in ((fine, 0), (wrong, 1)):
        for words in ([str(path)], ["--policy", str(path)]):
            assert (run("check", *words), run("test", *words, *call)) == (code, code)
        monkeypatch.setenv("POLICY", f" {path} ")
        assert (run("check"), run("test", *call)) == (code, code)
        seen = capsys.readouterr()
        assert seen.err.count(f"error: {path}:1: ") == (6 if code else 0)
    monkeypatch.delenv("POLICY")
    assert run("check") == 1
    assert "set POLICY" in capsys.readouterr().err


def test_policy_test_command_explains_the_decision(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rule tried is shown with its location and why it did not match, then the agent's message."""
    path = write("""
        rules:
          - {id: hours, priority: 1, when: {schedule: Sat 10:00-11:00 UTC}, then: {decision: allow}}
          - {id: args, priority: 2, when: {arguments: [{field: n, max: 3}]}, then: {decision: allow}}
          - {id: prod, priority: 3, when: {labels: {e: p}, min_step_count: 5}, then: {decision: deny}}
          - {id: rest, priority: 4, then: {decision: allow, timeout_ms: 9}, rate_limit: {max: 2, window: 1m}}
        """)
    words = ["test", "--policy", str(path), "--agent", "a", "--tool", "t", "--arguments", '{"n": 4}']
    words += ["--label", "e=p", "--label", "x=y=z", "--at", "2026-03-07T12:00:00+01:00"]
    assert run(*words, "--steps", "5", "--age-ms", "7") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "call: a -> t at 2026-03-07T11:00:00+00:00"
    assert lines[2].endswith(f"1 hours ({path}:2): no, outside the schedule Sat 10:00-11:00 UTC")
    assert lines[3].endswith(f"2 args ({path}:3): no, argument n is not a number of at most 3")
    assert lines[4].endswith(f"3 prod ({path}:4): matches")
    assert lines[5:] == [
        "  1 later rule(s) not reached",
        "decision: deny (rule: prod)",
        "the agent reads: policy denied:  (rule: prod)",
    ]
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].endswith("no, 0 steps so far, fewer than 5")
    assert lines[-3:] == [
        "decision: allow (rule: rest)",
        "timeout: 9 ms",
        "rate limit: max 2 per 1m, counted in a running worker only",
    ]


def test_policy_test_command_uses_the_configured_policy(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`POLICY` as the worker reads it; without it, the environment's default."""
    monkeypatch.setenv("POLICY", str(write("default: {decision: require_approval}")))
    assert run("test", "--agent", "a", "--tool", "t") == 0
    assert "decision: require_approval (rule: default)" in capsys.readouterr().out
    monkeypatch.delenv("POLICY")
    monkeypatch.setenv("WORKER_ENV", "production")
    assert run("test", "--agent", "a", "--tool", "t") == 0
    assert "(rule: secure-default)" in capsys.readouterr().out
    monkeypatch.setenv("WORKER_ENV", "local")
    assert run("test", "--agent", "a", "--tool", "t") == 0
    assert "(rule: permissive-default)" in capsys.readouterr().out


def test_policy_test_command_refuses_an_invalid_policy(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command never decides with an invalid policy."""
    path = write("rules: [{id: a}]\ndefault: {decision: allow}")
    assert run("test", "--policy", str(path), "--agent", "a", "--tool", "t") == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert f"error: {path}:1:" in seen.err


@pytest.mark.parametrize(
    "words",
    [
        ["--arguments", "{"],
        ["--arguments", "[" * 100_000],
        ["--label", "env"],
        ["--label", "=x"],
        ["--steps", "-1"],
        ["--steps", "²"],
        ["--age-ms", "1.5"],
        ["--at", "tomorrow"],
        ["--at", "0001-01-01T00:00:00+14:00"],
    ],
)
def test_policy_test_command_refuses_unreadable_input(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """An error on the command line is a usage error, not a decision."""
    with pytest.raises(SystemExit) as caught:
        run("test", "--agent", "a", "--tool", "t", *words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err
