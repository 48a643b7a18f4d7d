"""The four flows in which a kernel uses a runtime, with the shipped agents and a language model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.swarm_runtime import HERE, PASSWORDS, Kernel, Runtime
from tests.fakes import language_model
from tests.fakes.kernel_request import CONTRACT, contract, execute_body
from tests.fakes.openai_server import Server, says, serving
from worker.swarm import minimal_schema
from worker.swarm.policies import KERNEL_HASHES, PolicyBinding, evaluate

STRING, NUMBER = {"type": "string"}, {"type": "number"}


def obj(optional: dict[str, Any], **required: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "properties": {**required, **optional}}


@dataclass(frozen=True)
class Flow:
    """A kernel's task, and the policy by which it verifies the response."""

    task_type: str
    inputs: Any
    schema: Any
    policy_id: str
    params: dict[str, Any]


TOPIC = dict.fromkeys(
    ("source_message_id", "proposal_id", "proposal_message_id", "stance", "answer", "summary"), STRING
)
FLOWS = {
    "run-real": Flow("swarm", {"prompt": "hello"}, CONTRACT["output_schema"], "vp.schema_only.v1", {}),
    "run queue": Flow(
        "swarm",
        {
            "prompt": "The committee says: do not approve it.",
            "agent_id": "agent-1",
            "rules": ["be brief"],
            "swarm_scope": "s",
            "_aggregation_signal": {"type": "NEED_MORE_EVIDENCE", "require_new_evidence": True},
        },
        obj({"confidence": NUMBER}, decision={"enum": ["APPROVE", "REJECT", "abstain"]}),
        "vp.crosscheck.v1",
        {"min_score": 0.9},
    ),
    "a2a": Flow(
        "a2a_invoke",
        {
            "request_id": "r-1",
            "target_agent_id": "agent-1",
            "capability": "arithmetic",
            "payload": {"question": "What is 2 + 2?"},
            "auth_proof": None,
            "payment_proof": None,
            "settlement": None,
            "signature": None,
            "protocol": "google_a2a",
        },
        obj({"confidence": NUMBER, "check_summary": STRING}, answer=STRING),
        "vp.schema_thresholds.v1",
        {"max_len": 400},
    ),
    "topic": Flow(
        "topic_interpretation",
        {
            "feed_key": "f",
            "scope_hint": None,
            "source_message": {
                "message_id": "m-1",
                "author_node_id": "n",
                "reply_to_message_id": None,
                "content": "The cheaper of the two, please.",
                "text": "The cheaper of the two, please.",
            },
            "candidate_proposals": [{"proposal_id": "p-1", "proposal_message_id": "m-p", "goal": None}],
            "thread_context": [],
            "prior_deliberations": [],
        },
        obj({"evidence": {"type": "array"}}, **TOPIC, confidence=NUMBER, needs_review={"type": "boolean"}),
        "vp.schema_only.v1",
        {},
    ),
}


@pytest.fixture(name="endpoint", scope="module")
def _endpoint() -> Iterator[Server]:
    with serving(language_model.answers) as server:
        yield server


@pytest.fixture(name="kernel", scope="module")
def _kernel(tmp_path_factory: pytest.TempPathFactory, endpoint: Server) -> Iterator[Kernel]:
    settings = {
        "SWARM_KEYS": f"alpha:{PASSWORDS['alpha']}",
        "WORKER_AGENTS": "worker.shipped",
        "WORKER_CONFIG": str(HERE / "flows.toml"),
        "CHAT_BASE_URL": endpoint.url,
        "CHAT_MODEL": "m-1",
    }
    runtime = Runtime(tmp_path_factory.mktemp("flows"), settings)
    try:
        runtime.start()
        yield Kernel(runtime.url)
    finally:
        runtime.close()


def execute(kernel: Kernel, flow: Flow, name: str, prefix: str = "", **changes: Any) -> dict[str, Any]:
    """Executes a task as a kernel does, and applies its rules for responses."""
    assert kernel.once("GET", "/health").status == 200
    capabilities = kernel.once("GET", "/capabilities").json()
    assert "default" in capabilities["profiles"]
    id = "exec-p-" + re.sub(r"\W", "-", f"{name}-{prefix}{flow.task_type}-{flow.policy_id}")
    policy = policy_of(flow)
    accepted = {**CONTRACT["acceptance"], "verifier_policy": policy}
    answer = kernel.run(
        execute_body(
            task_id=f"task-{id}",
            execution_id=id,
            attempt_id=id,
            task_type=prefix + flow.task_type,
            inputs=flow.inputs,
            task_contract=contract(inputs=flow.inputs, output_schema=flow.schema, acceptance=accepted),
            **changes,
        )
    )
    assert answer.status == 200, answer.body
    response: dict[str, Any] = answer.json()
    assert {"candidate_output", "evidence_inline", "evidence_refs"} <= response.keys()
    assert len(json.dumps(response["candidate_output"])) <= 65_536
    assert f"attempt={id}" in response["candidate_output"].get("check_summary", f"attempt={id}")
    return response


def policy_of(flow: Flow) -> dict[str, Any]:
    return {
        "policy_id": flow.policy_id,
        "policy_version": "1",
        "policy_hash": KERNEL_HASHES[flow.policy_id],
        "policy_params": flow.params,
    }


def verified(kernel: Kernel, flow: Flow, response: dict[str, Any]) -> bool:
    """Verifies the candidate at the runtime and checks that the kernel's own evaluation agrees."""
    output = response["candidate_output"]
    ref = {"uri": "artifact://x", "digest": "sha256:0", "size_bytes": 1, "mime": "application/json"}
    verdict = kernel.post(
        "/verify",
        {
            "candidate": {
                "candidate_id": "cand-1",
                "execution_id": "exec-1",
                "output_ref": {**ref, "created_at": 1, "producer": "n"},
                "output": output,
                "evidence_inline": response["evidence_inline"],
                "evidence_refs": response["evidence_refs"],
            },
            "output_schema": flow.schema,
            "policy": policy_of(flow),
        },
    ).json()
    own = evaluate(PolicyBinding(flow.policy_id, "1", "", flow.params), output, flow.schema)
    assert (verdict["passed"], verdict["reason_codes"]) == (own.passed, list(own.reason_codes))
    return own.passed


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("mood", language_model.MODELS)
def test_model_agent_passes_every_flow(kernel: Kernel, endpoint: Server, mood: str, name: str) -> None:
    """However the endpoint misbehaves at first, the response fits, is verified, and counts in a vote."""
    endpoint.reply = language_model.MODELS[mood]
    response = execute(kernel, FLOWS[name], mood, "chat-")
    output = response["candidate_output"]
    assert not minimal_schema.check(output, FLOWS[name].schema)
    assert verified(kernel, FLOWS[name], response)
    assert output["confidence"] == 0.9
    if name == "run queue":
        assert output["decision"] == "REJECT"
    if name == "topic":
        assert (output["source_message_id"], output["proposal_id"]) == ("m-1", "p-1")
        assert output["stance"] == "support" and output["needs_review"] is False


def test_model_agent_uses_an_earlier_answer(kernel: Kernel, endpoint: Server) -> None:
    """The task's stage and a seed with an earlier answer reach the agent."""
    endpoint.reply = language_model.answers
    hit = {"hit_type": "Exact", "decision_ref": {}, "reuse_payload": {"answer": "4, as before"}}
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [{**hit, "confidence_hint": 1.0}], "constraints": {}}
    response = execute(kernel, FLOWS["a2a"], "decide", "chat-", stage="DECIDE", seed_bundle=seed)
    assert response["candidate_output"]["answer"] == "4, as before"


def test_model_that_never_fits_fails_the_task(kernel: Kernel, endpoint: Server) -> None:
    """The response is 502: a kernel may run it again as a new task; no invalid output is returned."""
    endpoint.reply = says("no JSON today")
    body = execute_body(task_id="t-never", execution_id="never", attempt_id="never", task_type="chat-swarm")
    answer = kernel.run({**body, "task_contract": contract()})
    assert (answer.status, answer.json()["code"]) == (502, "OUTPUT_SCHEMA_INVALID")


@pytest.mark.parametrize("name", FLOWS)
def test_brief_agent_abstains_in_every_flow(kernel: Kernel, name: str) -> None:
    """It has nothing to summarise here: its response is accepted and carries no weight."""
    response = execute(kernel, FLOWS[name], "brief")
    output = response["candidate_output"]
    assert verified(kernel, FLOWS[name], response)
    assert output["confidence"] <= 0.05
    assert output.get("decision", "abstain") == output.get("stance", "abstain") == "abstain"
