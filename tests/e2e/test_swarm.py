"""The swarm door over HTTP: vectors, specification examples, repeats, keys, limits and hostile bodies."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.swarm_runtime import PASSWORDS, Answer, Kernel, Runtime
from tests.fakes.kernel_request import CONTRACT, DOCUMENTS, RECORDED, VERIFY, contract, execute_body
from tests.waiting import eventually
from worker.engine.listing import Filter
from worker.engine.record import Execution
from worker.parts import Parts

HASHES = {each["policy_id"]: each["policy_hash"] for each in RECORDED["policies"]}
PLACES = 2  # of three express processes


@pytest.fixture(name="runtime", scope="module")
def _runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    settings = {
        "SWARM_KEYS": ",".join(f"{name}:{secret}" for name, secret in PASSWORDS.items()),
        "SWARM_LIMITS": "*:100000:100,gamma:3:100",
        "EXPRESS_PROCESSES": str(PLACES + 1),
    }
    runtime = Runtime(tmp_path_factory.mktemp("swarm"), settings)
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.close()


@pytest.fixture(name="parts", scope="module")
def _parts(runtime: Runtime) -> Parts:
    return runtime.parts()


@pytest.fixture(name="kernel", params=["", "/swarm"], ids=["root", "prefix"])
def _kernel(runtime: Runtime, request: pytest.FixtureRequest) -> Kernel:
    """A kernel client, for either base URL."""
    return Kernel(runtime.url + request.param)


def task(execution_id: str, task_type: str = "count", **changes: Any) -> dict[str, Any]:
    """An ExecuteRequest as a kernel writes it."""
    request = {
        "task_id": f"task-of-{execution_id}",
        "execution_id": execution_id,
        "attempt_id": execution_id,
        "task_type": task_type,
        "task_contract": contract(),
    }
    return execute_body(**{**request, **changes})


def runs(parts: Parts, execution_id: str) -> list[Execution]:
    """The executions created for a kernel's execution id."""
    found = parts.executions.page(Filter(door="swarm"), limit=500).executions
    full = [parts.executions.get(each.id) for each in found]
    return [
        each for each in full if each.context.get("swarm_request", {}).get("execution_id") == execution_id
    ]


def steps(parts: Parts, execution: Execution) -> int:
    events = parts.executions.events(execution.id)
    return sum(event.kind == "step.created" for event in events)


def verification(output: str, schema: Any, policy_id: str = "vp.schema_only.v1", **changes: Any) -> bytes:
    """A VerifyRequest with the output as raw text, so that numbers keep their exact spelling."""
    body = copy.deepcopy(VERIFY[0]["request"])
    body["candidate"]["output"] = "OUTPUT"
    body["output_schema"] = schema
    body["policy"] |= {"policy_id": policy_id, "policy_hash": HASHES[policy_id], **changes}
    return json.dumps(body, ensure_ascii=False).replace('"OUTPUT"', output).encode()


# Health and capabilities


def test_health_and_capabilities(kernel: Kernel) -> None:
    """/health needs no key; /capabilities has exactly four keys and lists only the enabled agents."""
    nobody = Kernel(kernel.base, name=None)
    assert nobody.once("GET", "/health").json() == {"status": "ok"}
    answer = kernel.once("GET", "/capabilities")
    assert answer.status == 200
    found = answer.json()
    assert list(found) == ["task_types", "profiles", "provider_family", "model_id"]
    assert found["task_types"] == ["swarm", "count", "nothing", "writer", "wrong"]
    assert set(found["profiles"]) == {"default", "fast", "thrifty", "deep"}
    assert (found["provider_family"], found["model_id"]) == ("swarm-runtime", "swarm-model-v1")


# Verify


@pytest.mark.parametrize("case", VERIFY)
def test_verifications_match_the_recorded_bytes(kernel: Kernel, case: dict[str, Any]) -> None:
    """Both base URLs return the reference's response byte for byte."""
    answer = kernel.post("/verify", case["request"])
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == json.dumps(case["response"], separators=(",", ":")).encode()


@pytest.mark.parametrize("case", RECORDED["schema_minimal"])
def test_schema_verdicts_match_the_recorded_ones(kernel: Kernel, case: dict[str, Any]) -> None:
    """Validate with the subset of JSON Schema that a kernel supports, and nothing else."""
    answer = kernel.post("/verify", verification(json.dumps(case["value"]), case["schema"])).json()
    assert (answer["passed"], answer["reason_codes"]) == (case["valid"], [100 if case["valid"] else 101])


@pytest.mark.parametrize(
    ("number", "held"),
    [
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "1.8446744073709552e+19"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("-9223372036854775809", "-9.223372036854776e+18"),
        ("1e16", "1e+16"),
        ("1e15", "1000000000000000.0"),
        ("0.00001", "0.00001"),
        ("1e-7", "1e-7"),
        ("-0", "-0.0"),
        ("1.0", "1.0"),
        ("5e-324", "5e-324"),
    ],
)
def test_max_len_counts_the_kernels_number_format(kernel: Kernel, number: str, held: str) -> None:
    """`max_len` counts bytes in the kernel's number format, also next to non-ASCII text."""
    output, rendered = f'{{"n":{number},"a":"ä\u2028/"}}', f'{{"a":"ä\u2028/","n":{held}}}'
    size = len(rendered.encode())
    for limit, codes in ((size, [100]), (size - 1, [100, 103])):
        body = verification(output, {}, "vp.schema_thresholds.v1", policy_params={"max_len": limit})
        assert kernel.post("/verify", body).json()["reason_codes"] == codes


def test_result_hashes_cover_unusual_ids(kernel: Kernel) -> None:
    """The hash covers the ids as sent: quotes, control characters, other scripts, beyond the BMP."""
    body = copy.deepcopy(VERIFY[0]["request"])
    body["candidate"]["candidate_id"] = 'k"\\\u0001\u007f\u2028ä漢😀'
    answer = kernel.post("/verify", body).json()
    preimage = (
        '{"candidate_id":"k\\"\\\\\\u0001\u007f\u2028ä漢😀","execution_id":"e1","model_id":"swarm-model-v1",'
        f'"passed":true,"policy_hash":"{HASHES["vp.schema_only.v1"]}","provider_family":"swarm-runtime",'
        '"reason_codes":[100],"score":1.0}'
    )
    assert answer["verifier_result_hash"] == hashlib.sha256(preimage.encode()).hexdigest()


def test_documented_verification_example(kernel: Kernel) -> None:
    """With the elided hash filled in, the response has the example's keys, types and meaning."""
    example = copy.deepcopy(DOCUMENTS["verify"])
    for bare in (HASHES["vp.schema_only.v1"], hashlib.sha256(b"vp.schema_only.v1{}").hexdigest()):
        example["request"]["policy"]["policy_hash"] = f"sha256:{bare}"
        answer = kernel.post("/verify", example["request"]).json()
        assert answer.keys() == example["response"].keys()
        assert re.fullmatch("sha256:[0-9a-f]{64}", answer.pop("verifier_result_hash"))
        assert answer == {k: v for k, v in example["response"].items() if k != "verifier_result_hash"}


def test_mismatched_policy_binding_is_refused(kernel: Kernel) -> None:
    """The 400 names the wrong part and the accepted value within the first 512 characters."""
    body = copy.deepcopy(DOCUMENTS["verify"]["request"])
    refused = kernel.post("/verify", body)
    message = refused.body.decode()[:512]
    assert refused.status == 400 and "policy binding invalid: policy hash mismatch" in message
    assert "sha256:" + HASHES["vp.schema_only.v1"] in message
    for part, value in (("policy_id", "vp.other.v1"), ("policy_version", "2")):
        changed = {**copy.deepcopy(body["policy"]), part: value}
        answer = kernel.post("/verify", {**body, "policy": changed})
        assert answer.status == 400 and answer.json()["field"] == f"policy.{part}"


# Execute


def test_documented_execution_example(kernel: Kernel) -> None:
    """The response has the example's shape; its reference resolves to bytes with the stated digest."""
    example = copy.deepcopy(DOCUMENTS["execute"])
    answer = kernel.run(example["request"])
    assert answer.status == 200
    error_body, printed = answer.json(), example["response"]
    assert error_body.keys() == printed.keys()
    for name, value in printed["candidate_output"].items():
        assert isinstance(error_body["candidate_output"][name], type(value))
    assert error_body["candidate_output"]["check_summary"].startswith("stage=explore attempt=attempt-001")
    # There is no text to summarise: nothing is invented and nothing repeated.
    assert error_body["candidate_output"]["confidence"] <= 0.05
    assert "Summarise" not in error_body["candidate_output"]["answer"]
    assert error_body["evidence_inline"][0]["mime"] == "text/plain"
    assert error_body["evidence_inline"][0]["content"].startswith("trace:attempt-001")
    [ref] = error_body["evidence_refs"]
    assert ref.keys() == printed["evidence_refs"][0].keys()
    assert abs(ref["created_at"] / 1000 - time.time()) < 300
    assert_opens(ref)
    verdict = kernel.post(
        "/verify",
        {
            "candidate": {
                "candidate_id": "cand-1",
                "execution_id": "exec-4f2a9c",
                "output_ref": ref,
                "output": error_body["candidate_output"],
                "evidence_inline": error_body["evidence_inline"],
                "evidence_refs": error_body["evidence_refs"],
            },
            "output_schema": example["request"]["task_contract"]["output_schema"],
            "policy": VERIFY[-2]["request"]["policy"] | {"policy_params": {}},
        },
    ).json()
    assert verdict["passed"] is True


def assert_opens(ref: dict[str, Any]) -> None:
    with urllib.request.urlopen(ref["uri"], timeout=5) as opened:
        content = opened.read()
    assert len(content) == ref["size_bytes"]
    assert "sha256:" + hashlib.sha256(content).hexdigest() == ref["digest"]


def test_kernels_sample_task_passes_all_policies(kernel: Kernel) -> None:
    """The kernel's sample contract is executed, and the candidate passes all three policies."""
    answer = kernel.run(task(f"sample{kernel.base}", "swarm"))
    assert answer.status == 200
    output = json.dumps(answer.json()["candidate_output"])
    for policy_id in HASHES:
        body = verification(output, CONTRACT["output_schema"], policy_id, policy_params={})
        assert kernel.post("/verify", body).json()["verification_status"] == "passed"


def test_agent_function_gets_the_whole_task(kernel: Kernel) -> None:
    """The function receives stage, seed, budget, schema, time and the profile's settings."""
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [], "constraints": {"must_consider_claims": ["a"]}}
    sent = task(f"all{kernel.base}", stage="DIVERGE_MODE", profile="deep", seed_bundle=seed)
    output = kernel.run(sent).json()["candidate_output"]
    assert output["check_summary"] == "stage=DIVERGE_MODE profile=deep"
    got = output["got"]
    assert (got["stage"], got["seed"], got["settings"]) == ("DIVERGE_MODE", seed, {"depth": 9})
    assert (got["budget"], got["schema"]) == (CONTRACT["budget"], CONTRACT["output_schema"])
    assert 15 <= got["seconds_left"] <= 20


def test_exact_hit_is_reused_when_the_profile_allows(kernel: Kernel) -> None:
    """Only the profile's setting enables reuse; without it the same seed has no effect."""
    payload = {"answer": "an earlier answer"}
    hit = {"hit_type": "Exact", "decision_ref": {}, "reuse_payload": payload, "confidence_hint": 1.0}
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [hit], "constraints": {}}
    outputs = {}
    for profile in ("thrifty", "default"):
        sent = task(f"seed{profile}{kernel.base}", "swarm", stage="DECIDE", profile=profile, seed_bundle=seed)
        outputs[profile] = kernel.run(sent).json()["candidate_output"]
    assert outputs["thrifty"] == payload
    assert outputs["default"]["answer"].startswith("Abstain")


def test_text_and_files_become_answer_and_evidence(kernel: Kernel) -> None:
    """Returned text becomes the answer; text and written file become inline evidence and two references."""
    error_body = kernel.run(task(f"writer{kernel.base}", "writer")).json()
    assert error_body["candidate_output"] == {"answer": "a text, not an object"}
    assert [piece["mime"] for piece in error_body["evidence_inline"]] == ["text/plain", "text/markdown"]
    assert error_body["evidence_inline"][1]["content"] == "# found\n"
    assert [ref["mime"] for ref in error_body["evidence_refs"]] == [
        "text/markdown",
        "text/plain; charset=utf-8",
    ]
    for ref in error_body["evidence_refs"]:
        assert_opens(ref)


def test_uncompilable_schema_is_accepted(kernel: Kernel) -> None:
    """A kernel evaluates a small subset of JSON Schema; accept a schema whose other parts do not compile."""
    for number, odd in enumerate(
        ({"$schema": "urn:unknown"}, {"$ref": "https://elsewhere.example/x"}, {"required": [1]}, {"allOf": 7})
    ):
        sent = task(f"odd{number}{kernel.base}", "nothing", task_contract=contract(output_schema=odd))
        assert kernel.run(sent).json()["candidate_output"] == {"answer": ""}


# Repeated requests


def test_reposted_long_task_runs_once(runtime: Runtime, parts: Parts) -> None:
    """A task longer than the client's time-out is posted repeatedly, runs once and returns its result."""
    kernel = Kernel(runtime.url, timeout=0.8)
    answer = kernel.run(task("rhythm", inputs={"seconds": 2.6}))
    assert answer.status == 200 and 3 <= len(kernel.posted) <= 5
    [execution] = runs(parts, "rhythm")
    assert steps(parts, execution) == 1
    assert kernel.run(task("rhythm", inputs={"other": "body"})).body == answer.body
    assert len(runs(parts, "rhythm")) == 1
    assert f'"execution_id": "{execution.id}"' in next(
        line for line in runtime.log.splitlines() if "swarm.body_changed" in line
    )


def test_five_identical_requests_run_once(runtime: Runtime, parts: Parts) -> None:
    """Identical parallel requests to both addresses run once and get the same bytes."""
    sent = json.dumps(task("parallel", inputs={"seconds": 0.3})).encode()

    def post(number: int) -> bytes:
        return Kernel(runtime.url + ("" if number % 2 else "/swarm")).post("/execute", sent).body

    with ThreadPoolExecutor(5) as pool:
        bodies = set(pool.map(post, range(5)))
    assert len(bodies) == 1
    [execution] = runs(parts, "parallel")
    assert steps(parts, execution) == 1


def test_separate_kernels_do_not_share_tasks(runtime: Runtime, parts: Parts) -> None:
    """The same ids from two kernels are two tasks."""
    one = Kernel(runtime.url).run(task("shared", inputs={"say": "for alpha"}))
    two = Kernel(runtime.url, name="beta").run(task("shared", inputs={"say": "for beta"}))
    assert one.json()["candidate_output"]["answer"] == "for alpha"
    assert two.json()["candidate_output"]["answer"] == "for beta"
    assert {execution.labels["kernel"] for execution in runs(parts, "shared")} == {"alpha", "beta"}


# Access


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (None, 401),
        ("Basic", 401),
        ("Basic !!", 401),
        ("Basic YWxwaGE6d3Jvbmc=", 401),
        (f"Basic {'A' * 4000}", 401),
        (f"Bearer alpha:{PASSWORDS['alpha']}", 401),
        (f"Bearer {PASSWORDS['alpha']}", 200),
        (f"bearer {PASSWORDS['beta']}", 200),
    ],
)
def test_requests_need_a_kernel_key(runtime: Runtime, shown: str | None, status: int) -> None:
    """Every route except /health requires a key and says how to send it; nothing runs without one."""
    headers = {} if shown is None else {"authorization": shown}
    asked = (
        ("GET", "/capabilities", None),
        ("GET", "/swarm/capabilities", None),
        ("POST", "/verify", VERIFY[0]["request"]),
        ("POST", "/swarm/verify", VERIFY[0]["request"]),
        ("POST", "/execute", task("auth", "nothing")),
        ("POST", "/swarm/execute", task("auth", "nothing")),
    )
    for method, path, body in asked:
        answer = Kernel(runtime.url, name=None).once(method, path, body, **headers)
        assert answer.status == status, path
        if status == 401:
            assert answer.headers["www-authenticate"].startswith("Basic ")
            assert answer.json()["code"] == "UNAUTHORIZED"


def test_request_with_a_contract_goes_to_the_hire_door(runtime: Runtime) -> None:
    """A contract id selects the HIRE door whatever the body; without one, it must be a kernel's body."""
    kernel = Kernel(runtime.url)
    hired = kernel.once("POST", "/execute", task("hired"), X_Contract_ID="ctr_unknown")
    assert (hired.status, hired.json()["error"]["code"]) == (404, "CONTRACT_NOT_FOUND")
    for body in ({"prompt": "x"}, [], b"", b"no json", b'{"execution_id"', {"execution_id": "x"}):
        missing = kernel.once("POST", "/execute", body)
        assert (missing.status, missing.json()["error"]["code"]) == (400, "MISSING_CONTRACT_ID")


# Limits


def test_daily_task_limit_per_kernel(runtime: Runtime) -> None:
    """With a limit of three tasks a day the fourth gets 503; repeats and other kernels do not count."""
    gamma = Kernel(runtime.url, name="gamma")
    for number in range(3):
        for _ in range(2):
            assert gamma.run(task(f"day{number}", "nothing")).status == 200
    spent = gamma.run(task("day3", "nothing"))
    assert (spent.status, spent.json()["code"]) == (503, "DAILY_LIMIT")
    assert int(spent.headers["retry-after"]) > 0
    assert gamma.run(task("day0", "nothing")).status == 200
    assert Kernel(runtime.url).run(task("day3", "nothing")).status == 200


def test_last_process_is_kept_free_for_other_work(runtime: Runtime, parts: Parts) -> None:
    """With its places used up, swarm requests wait without an answer; other work starts at once."""
    kernel = Kernel(runtime.url)

    def long(number: int) -> Answer:
        return kernel.run(task(f"long{number}", inputs={"seconds": 3}))

    with ThreadPoolExecutor(PLACES + 1) as pool:
        running = [pool.submit(long, number) for number in range(PLACES)]
        eventually(lambda: len(busy(parts)) == PLACES)
        waits = pool.submit(kernel.run, task("crowded", "nothing"))
        _, id = parts.executions.create("nap", {"seconds": 0}, door="kernel")
        eventually(lambda: parts.executions.get(id).state == "completed")
        assert len(busy(parts)) == PLACES and not waits.done()
        assert all(each.result(10).status == 200 for each in running)
        assert waits.result(10).status == 200


def test_tasks_beyond_capacity_are_all_done(runtime: Runtime, parts: Parts) -> None:
    """A kernel's client times out and reposts up to five times; no task fails and each runs once."""

    def one(number: int) -> Answer:
        return Kernel(runtime.url, timeout=2.5).run(task(f"many{number}", inputs={"seconds": 2}))

    with ThreadPoolExecutor(3 * PLACES) as pool:
        answers = list(pool.map(one, range(3 * PLACES)))
    assert [answer.status for answer in answers] == [200] * 3 * PLACES
    assert [len(runs(parts, f"many{number}")) for number in range(3 * PLACES)] == [1] * 3 * PLACES


def test_task_that_would_expire_in_the_queue_is_refused(runtime: Runtime, parts: Parts) -> None:
    """Refuse at once a task that would still be queued at its expiry."""
    kernel = Kernel(runtime.url)

    def long(number: int) -> Answer:
        return kernel.run(task(f"ahead{number}", inputs={"seconds": 3}))

    with ThreadPoolExecutor(PLACES) as pool:
        running = [pool.submit(long, number) for number in range(PLACES)]
        eventually(lambda: len(busy(parts)) == PLACES)
        soon = contract(expiry_ms=int(time.time() * 1000) + 300)
        began = time.monotonic()
        refused = kernel.run(task("soon", task_contract=soon))
        assert (refused.status, refused.json()["code"]) == (503, "OVERLOADED")
        assert time.monotonic() - began < 2
        assert all(each.result(10).status == 200 for each in running)


def test_swarm_leaves_the_last_process_to_others(runtime: Runtime, parts: Parts) -> None:
    """When other work uses all processes but one, the swarm does not take the last one."""
    kernel = Kernel(runtime.url)
    ids = [parts.executions.create("nap", {"seconds": 2.5}, door="kernel")[1] for _ in range(PLACES)]
    eventually(lambda: len(busy(parts)) == PLACES)
    assert kernel.run(task("second", "nothing")).status == 200
    assert any(parts.executions.get(id).state.terminal for id in ids)


def busy(parts: Parts) -> list[Execution]:
    return parts.executions.page(Filter(state="running"), limit=50).executions


def test_task_time_limit_and_expiry(kernel: Kernel) -> None:
    """A task beyond `time_ms` gets a retryable 504; an expired one 422, except in the documents' form."""
    tight = contract(budget={**CONTRACT["budget"], "time_ms": 400})
    slow = kernel.run(task(f"tight{kernel.base}", inputs={"seconds": 1}, task_contract=tight))
    assert (slow.status, slow.json()["code"]) == (504, "EXECUTION_TIMEOUT")
    past = contract(expiry_ms=int(time.time() * 1000) - 1000)
    expired = kernel.run(task(f"past{kernel.base}", "nothing", task_contract=past))
    assert (expired.status, expired.json()["code"]) == (422, "TASK_EXPIRED")
    sent = task(f"documents{kernel.base}", "nothing", task_contract=past, stage="explore")
    assert kernel.run(sent).status == 200


# Failures


def test_running_task_stops_at_its_expiry(runtime: Runtime) -> None:
    """A running task is stopped for good at its expiry, and the response says so."""
    soon = contract(expiry_ms=int(time.time() * 1000) + 1_500)
    late = Kernel(runtime.url).run(task("late", inputs={"seconds": 6}, task_contract=soon))
    assert (late.status, late.json()["code"]) == (422, "TASK_EXPIRED")
    assert "while it ran" in late.json()["error"]


@pytest.mark.parametrize(
    ("do", "kernels", "documents", "part"),
    [
        ("refuse", 422, 422, '"field":"do"'),
        ("fail", 502, 502, '"code":"NO_MODEL"'),
        ("raise", 500, 500, '"code":"INTERNAL_ERROR"'),
        ("answer wrong", 502, 400, "OUTPUT_SCHEMA_INVALID"),
    ],
)
def test_agent_failure_says_whether_to_retry(
    kernel: Kernel, do: str, kernels: int, documents: int, part: str
) -> None:
    """The status says whether a retry helps; the first 512 characters hold the essentials."""
    for stage, status in (("EXPLORE", kernels), ("explore", documents)):
        sent = task(f"{do}{stage}{kernel.base}", "wrong", inputs={"do": do}, stage=stage)
        first, again = kernel.run(sent), kernel.run(sent)
        assert first.status == status and again.body == first.body
        text = first.body.decode()
        assert part in text[:512]
        assert text.startswith('{"error":"') and "forced offline by policy" not in text.lower()
        assert "a-text-that-must-stay-in-the-log" not in text


def test_impossible_task_is_refused_before_it_runs(kernel: Kernel) -> None:
    """Before anything runs, an unknown profile gets 400 and an unsatisfiable schema 422."""
    profile = kernel.run(task("profile", profile="nope"))
    assert profile.status == 400 and profile.json()["expected"] == ["default", "deep"]
    for odd in ({"type": "text"}, [], {"type": "string", "required": ["answer"]}):
        refused = kernel.run(task("schema", task_contract=contract(output_schema=odd)))
        assert refused.status == 422 and refused.json()["field"] == "task_contract.output_schema"
    unfit = contract(
        output_schema={"type": "object", "required": ["picture"], "properties": {"picture": False}}
    )
    assert kernel.run(task(f"unfit{kernel.base}", "swarm", task_contract=unfit)).status == 400


HOSTILE: dict[str, tuple[bytes, set[int]]] = {
    "nothing": (b"", {400}),
    "no json": (b"{", {400}),
    "not utf-8": (b'{"a":"\xff"}', {400}),
    "byte order mark": (b"\xef\xbb\xbf{}", {400}),
    "not a number": (b'{"a":NaN}', {400}),
    "a number beyond measure": (b'{"a":1e400}', {400}),
    "half a character": (b'{"a":"\\ud800"}', {400}),
    "deep arrays": (b"[" * 100_000 + b"]" * 100_000, {400}),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, {400}),
    "deep and broken": (b"[" * 500_000, {400}),
    "an array": (b"[]", {422}),
    "null": (b"null", {422}),
    "a long number": (b'{"a":' + b"9" * 100_000 + b"}", {400, 422}),
    "huge": (b'"' + b"a" * (1 << 20) + b'"', {413}),
    "many keys": (b"{" + b",".join(b'"%d":1' % n for n in range(50_000)) + b"}", {422}),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["/swarm/execute", "/swarm/verify", "/verify"])
def test_hostile_bodies_are_refused(runtime: Runtime, path: str, name: str) -> None:
    """Each gets a reason within the first 512 characters, and the next request is served."""
    body, statuses = HOSTILE[name]
    kernel = Kernel(runtime.url)
    answer = kernel.once("POST", path, body)
    assert answer.status in statuses
    error_body = answer.json()
    assert list(error_body)[:2] == ["error", "code"] and error_body["error"]
    assert len(answer.body) <= 512
    assert kernel.once("GET", "/capabilities").status == 200


@pytest.mark.parametrize("value", [None, 7, -1, 1.5, True, "x", [], {}, [[]], {"a": {}}])
def test_fields_of_a_wrong_type_are_named(runtime: Runtime, value: Any) -> None:
    """A field of the wrong type gets 422 with its name, or is accepted where any type is; never 500."""
    kernel = Kernel(runtime.url)
    for path, good in (
        ("/swarm/execute", task("types", "nothing")),
        ("/swarm/verify", VERIFY[0]["request"]),
    ):
        for field in good:
            body = {**copy.deepcopy(good), field: value}
            if path == "/swarm/execute":
                body["attempt_id"] = f"{field}{value}" if field != "attempt_id" else value
            answer = kernel.once("POST", path, body)
            assert answer.status in (200, 400, 422), (path, field, answer.body)
            if answer.status == 422:
                assert answer.json()["field"].startswith((field, "task_contract", "body"))
    inner = contract(budget=value, evidence_policy=value, acceptance=value, expiry_ms=None)
    answer = kernel.once("POST", "/swarm/execute", task(f"inner{value}", "nothing", task_contract=inner))
    assert answer.status in (200, 422)


def test_unsupported_methods_types_and_paths(runtime: Runtime) -> None:
    """405, 415 and 404 use the swarm door's error format."""
    kernel = Kernel(runtime.url)
    assert kernel.once("GET", "/swarm/execute").status == 405
    assert kernel.once("POST", "/swarm/verify", b"{}", content_type="text/plain").status == 415
    for answer in (kernel.once("GET", "/swarm/nothing"), kernel.once("POST", "/swarm/verify", b"{")):
        assert list(answer.json())[:2] == ["error", "code"]


# Other processes


def test_replay_from_another_process_and_after_a_restart(runtime: Runtime) -> None:
    """A repeated request gets the same bytes from another process and after a full restart.

    The other process is configured to validate against the whole schema as well.
    """
    kernel = Kernel(runtime.url)
    finished, under_way = task("moved"), task("moving", inputs={"seconds": 1})
    first = kernel.run(finished)
    other = Kernel(runtime.another_web(SWARM_FULL_SCHEMA="on", SWARM_MODEL_ID="another-model"))
    assert other.run(finished).body == first.body
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(each.run, under_way) for each in (kernel, other)]
        assert len({each.result(20).body for each in both}) == 1

    schema = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 3}}}
    assert other.post("/verify", verification('{"answer":"long"}', schema)).json()["reason_codes"] == [101]
    assert other.post("/verify", verification('{"answer":"ok"}', schema)).json()["passed"] is True
    hangs = {"properties": {"answer": {"type": "string", "pattern": "^(a+)+$"}}}
    began = time.monotonic()
    body = verification('{"answer":"' + "a" * 40 + '!"}', hangs)
    assert other.post("/verify", body).json()["reason_codes"] == [101]
    assert time.monotonic() - began < 10

    runtime.stop()
    runtime.start()
    assert kernel.run(finished).body == first.body
