"""`worker executions`, `worker agents` and `worker run` of blocked work, against a running worker."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.tree import PYTHON, ROOT, Local, Program
from tests.waiting import eventually

HERE = Path(__file__).parent
POLICY = """\
rules:
  - id: ask-before-deploy
    priority: 10
    when: {tool_id: "deploy.*"}
    then: {decision: require_approval, reason: it cannot be undone}
default: {decision: allow, reason: allowed}
"""
REMOTE = '[capability.far-away]\nremote = true\nprice = "1.00"\n'


@pytest.fixture(name="local", scope="module")
def _local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    home = tmp_path_factory.mktemp("cli")
    policy, config = home / "policy.yaml", home / "worker.toml"
    policy.write_text(POLICY)
    config.write_text(REMOTE)
    local = Local(home, WORKER_AGENTS="cli_agents", POLICY=str(policy), WORKER_CONFIG=str(config))
    try:
        local.start()
        yield local
    finally:
        local.close()


class Commands:
    """Runs `worker ...` against the local worker."""

    def __init__(self, local: Local) -> None:
        self.local = local

    def words(self, *words: str) -> list[str]:
        return [*PYTHON, "worker", *words, "--state", str(self.local.state)]

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """(exit code, standard output, standard error)"""
        done = subprocess.run(
            self.words(*words), cwd=ROOT, env=self.local.environ, capture_output=True, text=True, timeout=30
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout, done.stderr

    def blocked(self, agent: str, **input: str) -> str:
        """A blocked execution."""
        id = self.local.create(agent, **input)
        eventually(lambda: self.local.parts.executions.get(id).state == "blocked", 20, f"{id} does not wait")
        return id


@pytest.fixture(name="worker", scope="module")
def _worker(local: Local) -> Commands:
    return Commands(local)


def suggested(text: str, action: str) -> list[str]:
    """The words of the command that the text suggests."""
    found = re.search(rf"^.*worker (executions {action} .*)$", text, re.M)
    assert found, text
    return found[1].split(" --state ")[0].split()


def test_list_filters_and_pages(worker: Commands) -> None:
    """Newest first; by agent, status and label; a page says how to get the next one, in text and JSON."""
    ids = [worker.local.create("echo", n=str(n)) for n in range(3)]
    for id in ids:
        worker.local.ended(id)
    code, out, _ = worker("executions", "list", "--agent", "echo", "--status", "completed")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["execution", *reversed(ids)]
    code, out, err = worker("executions", "list", "--agent", "echo", "--limit", "2", "--json")
    page = json.loads(out)
    assert [each["id"] for each in page["executions"]] == [ids[2], ids[1]]
    assert page["executions"][0]["status"] == "completed"
    _, out, _ = worker("executions", "list", "--agent", "echo", "--cursor", page["next_cursor"], "--json")
    assert [each["id"] for each in json.loads(out)["executions"]] == [ids[0]]
    assert worker("executions", "list", "--label", "no=where")[1] == "no executions match\n"
    code, _, err = worker("executions", "list", "--limit", "0")
    assert code == 1 and "--cursor" in err


def test_a_wait_is_answered_by_the_command_that_is_shown(worker: Commands) -> None:
    """`worker run` reports the wait and how to answer it; an answer from elsewhere ends the wait."""
    local = worker.local
    log = local.state / "run.log"
    run = Program(worker.words("run", "patient"), local.environ, log)
    eventually(lambda: "waits for the signal 'go ahead'" in run.log, 20, "no word of the wait")
    words = suggested(run.log, "signal")
    assert words[3:5] == ["'go", "ahead'"] and f"--state {local.state}" in run.log
    id = words[2]
    code, out, _ = worker("executions", "show", id)
    assert code == 0 and "answer:  worker executions signal" in out
    code, _, err = worker("executions", "signal", id, "another")
    assert code == 0 and "stored" in err and "'go ahead'" in err
    code, out, _ = worker("executions", "signal", id, "go ahead", "--payload", '{"by": "Ann"}')
    assert (code, out) == (0, "answered: it goes on\n")
    assert run.ends() == 0
    assert '"by": "Ann"' in run.log and "resumed" in run.log


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ([], {"done": "deployed shop"}),
        (["--deny", "--reason", "not today"], {"denied": "not today"}),
    ],
)
def test_an_approval_is_decided(worker: Commands, options: list[str], output: dict[str, str]) -> None:
    """The blocked step is approved or denied, with the reason that the agent reads."""
    id = worker.blocked("deployer")
    _, out, _ = worker("executions", "show", id)
    assert "waits for approval of deploy.site" in out
    assert suggested(out, "approve")[:3] == ["executions", "approve", id]
    code, _, err = worker("executions", "approve", id, "--step", "not-a-step")
    assert code == 1 and "deploy.site" in err
    code, out, _ = worker("executions", "approve", id, *options)
    assert code == 0 and "deploy.site" in out
    assert worker.local.output(id) == output
    code, _, err = worker("executions", "approve", id)
    assert code == 1 and "no step waits for approval" in err and "worker executions show" in err


def test_watch_follows_what_somebody_else_started(worker: Commands) -> None:
    """From the first event to the output, as text or JSON lines; the exit code reflects the outcome."""
    id = worker.local.create("echo", n="7")
    code, out, err = worker("executions", "watch", id)
    assert (code, json.loads(out)) == (0, {"n": "7"})
    assert "completed in" in err
    code, out, _ = worker("executions", "watch", id, "--json")
    assert code == 0
    assert [json.loads(line)["type"] for line in out.splitlines()] == worker.local.kinds(id)
    broken = worker.local.create("broken")
    code, _, err = worker("executions", "watch", broken)
    assert code == 1 and f"worker executions show {broken}" in err


def test_show_tells_why_it_failed(worker: Commands) -> None:
    """The cause with file and line, as text and as JSON."""
    id = worker.local.create("broken")
    worker.local.ended(id)
    assert "KeyError" in worker("executions", "show", id)[1]
    shown = json.loads(worker("executions", "show", id, "--json")[1])
    assert shown["status"] == "failed" and shown["error"]["code"] == "INTERNAL_ERROR"
    assert [each["type"] for each in shown["events"]] == worker.local.kinds(id)
    assert "cli_agents.py" in shown["failures"][0]["where"]


def test_cancel_ends_it_once(worker: Commands) -> None:
    """A second cancel reports that the execution has ended."""
    id = worker.blocked("patient")
    code, out, _ = worker("executions", "cancel", id)
    assert (code, out) == (0, f"cancelled: {id}\n")
    assert worker.local.ended(id).state == "cancelled"
    code, _, err = worker("executions", "cancel", id)
    assert code == 1 and "already cancelled" in err


def test_absent_remote_agent_is_named(worker: Commands) -> None:
    """`worker run` of an agent that is not connected says so, and so does `worker agents`."""
    run = Program(worker.words("run", "far-away"), worker.local.environ, worker.local.state / "far.log")
    eventually(lambda: "waits for an agent to connect as 'far-away'" in run.log, 20, "no word of it")
    run.kill_family()
    assert re.search(r"^far-away +1 +elsewhere, NOT connected", worker("agents")[1], re.M)


def test_agents_are_listed_with_price_and_place(worker: Commands) -> None:
    """A table, the details of one with the commands to run and hire it, and JSON."""
    code, out, _ = worker("agents")
    assert code == 0
    assert re.search(r"^deployer +0.20 +here, at once +Calls a tool", out, re.M)
    assert re.search(r"^echo +not sold", out, re.M)
    assert "_output-check" not in out
    detail = worker("agents", "deployer")[1]
    assert 'worker run deployer --input \'{"site": "shop"}\'' in detail and "worker hire http" in detail
    listed = {each["name"]: each for each in json.loads(worker("agents", "--json")[1])}
    assert listed["deployer"]["price"] == "0.20" and listed["far-away"]["connected"] is False
    code, _, err = worker("agents", "deploier")
    assert code == 1 and "deployer" in err


@pytest.mark.parametrize("action", ["show", "watch", "cancel", "signal", "approve"])
def test_unknown_execution_is_refused(worker: Commands, action: str) -> None:
    """An unknown or an invalid id gets an error with advice."""
    for id in ("01a1f0d4-63c5-791c-969d-a3c74c8f7de6", "nonsense"):
        code, out, err = worker("executions", action, id, *(["go"] if action == "signal" else []))
        assert (code, out) == (1, "")
        assert "worker executions list" in err
