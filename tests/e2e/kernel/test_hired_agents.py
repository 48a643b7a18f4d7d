"""Remote agents sold by contract: paid at the HIRE door, working at the kernel door."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.conftest import POLICY
from tests.e2e.kernel.deployment import Deployment
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.seeker import Hired, HttpDoor, Seeker
from tests.waiting import eventually

AGENT, PRICE = "translation", "0.05"
CONFIG = f'[capability.{AGENT}]\nremote = true\nprice = "{PRICE}"\ntime_limit = "30s"\n'
DECLARED = """
[capability.painter]
remote = true
price = "0.05"
description = "Paints one frame."
input_schema = { type = "object", required = ["frame"], properties = { frame = { type = "integer" } } }
output_schema = "picture.json"
example_input = { frame = 1 }
max_latency = "20s"
model = "painter-2"
tags = ["picture"]
"""
PICTURE = '{"type": "object", "required": ["pixels"]}'
SCHEMA = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


@pytest.fixture(name="facilitator", scope="module")
def _facilitator() -> Iterator[FacilitatorServer]:
    with FacilitatorServer() as server:
        yield server


@pytest.fixture(name="paid", scope="module")
def _paid(tmp_path_factory: pytest.TempPathFactory, facilitator: FacilitatorServer) -> Iterator[Deployment]:
    """A deployment that sells a connected agent's work."""
    home = tmp_path_factory.mktemp("paid")
    config = home / "worker.toml"
    config.write_text(CONFIG + DECLARED)
    (home / "picture.json").write_text(PICTURE)
    deployment = Deployment(
        home,
        POLICY=str(POLICY),
        WORKER_CONFIG=str(config),
        FACILITATOR_URL=facilitator.url,
        WORKER_KEY="0x" + "22" * 32,
        SECRET_KEY="s" * 40,
        INLINE_BUDGET="0s",
    )
    yield deployment.start()
    deployment.close()


@pytest.fixture(name="hired")
def _hired(paid: Deployment) -> Hired:
    """A contract for the remote agent, with a new seeker, at the second web process."""
    task = {"output_schema": SCHEMA}
    return Seeker(HttpDoor(paid.address(1))).hire(AGENT, PRICE, task=task)


@pytest.fixture(name="agents")
def _agents(paid: Deployment) -> Api:
    return paid.api(0)


def begun(hired: Hired) -> str:
    """Pays and returns the task's id."""
    response = hired.pay({"text": "hello"})
    assert response.status == 202, response.content
    return str(response.json["task_id"])


def test_no_402_without_a_connected_agent(hired: Hired) -> None:
    """The response is 503, before payment."""
    response = hired.execute({"text": "hello"})
    assert (response.status, response.code) == (503, "WORKER_BUSY")


def test_hired_remote_agent_is_paid(agents: Api, hired: Hired, facilitator: FacilitatorServer) -> None:
    """The agent gets the input, calls tools, completes; the payment settles, then the output is delivered."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    assignment = stream.next("execution.assigned")
    assert (assignment["execution_id"], assignment["input"]) == (id, {"text": "hello"})
    assert assignment["labels"]["door"] == "hire" and hired.id not in str(assignment)
    step = agents.accepted(assignment, "invoke_tool", tool_id="dictionary", arguments={"w": "hello"})[
        "step_id"
    ]
    agents.step_result(assignment, step, success=True, data="bonjour")
    assert agents.accepted(assignment, "complete", output={"text": "bonjour"}) == {"accepted": True}
    stream.close()
    response = hired.ended(id)
    assert response.json["status"] == "completed", response.content
    assert response.json["output"] == {"type": "json", "content": {"text": "bonjour"}}
    assert facilitator.charged(hired.seeker.wallet) == 50_000
    kinds = agents.kinds(id)
    order = [
        "payment.verified",
        "execution.started",
        "intent.accepted",
        "execution.sealed",
        "payment.settled",
    ]
    assert [kind for kind in kinds if kind in order][-2:] == order[-2:]
    assert kinds[-1] == "execution.completed" and "execution.reset" not in kinds
    listed = agents.ok("GET", f"/v0/executions?label=door:hire&agent_id={AGENT}")["executions"]
    assert id in [each["id"] for each in listed]
    late = agents.call("POST", f"/v0/executions/{id}/cancel")
    assert late.status == 409


def test_declared_remote_agent_is_sold_like_local_code(
    paid: Deployment, agents: Api, facilitator: FacilitatorServer
) -> None:
    """Its options are in the manifest; its schemas validate input and output, the input before any 402."""
    door = HttpDoor(paid.address(1))
    [listed] = [each for each in door("GET", "/manifest").json["capabilities"] if each["name"] == "painter"]
    assert listed["description"] == "Paints one frame."
    assert listed["input_schema"]["required"] == ["frame"] and listed["output_schema"]["required"] == [
        "pixels"
    ]
    assert listed["sla"]["max_latency_ms"] == 20_000
    hired = Seeker(door).hire("painter", PRICE)
    stream = agents.agent("painter", "c1")
    eventually(lambda: hired.execute({"frame": 1}).status == 402)
    refused = hired.execute({"frame": "one"})
    assert (refused.status, refused.code) == (422, "INVALID_INPUT")
    id = str(hired.pay({"frame": 1}).json["task_id"])
    assignment = stream.next("execution.assigned")
    answer = agents.intent(assignment, "complete", output={"words": 1}).body
    assert answer["accepted"] is False and "does not fit its schema" in answer["error"]
    stream.close()
    response = hired.ended(id)
    assert (response.json["status"], response.json["error"]["code"]) == ("failed", "OUTPUT_SCHEMA_INVALID")
    assert facilitator.charged(hired.seeker.wallet) == 0


def test_invalid_output_is_refused_and_uncharged(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """The agent gets an error, the task fails, nothing is charged."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    assignment = stream.next("execution.assigned")
    answer = agents.intent(assignment, "complete", output={"words": 1}).body
    assert answer["accepted"] is False and "does not fit its schema" in answer["error"]
    response = hired.ended(id)
    assert (response.json["status"], response.json["error"]["code"]) == ("failed", "OUTPUT_SCHEMA_INVALID")
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_failing_agent_costs_nothing(agents: Api, hired: Hired, facilitator: FacilitatorServer) -> None:
    """The seeker gets the agent's message; no payment settles."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    assignment = stream.next("execution.assigned")
    agents.accepted(assignment, "fail", error="no such language")
    response = hired.ended(id)
    assert response.json["error"]["message"] == "no such language"
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_execution_fails_after_three_lost_agents(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """Another agent restarts it; after three lost ones the task fails, and nothing is charged."""
    stream = agents.agent(AGENT, "c0")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    for n in range(1, 4):
        assert stream.next("execution.assigned")["execution_id"] == id
        stream.close()
        stream = agents.agent(AGENT, f"c{n}")
    response = hired.ended(id)
    assert (response.json["status"], response.json["error"]["code"]) == ("failed", "WORKER_CRASHED")
    assert agents.kinds(id).count("execution.started") == 3
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_seeker_cancels_running_remote_work(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """The agent is notified and can do nothing more; nothing is charged."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    assignment = stream.next("execution.assigned")
    assert hired.cancel(id).status == 200
    assert stream.next("execution.cancelled")["execution_id"] == id
    assert agents.intent(assignment, "complete", output={"text": "x"}).status == 409
    time.sleep(0.2)
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_operator_watches_signals_and_cancels_hired_work(
    paid: Deployment, agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """At any process, by its labels, without the contract id anywhere; cancelled work is not charged."""
    stream, operator = agents.agent(AGENT, "c1"), paid.api(1)
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    assignment = stream.next("execution.assigned")
    labels = operator.get(id)["labels"]
    assert set(labels) == {"door", "contract_ref"} and labels["door"] == "hire"
    query = f"label=door:hire&label=contract_ref:{labels['contract_ref']}&status=running"
    assert [each["id"] for each in operator.ok("GET", f"/v0/executions?{query}")["executions"]] == [id]
    watcher = operator.sse(f"/v0/executions/{id}/stream")
    agents.accepted(assignment, "wait", signal_type="go")
    assert operator.signal(id, "go", 1).status == 200
    assert stream.next("signal.received")["payload"] == 1
    cancelled = operator.ok("POST", f"/v0/executions/{id}/cancel")
    assert cancelled["status"] == "cancelled"
    assert stream.next("execution.cancelled")["execution_id"] == id
    assert [sent.event for sent in watcher.all()][-1] == "execution.cancelled"
    assert hired.id not in str(watcher.seen) + str(cancelled) + str(assignment)
    response = hired.ended(id)
    assert (response.json["status"], facilitator.charged(hired.seeker.wallet)) == ("failed", 0)
    stream.close()


def test_run_limit_pauses_while_waiting_for_approval(agents: Api, paid: Deployment, hired: Hired) -> None:
    """Waiting for approval does not use up the agent's run limit."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    assignment: dict[str, Any] = stream.next("execution.assigned")
    agents.accepted(assignment, "invoke_tool", tool_id="deploy.x")
    before = int(paid.client().hget(f"w:x:{id}", "run_until") or 0)
    time.sleep(0.5)
    agents.signal(id, "approval", {"approved": False})
    stream.next("approval.resolved")
    after = int(paid.client().hget(f"w:x:{id}", "run_until") or 0)
    assert after - before >= 450_000
    agents.accepted(assignment, "complete", output={"text": "done"})
    assert hired.ended(id).json["status"] == "completed"
    stream.close()
