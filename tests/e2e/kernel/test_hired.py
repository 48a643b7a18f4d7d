"""A remote agent as what a contract buys: hired and paid at one door, at work at another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.kernel.client import Api
from tests.e2e.kernel.conftest import POLICY
from tests.e2e.kernel.site import Site
from tests.fakes.facilitator_server import FacilitatorServer
from tests.fakes.seeker import Hired, HttpDoor, Seeker
from tests.waiting import eventually

AGENT, PRICE = "translation", "0.05"
CONFIG = f'[capability.{AGENT}]\nremote = true\nprice = "{PRICE}"\ntime_limit = "30s"\n'
SCHEMA = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}


@pytest.fixture(name="facilitator", scope="module")
def _facilitator() -> Iterator[FacilitatorServer]:
    with FacilitatorServer() as server:
        yield server


@pytest.fixture(name="paid", scope="module")
def _paid(tmp_path_factory: pytest.TempPathFactory, facilitator: FacilitatorServer) -> Iterator[Site]:
    """A deployment that sells what a connected agent does."""
    home = tmp_path_factory.mktemp("paid")
    config = home / "worker.toml"
    config.write_text(CONFIG)
    site = Site(
        home,
        POLICY=str(POLICY),
        WORKER_CONFIG=str(config),
        FACILITATOR_URL=facilitator.url,
        WORKER_KEY="0x" + "22" * 32,
        SECRET_KEY="s" * 40,
        INLINE_BUDGET="0s",
    )
    yield site.start()
    site.close()


@pytest.fixture(name="hired")
def _hired(paid: Site) -> Hired:
    """A contract for it, with a seeker of its own, at the second web process."""
    task = {"output_schema": SCHEMA}
    return Seeker(HttpDoor(paid.address(1))).hire(AGENT, PRICE, task=task)


@pytest.fixture(name="agents")
def _agents(paid: Site) -> Api:
    return paid.api(0)


def begun(hired: Hired) -> str:
    """Pays; the id of the task."""
    said = hired.pay({"text": "hello"})
    assert said.status == 202, said.content
    return str(said.json["task_id"])


def test_nobody_is_asked_to_pay_for_an_agent_that_is_not_there(hired: Hired) -> None:
    """503 before money is mentioned."""
    said = hired.execute({"text": "hello"})
    assert (said.status, said.code) == (503, "WORKER_BUSY")


def test_a_hired_agent_is_paid_for_its_work(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """It gets the input, calls tools, completes; the money settles, then the seeker has the output."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    told = stream.next("execution.assigned")
    assert (told["execution_id"], told["input"]) == (id, {"text": "hello"})
    assert told["labels"]["door"] == "hire" and hired.id not in str(told)
    step = agents.accepted(told, "invoke_tool", tool_id="dictionary", arguments={"w": "hello"})["step_id"]
    agents.step_result(told, step, success=True, data="bonjour")
    assert agents.accepted(told, "complete", output={"text": "bonjour"}) == {"accepted": True}
    stream.close()
    said = hired.ended(id)
    assert said.json["status"] == "completed", said.content
    assert said.json["output"] == {"type": "json", "content": {"text": "bonjour"}}
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


def test_an_output_that_breaks_the_contract_is_refused(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """The agent is told, the task fails, nothing is charged."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    told = stream.next("execution.assigned")
    answer = agents.intent(told, "complete", output={"words": 1}).body
    assert answer["accepted"] is False and "does not fit its schema" in answer["error"]
    said = hired.ended(id)
    assert (said.json["status"], said.json["error"]["code"]) == ("failed", "OUTPUT_SCHEMA_INVALID")
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_an_agent_that_gives_up_costs_nothing(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """Its message is the seeker's, the money stays where it is."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    told = stream.next("execution.assigned")
    agents.accepted(told, "fail", error="no such language")
    said = hired.ended(id)
    assert said.json["error"]["message"] == "no such language"
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_a_hired_agent_that_is_lost_too_often(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """Another one begins again; after three lost ones the task fails, and nothing is charged."""
    stream = agents.agent(AGENT, "c0")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    for n in range(1, 4):
        assert stream.next("execution.assigned")["execution_id"] == id
        stream.close()
        stream = agents.agent(AGENT, f"c{n}")
    said = hired.ended(id)
    assert (said.json["status"], said.json["error"]["code"]) == ("failed", "WORKER_CRASHED")
    assert agents.kinds(id).count("execution.started") == 3
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_the_seeker_may_cancel_while_it_works(
    agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """The agent hears of it and can do nothing more; the money stays."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    told = stream.next("execution.assigned")
    assert hired.cancel(id).status == 200
    assert stream.next("execution.cancelled")["execution_id"] == id
    assert agents.intent(told, "complete", output={"text": "x"}).status == 409
    time.sleep(0.2)
    assert facilitator.charged(hired.seeker.wallet) == 0
    stream.close()


def test_the_operator_watches_signals_and_cancels_what_was_hired(
    paid: Site, agents: Api, hired: Hired, facilitator: FacilitatorServer
) -> None:
    """At any process, by its labels; the contract's id is nowhere; work that is cancelled is not charged."""
    stream, operator = agents.agent(AGENT, "c1"), paid.api(1)
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    told = stream.next("execution.assigned")
    labels = operator.get(id)["labels"]
    assert set(labels) == {"door", "contract_ref"} and labels["door"] == "hire"
    query = f"label=door:hire&label=contract_ref:{labels['contract_ref']}&status=running"
    assert [each["id"] for each in operator.ok("GET", f"/v0/executions?{query}")["executions"]] == [id]
    watcher = operator.sse(f"/v0/executions/{id}/stream")
    agents.accepted(told, "wait", signal_type="go")
    assert operator.signal(id, "go", 1).status == 200
    assert stream.next("signal.received")["payload"] == 1
    cancelled = operator.ok("POST", f"/v0/executions/{id}/cancel")
    assert cancelled["status"] == "cancelled"
    assert stream.next("execution.cancelled")["execution_id"] == id
    assert [sent.event for sent in watcher.all()][-1] == "execution.cancelled"
    assert hired.id not in str(watcher.seen) + str(cancelled) + str(told)
    said = hired.ended(id)
    assert (said.json["status"], facilitator.charged(hired.seeker.wallet)) == ("failed", 0)
    stream.close()


def test_time_stands_still_while_a_person_is_asked(agents: Api, paid: Site, hired: Hired) -> None:
    """A wait for approval does not use up the agent's time to run."""
    stream = agents.agent(AGENT, "c1")
    eventually(lambda: hired.execute({"text": "hello"}).status == 402)
    id = begun(hired)
    told: dict[str, Any] = stream.next("execution.assigned")
    agents.accepted(told, "invoke_tool", tool_id="deploy.x")
    before = int(paid.client().hget(f"w:x:{id}", "run_until") or 0)
    time.sleep(0.5)
    agents.signal(id, "approval", {"approved": False})
    stream.next("approval.resolved")
    after = int(paid.client().hget(f"w:x:{id}", "run_until") or 0)
    assert after - before >= 450_000
    agents.accepted(told, "complete", output={"text": "done"})
    assert hired.ended(id).json["status"] == "completed"
    stream.close()
