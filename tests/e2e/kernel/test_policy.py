"""Policy directories as agents see them over HTTP, and an invalid one at startup."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kernel.client import Api, Sse
from tests.e2e.kernel.deployment import Deployment

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
def _ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment with a global policy file and one for an agent."""
    home = tmp_path_factory.mktemp("ruled")
    policy = home / "policy"
    policy.mkdir()
    (policy / "_global.yaml").write_text(SHARED)
    (policy / "careful.yml").write_text(CAREFUL)
    deployment = Deployment(home, POLICY=str(policy))
    yield deployment.start()
    deployment.close()


@pytest.fixture(name="stream")
def _stream(ruled: Deployment) -> Iterator[Sse]:
    stream = ruled.api(0).agent("careful", uuid.uuid4().hex)
    yield stream
    stream.close()


def decided(api: Api, assignment: dict[str, Any], tool: str, arguments: Any = None) -> str:
    """The id of the rule that denied a call, or 'allow' or 'ask'."""
    about = {} if arguments is None else {"arguments": arguments}
    answer = api.intent(assignment, "invoke_tool", tool_id=tool, **about)
    assert answer.status == 200, answer.raw
    body = answer.body
    if body["accepted"]:
        return "ask" if body.get("pending_approval") else "allow"
    denied = api.event(assignment["execution_id"], "intent.denied")["payload"]
    assert body["error"] == f"policy denied: {denied['reason']} (rule: {denied['rule_id']})"
    assert denied["tool_id"] == tool and denied.get("arguments") == arguments
    return str(denied["rule_id"])


def test_agent_and_global_policy_files_merge_by_priority(ruled: Deployment, stream: Sse) -> None:
    """Rules of both files by priority, each kind of condition, and the agent's own default (deny)."""
    api = ruled.api(1)
    api.create("careful")
    assignment = stream.next("execution.assigned")
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
    assert [(tool, about, decided(api, assignment, tool, about)) for tool, about, _ in expected] == expected
    denied = api.event(assignment["execution_id"], "intent.denied")["payload"]
    assert denied["reason"] == "No explicit allow rule matched"
    api.ok("POST", f"/v0/executions/{assignment['execution_id']}/cancel")


def test_step_counts_include_earlier_runs(ruled: Deployment, stream: Sse) -> None:
    """A restarted run continues the earlier counts."""
    api = ruled.api(1)
    api.create("careful")
    assignment = stream.next("execution.assigned")
    assert decided(api, assignment, "counted") == "allow"
    stream.close()
    second = api.agent("careful", uuid.uuid4().hex)
    assignment = second.next("execution.assigned")
    assert [decided(api, assignment, "counted") for _ in range(2)] == ["allow", "enough"]
    second.close()


def test_agent_without_a_policy_file_uses_the_global_one(ruled: Deployment) -> None:
    """The execution's labels and the global default apply."""
    api = ruled.api(0)
    stream = api.agent("other", "c1")
    found = []
    for env in ("prod", "dev"):
        ruled.api(1).create("other", None, env=env)
        assignment = stream.next("execution.assigned")
        found.append((decided(api, assignment, "anything"), decided(api, assignment, "vault.x")))
    assert found == [("production-is-closed", "no-secrets"), ("allow", "no-secrets")]
    stream.close()


def test_invalid_policy_stops_the_start(own_deployment: Callable[..., Deployment], tmp_path: Path) -> None:
    """Neither a web process nor a work tree starts with it; the error names the line."""
    policy = tmp_path / "broken.yaml"
    policy.write_text(GLOBAL)
    deployment = own_deployment(POLICY=str(policy))
    for program in (deployment.web[0], deployment.work):
        program.start()
        assert program.ends(30) != 0
        log = program.log.read_text()
        assert f"{policy}:5" in log and "time zone" in log, log
        assert "Traceback" not in log
