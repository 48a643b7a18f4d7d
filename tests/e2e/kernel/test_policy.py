"""A policy directory as agents meet it over HTTP, and what a broken one does to a start."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kernel.client import Api, Sse
from tests.e2e.kernel.site import Site

GLOBAL = """
rules:
  - id: nothing-by-night-on-mars
    priority: 5
    when: {tool_id: "mars.*", schedule: "Mon-Sun 22:00-06:00 Mars/Olympus"}
    then: {decision: deny}
default: {decision: allow, reason: not inherited}
"""
SHARED = """
rules:
  - id: no-secrets
    priority: 10
    when: {tool_ids: ["vault.*", "*.secret"]}
    then: {decision: deny, reason: secrets stay where they are}
  - id: production-is-closed
    priority: 20
    when: {labels: {env: prod}, agent_ids: [other, careful]}
    then: {decision: deny, reason: not in production}
default: {decision: allow, reason: everything else}
"""
CAREFUL = """
rules:
  - id: small-numbers
    priority: 15
    when:
      action: tool.invoke
      tool_id: "math.[a-m]*"
      arguments:
        - {field: n, min: 1, max: 10, required: true}
        - {field: unit, one_of: [m, km]}
        - {field: note, max_length: 4}
    then: {decision: allow}
  - id: only-listings
    priority: 16
    when: {tool_id: shell, arguments: [{field: command, pattern: "^(ls|cat) "}]}
    then: {decision: allow}
  - id: any-time
    priority: 17
    when: {tool_id: clock, schedule: "Mon-Sun 00:00-23:59 Europe/London"}
    then: {decision: allow}
  - id: night-of-another-minute
    priority: 18
    when: {tool_id: clock, schedule: "Mon-Sun 23:59-00:00 Europe/London"}
    then: {decision: allow}
  - id: enough
    priority: 30
    when: {tool_id: counted, min_step_count: 2}
    then: {decision: deny, reason: two steps are enough}
  - id: counted
    priority: 31
    when: {tool_id: counted}
    then: {decision: allow}
  - id: later
    priority: 32
    when: {tool_id: later, min_duration_ms: 600000}
    then: {decision: allow}
  - id: ask
    priority: 40
    when: {tool_id: "path/*"}
    then: {decision: require_approval, reason: somebody has to look}
"""


@pytest.fixture(name="ruled", scope="module")
def _ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A deployment with a global file and one of an agent."""
    home = tmp_path_factory.mktemp("ruled")
    policy = home / "policy"
    policy.mkdir()
    (policy / "_global.yaml").write_text(SHARED)
    (policy / "careful.yml").write_text(CAREFUL)
    site = Site(home, POLICY=str(policy))
    yield site.start()
    site.close()


@pytest.fixture(name="stream")
def _stream(ruled: Site) -> Iterator[Sse]:
    stream = ruled.api(0).agent("careful", uuid.uuid4().hex)
    yield stream
    stream.close()


def decided(api: Api, told: dict[str, Any], tool: str, arguments: Any = None) -> str:
    """The rule that denied a call, or 'allow' or 'ask'."""
    about = {} if arguments is None else {"arguments": arguments}
    answer = api.intent(told, "invoke_tool", tool_id=tool, **about)
    assert answer.status == 200, answer.raw
    body = answer.body
    if body["accepted"]:
        return "ask" if body.get("pending_approval") else "allow"
    denied = api.event(told["execution_id"], "intent.denied")["payload"]
    assert body["error"] == f"policy denied: {denied['reason']} (rule: {denied['rule_id']})"
    assert denied["tool_id"] == tool and denied.get("arguments") == arguments
    return str(denied["rule_id"])


def test_the_agents_file_and_the_global_one_decide_together(ruled: Site, stream: Sse) -> None:
    """By priority over both; each kind of condition counts; the agent's own default, which is to deny."""
    api = ruled.api(1)
    api.create("careful")
    told = stream.next("execution.assigned")
    expected = [
        ("vault.read", None, "no-secrets"),
        ("my.secret", None, "no-secrets"),
        ("math.add", {"n": 10, "unit": "km", "note": "\u00e9\u00e9\u00e9\u00e9"}, "allow"),
        ("math.add", {"n": 1}, "allow"),
        ("math.add", {"n": 11}, "default"),
        ("math.add", {"n": "5"}, "default"),
        ("math.add", {"n": True}, "default"),
        ("math.add", {"n": 5, "unit": "mile"}, "default"),
        ("math.add", {"n": 5, "note": "fives"}, "default"),
        ("math.add", {}, "default"),
        ("math.add", [5], "default"),
        ("math.add", None, "default"),
        ("math.sub", {"n": 5}, "default"),
        ("shell", {"command": "ls -l"}, "allow"),
        ("shell", {"command": "rm -rf / # ls "}, "default"),
        ("shell", {"command": "x; cat y"}, "default"),
        ("clock", None, "allow"),
        ("later", None, "default"),
        ("path/a/b", None, "default"),
        ("path/a", None, "ask"),
    ]
    assert [(tool, about, decided(api, told, tool, about)) for tool, about, _ in expected] == expected
    denied = api.event(told["execution_id"], "intent.denied")["payload"]
    assert denied["reason"] == "No explicit allow rule matched"
    api.ok("POST", f"/v0/executions/{told['execution_id']}/cancel")


def test_steps_are_counted_over_all_runs(ruled: Site, stream: Sse) -> None:
    """A run that begins again does not begin to count again."""
    api = ruled.api(1)
    api.create("careful")
    told = stream.next("execution.assigned")
    assert decided(api, told, "counted") == "allow"
    stream.close()
    second = api.agent("careful", uuid.uuid4().hex)
    told = second.next("execution.assigned")
    assert [decided(api, told, "counted") for _ in range(2)] == ["allow", "enough"]
    second.close()


def test_an_agent_without_a_file_has_the_global_rules(ruled: Site) -> None:
    """Labels of the execution count, and the global default."""
    api = ruled.api(0)
    stream = api.agent("other", "c1")
    found = []
    for env in ("prod", "dev"):
        ruled.api(1).create("other", None, env=env)
        told = stream.next("execution.assigned")
        found.append((decided(api, told, "anything"), decided(api, told, "vault.x")))
    assert found == [("production-is-closed", "no-secrets"), ("allow", "no-secrets")]
    stream.close()


def test_a_broken_policy_is_told_at_the_start(own_site: Callable[..., Site], tmp_path: Path) -> None:
    """Neither a web process nor a work tree begins with it; the line is named."""
    policy = tmp_path / "broken.yaml"
    policy.write_text(GLOBAL)
    site = own_site(POLICY=str(policy))
    for program in (site.web[0], site.work):
        program.start()
        assert program.ends(30) != 0
        told = program.log.read_text()
        assert f"{policy}:5: " in told and "time zone" in told, told
        assert "Traceback" not in told
