"""Parsing kernel requests."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.fakes.kernel_request import CONTRACT, DOCUMENTS, VERIFY, execute_body
from worker.core.errors import BadRequest, Problem, TooLarge
from worker.swarm import run_names, wire
from worker.swarm.dialects import Dialect


def test_kernel_execute_request_is_read() -> None:
    """The sample contract gives the schema, limits and budget that this runtime uses."""
    request = wire.parse_execute(execute_body())
    assert (request.task_id, request.execution_id, request.attempt_id) == ("task-1", "exec-1", "attempt-1")
    assert (request.task_type, request.profile, request.stage) == ("swarm", "default", "EXPLORE")
    assert request.inputs == {"prompt": "hello"}
    assert request.seed is None
    assert request.exact_hit is None
    assert request.reading is Dialect.KERNEL
    contract = request.contract
    assert contract.raw == CONTRACT
    assert contract.output_schema == CONTRACT["output_schema"]
    assert (contract.time_ms, contract.expiry_ms) == (30000, 1794982631263)
    assert contract.max_refs == 447
    assert contract.max_inline_bytes == 65536
    assert contract.mimes == ("application/json", "text/plain", "text/markdown", "text/csv")


def test_specification_execute_request_is_read() -> None:
    """The specification's own example is accepted whole, although no kernel would create such a task."""
    request = wire.parse_execute(DOCUMENTS["execute"]["request"])
    assert request.reading is Dialect.DOCUMENTS
    assert request.stage == "explore"
    assert request.inputs["document_ref"] == "https://storage.example.com/proposal-v3.pdf"
    assert request.contract.mimes == ("application/json", "text/plain")
    assert request.contract.policy_hash == "sha256:..."


@pytest.mark.parametrize(
    "key",
    ["task_id", "execution_id", "task_type", "inputs", "profile", "task_contract", "stage", "attempt_id"],
)
def test_each_missing_key_is_named(key: str) -> None:
    """A missing key is 422 and named."""
    body = execute_body()
    del body[key]
    with pytest.raises(wire.WrongShape) as caught:
        wire.parse_execute(body)
    assert caught.value.status == 422
    assert caught.value.details["field"] == key
    assert key in caught.value.message


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["task_id"], 5),
        (["execution_id"], None),
        (["stage"], ["EXPLORE"]),
        (["profile"], True),
        (["task_contract"], "x"),
        (["task_contract", "budget"], []),
        (["task_contract", "budget", "time_ms"], -1),
        (["task_contract", "budget", "time_ms"], 1.5),
        (["task_contract", "expiry_ms"], "soon"),
        (["task_contract", "evidence_policy", "inline_mime_allowlist"], ["text/plain", 7]),
        (["task_contract", "evidence_policy", "max_inline_evidence_bytes"], True),
        (["task_contract", "acceptance", "verifier_policy", "policy_hash"], 9),
        (["seed_bundle"], [1]),
    ],
)
def test_value_of_a_wrong_type_is_named(path: list[str], value: Any) -> None:
    """Wrong types are 422 with the field's path, the expected and the received type."""
    body = execute_body()
    target = body
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(wire.WrongShape) as caught:
        wire.parse_execute(body)
    assert caught.value.status == 422
    assert caught.value.details["field"] == ".".join(path)
    assert {"expected", "received"} <= caught.value.details.keys()


@pytest.mark.parametrize("body", [[], None, "x", 3, True])
def test_non_object_body_is_refused(body: Any) -> None:
    """JSON that is not an object is refused at both endpoints."""
    for parse in (wire.parse_execute, wire.parse_verify):
        with pytest.raises(wire.WrongShape):
            parse(body)


def test_optional_fields_are_read_leniently() -> None:
    """Unknown keys, open words, null inputs and a contract with only a schema are accepted."""
    body = execute_body(
        task_type="never declared",
        stage="SOMETHING_NEW",
        inputs=None,
        later={"x": 1},
        task_contract={"output_schema": True, "extra": 1, "budget": None},
    )
    del body["seed_bundle"]
    request = wire.parse_execute(body)
    assert request.inputs is None
    assert request.contract.output_schema is True
    assert request.contract.time_ms is None
    assert request.contract.max_refs is None
    assert request.contract.max_inline_bytes == wire.MAX_INLINE_BYTES
    assert request.contract.mimes == wire.DEFAULT_MIMES


def test_contract_limits_only_tighten() -> None:
    """A contract cannot raise the kernel's inline limit, and a small verify budget allows no reference."""
    body = execute_body()
    body["task_contract"]["evidence_policy"]["max_inline_evidence_bytes"] = 10**9
    body["task_contract"]["budget"]["verify_cost_units"] = 2
    contract = wire.parse_execute(body).contract
    assert contract.max_inline_bytes == 65536
    assert contract.max_refs == 0


def test_exact_hit_needs_the_kernels_decision() -> None:
    """Only stage DECIDE with an Exact first hit offers its payload, even null."""
    hit = {
        "hit_type": "Exact",
        "decision_ref": {"task_id": "t", "epoch": 1, "final_commit_hash": "h"},
        "reuse_payload": None,
        "evidence_digests": [],
        "reason_codes_summary": {"reason_codes": [100]},
        "confidence_hint": 1,
    }
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [hit], "constraints": {"must_consider_claims": []}}
    request = wire.parse_execute(execute_body(stage="DECIDE", seed_bundle=seed))
    assert request.exact_hit == wire.Hit("Exact", None, 1.0)
    assert request.seed is not None
    assert request.seed.raw == seed
    assert wire.parse_execute(execute_body(stage="EXPLORE", seed_bundle=seed)).exact_hit is None
    similar = {**seed, "hits": [{**hit, "hit_type": "Similar"}, hit]}
    assert wire.parse_execute(execute_body(stage="DECIDE", seed_bundle=similar)).exact_hit is None


@pytest.mark.parametrize(
    "seed", [{}, {"hits": None}, {"hits": "x"}, {"hits": [1, {}, {"hit_type": 5}]}, {"notes": ["prior"]}]
)
def test_unknown_seed_is_accepted(seed: dict[str, Any]) -> None:
    """A bundle of an unknown kind is passed to the author unchanged, without hits."""
    request = wire.parse_execute(execute_body(stage="DECIDE", seed_bundle=seed))
    assert request.seed == wire.Seed(seed, ())
    assert request.exact_hit is None


@pytest.mark.parametrize("case", VERIFY)
def test_kernel_verify_requests_are_read(case: dict[str, Any]) -> None:
    """Every recorded request is parsed in the kernel's dialect with its values unchanged."""
    request = wire.parse_verify(case["request"])
    assert request.reading is Dialect.KERNEL
    assert request.candidate.output == case["request"]["candidate"]["output"]
    assert request.policy.policy_params == case["request"]["policy"]["policy_params"]


def test_specification_verify_request_is_read() -> None:
    """The specification's example is parsed in its dialect, evidence included."""
    request = wire.parse_verify(DOCUMENTS["verify"]["request"])
    assert request.reading is Dialect.DOCUMENTS
    assert request.candidate.evidence_inline == (wire.InlineEvidence("text/plain", "trace:attempt-001"),)
    assert request.candidate.output_ref.size_bytes == 512


def test_missing_output_is_null() -> None:
    """`output` is the only optional key of a candidate."""
    body = copy.deepcopy(VERIFY[0]["request"])
    del body["candidate"]["output"]
    assert wire.parse_verify(body).candidate.output is None


@pytest.mark.parametrize(
    "path",
    [
        "candidate", "output_schema", "policy", "candidate.candidate_id", "candidate.execution_id",
        "candidate.output_ref", "candidate.output_ref.digest", "candidate.output_ref.created_at",
        "candidate.evidence_inline", "candidate.evidence_refs", "policy.policy_id", "policy.policy_version",
        "policy.policy_hash", "policy.policy_params",
    ],
)  # fmt: skip
def test_each_missing_verification_key_is_named_by_path(path: str) -> None:
    """A missing key is 422 and named with its path."""
    body = copy.deepcopy(VERIFY[0]["request"])
    *parents, last = path.split(".")
    target = body
    for key in parents:
        target = target[key]
    del target[last]
    with pytest.raises(wire.WrongShape) as caught:
        wire.parse_verify(body)
    assert caught.value.details["field"] == path


@pytest.mark.parametrize("size", [-1, 1.0, 1.5, "15", None, True, 2**64])
def test_sizes_must_be_whole_numbers(size: Any) -> None:
    """Negative, fractional, textual and oversized sizes are refused, inside arrays with their index."""
    ref = {"uri": "", "digest": "d", "size_bytes": 1, "mime": "", "created_at": 0, "producer": ""}
    body = copy.deepcopy(VERIFY[0]["request"])
    body["candidate"]["evidence_refs"] = [ref, {**ref, "size_bytes": size}]
    with pytest.raises(wire.WrongShape) as caught:
        wire.parse_verify(body)
    assert caught.value.details["field"] == "candidate.evidence_refs[1].size_bytes"


def test_invalid_json_is_400_and_oversized_is_413() -> None:
    """The error gives the position in the text, and never repeats the text."""
    with pytest.raises(BadRequest) as caught:
        wire.read_json(b'{"secret": nope}')
    assert caught.value.status == 400
    assert "line 1 column 12" in caught.value.message
    assert "secret" not in caught.value.message
    for raw in (b"", b"{", b'{"a":NaN}', b"\xff", b'{"a":"\\ud800"}', b"[" * 50_000):
        with pytest.raises(BadRequest) as refused:
            wire.read_json(raw)
        assert refused.value.status == 400
    with pytest.raises(TooLarge):
        wire.read_json(b" " * (wire.MAX_BODY + 1))
    assert wire.read_json(b'{"a":1}') == {"a": 1}


def test_hostile_values_are_reported_as_problems() -> None:
    """Any value in place of an object is refused, without any other exception."""
    for value in (None, 0, 1.5, "", [], [[]], True, 10**19):
        for key in execute_body():
            try:
                wire.parse_execute(execute_body(**{key: value}))
            except Problem as problem:
                assert problem.status == 422


def test_idempotency_key_is_per_kernel_and_attempt() -> None:
    """Repeats share the key; another kernel, task, execution or attempt never does, whatever its text."""
    first = wire.parse_execute(execute_body())
    key = run_names.idempotency_key("home", first)
    assert key == run_names.idempotency_key("home", wire.parse_execute(execute_body(inputs={"other": 1})))
    others = {
        run_names.idempotency_key("away", first),
        run_names.idempotency_key("home", wire.parse_execute(execute_body(task_id="task-2"))),
        run_names.idempotency_key("home", wire.parse_execute(execute_body(execution_id="exec-p-2"))),
        run_names.idempotency_key("home", wire.parse_execute(execute_body(attempt_id="2"))),
        run_names.idempotency_key(
            "home", wire.parse_execute(execute_body(task_id='task-1","exec', execution_id=""))
        ),
        run_names.idempotency_key("home:task-1", wire.parse_execute(execute_body(task_id=""))),
        run_names.idempotency_key("hometask-1", wire.parse_execute(execute_body(task_id=""))),
    }
    assert len(others) == 7
    assert key not in others
    assert key.startswith("swarm-")
    assert len(key) == 70
    assert set(key) <= set("swarm-0123456789bcdef")


def test_body_digest_changes_with_any_byte() -> None:
    """Equal bytes share a digest, other bytes do not."""
    assert run_names.body_digest(b"{}") == run_names.body_digest(b"{}") != run_names.body_digest(b"{ }")
