"""The swarm runtime on a real store, with the test acting as the warm processes."""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.fakes.kernel_request import CONTRACT, VERIFY, contract, execute_body
from tests.waiting import eventually
from worker.app import create_app
from worker.capabilities.declare import Capability
from worker.core.errors import BadRequest, Problem, TooLarge, Unavailable
from worker.core.json import encode
from worker.core.settings import Settings
from worker.engine.record import Execution
from worker.parts import Parts
from worker.store.wrong_credentials import MOST_FAILURES
from worker.swarm import full_schema, wire
from worker.swarm.admission import NoPlaceFree, TaskExpired
from worker.swarm.candidate import AnswerRefused, ImpossibleSchema
from worker.swarm.evidence_fetch import EvidenceReader
from worker.swarm.fetching import FetchOutcome
from worker.swarm.kernels import Kernel
from worker.swarm.run_names import idempotency_key
from worker.swarm.serving import ExtraChecks, StillRunning, SwarmRuntime, UnknownProfile

ALPHA = Kernel("alpha", 1000, 100)

Result = tuple[str, dict[str, Any], bytes]
Do = Callable[[Execution], Result]


def value(output: Any, kind: str = "json", files: tuple[Any, ...] = ()) -> Result:
    """The end of work that returned a value."""
    described = {"type": kind, "files": [asdict(ref) for ref in files]}
    return "completed", described, b"" if output is None else encode(output)


def failed(code: str, message: str = "why") -> Result:
    error = {"code": code, "error": message, "details": {}, "retryable": False}
    return "failed", error, b""


class ExpressWorker:
    """Takes waiting work from the express lane and runs the planned action."""

    def __init__(self, parts: Parts, do: Do) -> None:
        self.parts = parts
        self.do = do
        self.seen: list[Execution] = []
        self.go = threading.Event()
        self.go.set()
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        parts.store.sign_on("express", "one")
        parts.store.sign_on("express", "two")
        parts.store.due(tree="t", retention_us=10**15)
        self._thread.start()

    def close(self) -> None:
        self._stop = True
        self.go.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop:
            found: Any = self.parts.client.blpop([self.parts.keys.express], timeout=0.1)
            if found is None:
                continue
            taken = self.parts.store.take(found[1].decode(), lease_us=60_000_000, worker="w", session="s")
            assert taken is not None
            self.go.wait(20)
            execution = taken[0]
            self.seen.append(execution)
            outcome, described, output = self.do(execution)
            error = encode(described) if outcome == "failed" else b""
            result = b"" if outcome == "failed" else encode(described)
            self.parts.store.seal(
                execution.id,
                execution.fence,
                outcome,
                output=output,
                result=result,
                error=error,
                payload=error or b"{}",
            )


@pytest.fixture(name="parts")
def _parts(client: redis.Redis, valkey: Any, tmp_path: Path) -> Parts:
    parts = Parts(
        Settings.load(
            {
                "REDIS_URL": valkey.url,
                "WORKER_STATE_DIR": str(tmp_path),
                "WORKER_ENV": "test",
                "PUBLIC_URL": "http://runtime.example",
                "SWARM_PATIENCE": "0.2",
            }
        ),
        "web",
    )
    parts.catalog.publish(
        [
            Capability("hand", inline=True, swarm=True, task_types=("swarm", "*"), time_limit=20),
            Capability("paid", inline=True, price="1"),
            Capability(full_schema.NAME, inline=True),
        ]
    )
    return parts


@pytest.fixture(name="serving")
def _serving(parts: Parts) -> SwarmRuntime:
    return parts.serving


@pytest.fixture(name="hand")
def _hand(parts: Parts) -> Iterator[ExpressWorker]:
    hand = ExpressWorker(parts, lambda execution: value({"answer": "done"}))
    yield hand
    hand.close()


def task(execution_id: str = "exec-1", **changes: Any) -> bytes:
    ids = {"task_id": f"task-{execution_id}", "execution_id": execution_id, "attempt_id": execution_id}
    return json.dumps(execute_body(**{"task_contract": contract(), **ids, **changes})).encode()


def refused(call: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


def test_repeated_request_gets_the_same_bytes(
    serving: SwarmRuntime, hand: ExpressWorker, parts: Parts
) -> None:
    """Once in sequence, five times concurrently, and from another process that shares only the store."""
    raw = task()
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: serving.execute(ALPHA, raw), range(5)))
    elsewhere = Parts(parts.settings, "web").serving
    answers += [serving.execute(ALPHA, raw), elsewhere.execute(ALPHA, raw)]
    assert len(set(answers)) == 1
    assert len(hand.seen) == 1
    assert json.loads(answers[0])["candidate_output"] == {"answer": "done"}


def test_idempotency_key_belongs_to_its_kernel(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """Two kernels may use the same ids for different tasks."""
    raw = task()
    serving.execute(ALPHA, raw)
    serving.execute(replace(ALPHA, name="beta"), raw)
    serving.execute(ALPHA, task(attempt_id="another"))
    serving.execute(ALPHA, task("another"))
    serving.execute(ALPHA, task(task_id="another"))
    assert len({execution.id for execution in hand.seen}) == 5
    assert [execution.labels for execution in hand.seen][:2] == [
        {"door": "swarm", "task_type": "swarm", "kernel": name} for name in ("alpha", "beta")
    ]


def test_the_first_body_wins(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """A different body under the same ids gets the first one's response, in the first one's form."""
    first = serving.execute(ALPHA, task())
    schema = {"type": "object", "required": ["never"]}
    other = task(stage="explore", inputs=1, profile="nope", task_contract=contract(output_schema=schema))
    assert serving.execute(ALPHA, other) == first
    assert len(hand.seen) == 1


def test_function_gets_the_kernels_task(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """Input, contract, stage, seed and profile are in the record that the work process takes."""
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [], "constraints": {}}
    inputs = {"prompt": "päron \u2028", "n": 12345678901234567890}
    serving.execute(ALPHA, task(inputs=inputs, seed_bundle=seed, stage="DIVERGE_MODE", task_type="odd"))
    [execution] = hand.seen
    assert json.loads(execution.input) == inputs
    context = execution.context
    assert (context["stage"], context["seed"], context["profile"]) == ("DIVERGE_MODE", seed, "default")
    assert context["swarm"]["budget"] == CONTRACT["budget"]
    assert (execution.door, execution.agent) == ("swarm", "hand")


def test_long_work_is_polled(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """A held request sends nothing; a later one collects the result, without a second run."""
    hand.go.clear()
    patient = replace(serving, hold=0.3)
    began = time.monotonic()
    still = refused(lambda: patient.execute(ALPHA, task()))
    assert isinstance(still, StillRunning) and still.status == 503
    assert 0.3 <= time.monotonic() - began < 2
    refused(lambda: patient.execute(ALPHA, task()))
    hand.go.set()
    assert json.loads(serving.execute(ALPHA, task()))["candidate_output"] == {"answer": "done"}
    assert len(hand.seen) == 1


def test_places_are_released(parts: Parts, hand: ExpressWorker) -> None:
    """Many concurrent tasks use the one place in turn, and leave it free."""
    patient = replace(parts.settings, swarm_patience=10.0)
    serving = Parts(patient, "web").serving
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: serving.execute(ALPHA, task(f"e{n}")), range(12)))
    assert len(hand.seen) == 12
    assert parts.client.zcard(parts.keys.swarm_places("express")) == 0


def test_no_free_place_is_503(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """While the only place is in use, a kernel is told to retry, and nothing is recorded."""
    hand.go.clear()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(serving.execute, ALPHA, task("long"))
        time.sleep(0.1)
        busy = refused(lambda: serving.execute(ALPHA, task("second")))
        assert isinstance(busy, NoPlaceFree) and busy.status == 503
        hand.go.set()
        running.result(10)
    assert json.loads(serving.execute(ALPHA, task("second")))["candidate_output"] == {"answer": "done"}


@pytest.mark.parametrize(
    ("changes", "kind", "status"),
    [
        ({"profile": "nope"}, UnknownProfile, 400),
        ({"profile": ""}, UnknownProfile, 400),
        ({"task_contract": contract(output_schema={"type": "nothing"})}, ImpossibleSchema, 422),
        ({"task_contract": contract(output_schema=True)}, ImpossibleSchema, 422),
        ({"task_contract": contract(expiry_ms=1)}, TaskExpired, 422),
        ({"task_contract": contract(budget={**CONTRACT["budget"], "time_ms": 0})}, TaskExpired, 422),
        ({"task_contract": contract(note="x" * 300_000)}, TooLarge, 413),
        ({"task_id": 7}, BadRequest, 422),
        ({"task_contract": None}, BadRequest, 422),
    ],
)
def test_invalid_tasks_are_refused_before_they_run(
    serving: SwarmRuntime, hand: ExpressWorker, changes: dict[str, Any], kind: type[Problem], status: int
) -> None:
    """A task bound to fail is refused immediately and permanently, without an execution."""
    problem = refused(lambda: serving.execute(ALPHA, task(**changes)))
    assert isinstance(problem, kind) and problem.status == status
    assert hand.seen == []


def test_closed_agent_is_not_served(serving: SwarmRuntime, parts: Parts, hand: ExpressWorker) -> None:
    """An agent that is only for sale is neither shown nor run; without an open one it is 503."""
    shown = json.loads(serving.capabilities())
    assert shown["task_types"] == ["swarm"] and shown["profiles"] == ["default"]
    parts.catalog.publish([Capability("paid", inline=True, price="1", task_types=("swarm",))])
    time.sleep(1.1)
    assert json.loads(serving.capabilities())["task_types"] == []
    assert refused(lambda: serving.execute(ALPHA, task())).status == 503


def publish(parts: Parts, *capabilities: Capability) -> None:
    """Publishes these agents and waits until the web process has loaded them."""
    parts.catalog.publish(capabilities)
    time.sleep(1.1)


def test_unknown_task_type_is_refused_permanently(serving: SwarmRuntime, parts: Parts) -> None:
    """A retry would get the same refusal; the response lists the task types that are served."""
    publish(parts, Capability("hand", inline=True, swarm=True, task_types=("swarm",)))
    problem = refused(lambda: serving.execute(ALPHA, task(task_type="odd")))
    assert (problem.status, problem.code) == (400, "UNKNOWN_TASK_TYPE")
    assert problem.details["expected"] == ["swarm"]


STRICT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string"}, "most": {"type": "integer"}},
    "additionalProperties": False,
}
KERNELS_KEYS = {"prompt": "hello", "agent_id": "a", "swarm_scope": "s", "_aggregation_signal": {"type": "x"}}


def test_authors_input_schema_is_enforced(serving: SwarmRuntime, parts: Parts, hand: ExpressWorker) -> None:
    """A permanent refusal naming the field, before anything runs or counts; kernels' own keys are allowed."""
    publish(parts, Capability("hand", inline=True, swarm=True, task_types=("swarm",), input_schema=STRICT))
    for number, (inputs, field) in enumerate(
        (
            (KERNELS_KEYS, "inputs.text"),
            ({"text": "a", "most": "many"}, "inputs.most"),
            ({"text": "a", "other": 1}, "inputs"),
            (["text"], "inputs"),
            (None, "inputs"),
        )
    ):
        problem = refused(lambda n=number, at=inputs: serving.execute(ALPHA, task(f"bad{n}", inputs=at)))
        assert (problem.status, problem.code, problem.details["field"]) == (422, "INVALID_INPUT", field)
        assert "charge" not in problem.advice
    assert hand.seen == [] and not parts.client.exists(parts.keys.swarm_day(ALPHA.name))
    serving.execute(ALPHA, task("good", inputs={"text": "a", "most": 1.0, **KERNELS_KEYS}))
    assert json.loads(hand.seen[0].input)["prompt"] == "hello"


def test_disconnected_remote_agent_is_503(serving: SwarmRuntime, parts: Parts, hand: ExpressWorker) -> None:
    """It is not shown, and a task for it is 503 immediately, without using the kernel's daily limit."""
    here = Capability("hand", inline=True, swarm=True, task_types=("swarm",))
    away = Capability("far", remote=True, swarm=True, task_types=("far",), profiles={"wide": {}})
    publish(parts, here, away)
    shown = json.loads(serving.capabilities())
    assert (shown["task_types"], shown["profiles"]) == (["swarm"], ["default"])
    began = time.monotonic()
    problem = refused(lambda: serving.execute(ALPHA, task(task_type="far", profile="wide")))
    assert (problem.status, problem.code) == (503, "CAPABILITY_UNAVAILABLE")
    assert time.monotonic() - began < 5
    assert not parts.client.exists(parts.keys.swarm_day(ALPHA.name))
    parts.remote.connections.open("agent", "far", "one")
    assert json.loads(serving.capabilities())["task_types"] == ["far", "swarm"]


def test_resubmitted_task_does_not_run_twice_at_once(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """A step's lease expired and another process of the kernel retried it: both get the same response."""
    hand.go.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(serving.execute, ALPHA, task("old", task_id="run-1-a-1"))
        eventually(lambda: serving.places.known("swarm:alpha", key_of("old", "run-1-a-1")))
        second = pool.submit(serving.execute, ALPHA, task("new", task_id="run-1-a-1"))
        time.sleep(0.3)
        hand.go.set()
        assert first.result(20) == second.result(20)
    assert len(hand.seen) == 1
    serving.execute(ALPHA, task("later", task_id="run-1-a-1"))
    assert len(hand.seen) == 2


def key_of(execution_id: str, task_id: str) -> str:
    ids = {"task_id": task_id, "execution_id": execution_id, "attempt_id": execution_id}
    return idempotency_key("alpha", wire.parse_execute(execute_body(**ids)))


def test_task_time_limits_are_enforced(serving: SwarmRuntime, hand: ExpressWorker, parts: Parts) -> None:
    """The record ends at the task's time limit or expiry, whichever is first, and never after our limit."""
    tight = contract(budget={**CONTRACT["budget"], "time_ms": 1500}, expiry_ms=2**50)
    serving.execute(ALPHA, task("time", task_contract=tight))
    soon = int(time.time() * 1000) + 5_000
    serving.execute(ALPHA, task("expiry", task_contract=contract(expiry_ms=soon)))
    far = contract(budget={**CONTRACT["budget"], "time_ms": 2**64 - 1}, expiry_ms=2**64 - 1)
    serving.execute(ALPHA, task("far", task_contract=far))
    lives = [execution.ends_by - execution.created for execution in hand.seen]
    assert lives[0] == 1_500_000
    assert 3_000_000 < lives[1] <= 5_000_000
    assert lives[2] == 3600 * 10**6


@pytest.mark.parametrize(
    ("result", "kernels", "documents"),
    [
        (value({"wrong": 1}), 502, 400),
        (value({"answer": 1}), 502, 400),
        (value({"answer": "x" * 65_536}), 502, 400),
        (failed("OUTPUT_SCHEMA_INVALID"), 502, 400),
        (failed("INVALID_INPUT"), 422, 422),
        (failed("UNSATISFIABLE_SCHEMA"), 400, 400),
        (failed("EXECUTION_TIMEOUT"), 504, 504),
        (failed("INTERNAL_ERROR"), 500, 500),
        (failed("NO_MODEL"), 502, 502),
    ],
)
def test_failures_are_mapped_to_statuses(
    serving: SwarmRuntime, hand: ExpressWorker, result: Result, kernels: int, documents: int
) -> None:
    """The status says whether a retry helps; the same request gets the same refusal from the record."""
    hand.do = lambda execution: result
    for stage, status in (("EXPLORE", kernels), ("explore", documents)):
        problems = [refused(lambda at=stage: serving.execute(ALPHA, task(at, stage=at))) for _ in range(2)]
        assert [problem.status for problem in problems] == [status, status]
        assert str(problems[0]) == str(problems[1]) and problems[0].details == problems[1].details
    assert len(hand.seen) == 2
    assert isinstance(problems[0], AnswerRefused) or problems[0].code == result[1]["code"]


def test_text_becomes_an_answer(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """An agent that returns text, a list or a stream gets the shape that the schema requires."""
    stored = serving.files.put(b"streamed text", name="output.txt", mime="text/plain; charset=utf-8")
    for key, result, expected in (
        ("text", value("plain text", "text"), {"answer": "plain text"}),
        ("stream", value(None, "stream", (stored,)), {"answer": "streamed text"}),
    ):
        hand.do = lambda execution, result=result: result  # type: ignore[misc]
        assert json.loads(serving.execute(ALPHA, task(key)))["candidate_output"] == expected
    hand.do = lambda execution: value([1, 2])
    bare = contract(output_schema={"type": "array"})
    answer = json.loads(serving.execute(ALPHA, task("list", task_contract=bare)))
    assert answer["candidate_output"] == [1, 2]


def test_files_become_evidence(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """Every file is a reference with its real digest; text of an accepted type is also inline, truncated."""
    stored = [
        serving.files.put(b"# notes", name="notes.md", mime="text/markdown; charset=utf-8"),
        serving.files.put(b'{"a":1}', name="a.json", mime="application/json"),
        serving.files.put("ä".encode() * 50_000, name="long.txt", mime="text/plain"),
        serving.files.put(b"\x89PNG\r\n\x1a\n" + b"x" * 100, name="p.png", mime="image/png"),
    ]
    hand.do = lambda execution: value({"answer": "see files"}, "multiple", tuple(stored))
    answer = json.loads(serving.execute(ALPHA, task()))
    [trace, notes, data, long] = answer["evidence_inline"]
    assert trace == {
        "mime": "text/plain",
        "content": f"trace:exec-1 execution:{hand.seen[0].id}",
    }
    assert notes == {"mime": "text/markdown", "content": "# notes"}
    assert data == {"mime": "application/json", "content": '{"a":1}'}
    assert long["mime"] == "text/plain" and long["content"].endswith("[cut]")
    assert len(long["content"].encode()) <= 65_536
    refs = answer["evidence_refs"]
    assert [ref["digest"] for ref in refs[:4]] == [f"sha256:{ref.sha256}" for ref in stored]
    execution = serving.executions.get(hand.seen[0].id)
    for ref in refs:
        assert list(ref) == ["uri", "digest", "size_bytes", "mime", "created_at", "producer"]
        assert ref["created_at"] == execution.ended // 1000
        assert ref["producer"] == "swarm-runtime/swarm-model-v1"
        _, _, _, _, id, which, token, _ = ref["uri"].split("/")
        reply, chunks = serving.deliverables.open(id, which, token, "GET", {})
        content = b"".join(chunks)
        assert (reply.status, len(content)) == (200, ref["size_bytes"])
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == ref["digest"]
    assert refs[-1]["mime"] == "application/json" and len(refs) == 5


def test_large_and_unusual_outputs_arrive(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """An output stored as a file, and one with integers beyond a double, are returned byte for byte."""
    stored = serving.files.put(encode({"answer": "y" * 40_000}), name="output.json", mime="application/json")
    described = {"type": "json", "files": [], "value_ref": asdict(stored)}
    hand.do = lambda execution: ("completed", described, b"")
    assert json.loads(serving.execute(ALPHA, task("large")))["candidate_output"] == {"answer": "y" * 40_000}
    hand.do = lambda execution: value({"answer": "ä\u2028", "n": 18446744073709551615, "f": 1e-7})
    raw = serving.execute(ALPHA, task("odd"))
    assert '"candidate_output":{"answer":"ä\u2028","n":18446744073709551615,"f":1e-07}'.encode() in raw
    assert json.loads(raw)["evidence_refs"] == []


def test_identity_change_does_not_change_stored_answers(serving: SwarmRuntime, hand: ExpressWorker) -> None:
    """A stored response does not change, even after the operator names another model."""
    first = serving.execute(ALPHA, task())
    renamed = replace(serving, identity=replace(serving.identity, model_id="another"))
    assert renamed.execute(ALPHA, task()) == first
    assert b"another" in renamed.execute(ALPHA, task("new"))


@pytest.mark.parametrize("case", VERIFY)
def test_verification_needs_no_store(case: dict[str, Any]) -> None:
    """The recorded verdicts are reproduced byte for byte, with an unreachable store."""
    serving = Parts(Settings.load({"REDIS_URL": "redis://127.0.0.1:1/0"}), "web").serving
    raw = serving.verify(ALPHA, json.dumps(case["request"]).encode())
    assert raw == json.dumps(case["response"], separators=(",", ":")).encode()


def test_operators_own_policy_hashes_are_accepted() -> None:
    """In both spellings, only for the policy they were configured for; refusals name them."""
    own = "ab" * 32
    settings = Settings.load(
        {"REDIS_URL": "redis://127.0.0.1:1/0", "SWARM_POLICY_HASHES": f"vp.crosscheck.v1:sha256:{own}"}
    )
    serving = Parts(settings, "web").serving

    def verify(policy_id: str, policy_hash: str) -> dict[str, Any]:
        body = copy.deepcopy(VERIFY[0]["request"])
        body["policy"].update(policy_id=policy_id, policy_hash=policy_hash)
        answer: dict[str, Any] = json.loads(serving.verify(ALPHA, json.dumps(body).encode()))
        return answer

    assert verify("vp.crosscheck.v1", own)["reason_codes"] == [100, 104]
    assert verify("vp.crosscheck.v1", f"sha256:{own}")["verifier_result_hash"].startswith("sha256:")
    assert refused(lambda: verify("vp.schema_only.v1", own)).status == 400
    assert own in refused(lambda: verify("vp.crosscheck.v1", "00" * 32)).details["expected"]


def test_full_schema_check_can_only_fail_more(
    serving: SwarmRuntime, hand: ExpressWorker, parts: Parts
) -> None:
    """If enabled, a candidate that passed must match its whole schema; a failed one is not rechecked."""

    class AsJob:
        def __init__(self, input: Any) -> None:
            self.input = input

    hand.do = lambda execution: value(full_schema.check(AsJob(json.loads(execution.input))))
    strict = replace(
        serving, stricter=ExtraChecks(full_schema=full_schema.FullSchema(serving.executions, serving.places))
    )

    def verdict(output: Any, schema: Any) -> tuple[bool, list[int]]:
        body = copy.deepcopy(VERIFY[0]["request"])
        body["candidate"]["output"], body["output_schema"] = output, schema
        answer = json.loads(strict.verify(ALPHA, json.dumps(body).encode()))
        return answer["passed"], answer["reason_codes"]

    short = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 3}}}
    assert verdict({"answer": "ok"}, short) == (True, [100])
    assert verdict({"answer": "long"}, short) == (False, [101])
    assert verdict({}, {}) == (True, [100])
    assert verdict(None, {"enum": [1]}) == (False, [101])
    assert verdict({}, {"$ref": "https://elsewhere.example/schema"}) == (False, [101])
    assert verdict({}, {"type": 12}) == (False, [101])
    ran = len(hand.seen)
    assert verdict([], short) == (False, [101])
    assert verdict({}, True) == (False, [101])
    assert len(hand.seen) == ran
    hand.do = lambda execution: failed("EXECUTION_TIMEOUT")
    assert verdict({"answer": "ok"}, short) == (False, [101])
    hand.do = lambda execution: failed("CAPABILITY_UNAVAILABLE")
    assert isinstance(refused(lambda: verdict({"answer": "ok"}, short)), Unavailable)


class _Evidence(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = int(self.path[1:4])
        if status == 999:
            time.sleep(3)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/200")
        self.end_headers()
        self.wfile.write(b"evidence")

    def log_message(self, *args: Any) -> None:
        return


@contextmanager
def _evidence_host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Evidence)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_evidence_is_read_only_when_asked_for(serving: SwarmRuntime) -> None:
    """A right digest passes, a wrong one fails, unreadable is inconclusive, other hosts are skipped."""
    with _evidence_host() as host:
        fetch = EvidenceReader("test", (host,))
        curious = replace(serving, stricter=ExtraChecks(origins=(host,), fetch=fetch))

        def verdict(path: str, content: bytes = b"evidence", at: str = host) -> tuple[str, list[int]]:
            body = copy.deepcopy(VERIFY[0]["request"])
            ref = {"uri": at + path, "digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}
            ref |= {"size_bytes": 8, "mime": "text/plain", "created_at": 1, "producer": "p"}  # type: ignore[dict-item]
            body["candidate"]["evidence_refs"] = [ref]
            answer = json.loads(curious.verify(ALPHA, json.dumps(body).encode()))
            return answer["verification_status"], answer["reason_codes"]

        assert verdict("/200") == ("passed", [100])
        assert verdict("/200", b"other") == ("failed", [100, 203])
        assert verdict("/404") == ("inconclusive", [100, 200])
        assert verdict("/302") == ("inconclusive", [100, 200])
        assert verdict("/403") == ("inconclusive", [100, 202])
        assert verdict("/200", b"other", "https://runtime.local") == ("passed", [100])
        assert fetch(f"{host}/999", max_bytes=99, seconds=0.3).outcome is FetchOutcome.TIMEOUT
        assert fetch(f"{host}/200", max_bytes=3, seconds=5).outcome is FetchOutcome.UNREACHABLE
        production = EvidenceReader("production", (host,))
        assert production(f"{host}/200", max_bytes=99, seconds=5).outcome is FetchOutcome.UNREACHABLE


def test_door_is_closed_without_keys(parts: Parts) -> None:
    """Without SWARM_KEYS every swarm route is unknown, and the root's execute serves only hiring."""
    web = create_app(parts.settings).test_client()
    for method, path in (
        ("GET", "/swarm/health"),
        ("GET", "/swarm/capabilities"),
        ("POST", "/swarm/execute"),
        ("POST", "/swarm/verify"),
        ("GET", "/capabilities"),
        ("POST", "/verify"),
    ):
        assert web.open(path, method=method, data=task()).status_code == 404
    answer = web.post("/execute", data=task(), content_type="application/json")
    assert answer.status_code == 400
    assert answer.get_json()["error"]["code"] == "MISSING_CONTRACT_ID"


def test_wrong_passwords_are_rate_limited(parts: Parts) -> None:
    """Counted together with wrong bearers; the right password works throughout."""
    settings = replace(parts.settings, swarm_keys=(("alpha", "right-password"),), kernel_token="t" * 32)
    web = create_app(settings).test_client()

    def shown(authorization: str, path: str = "/capabilities") -> int:
        return web.get(path, headers={"Authorization": authorization}).status_code

    statuses = [shown("Basic YWxwaGE6d3Jvbmc=") for _ in range(MOST_FAILURES)]
    assert statuses == [401] * MOST_FAILURES
    assert [shown("Bearer wrong"), shown("Bearer wrong", "/v0/executions")] == [429, 429]
    assert [shown(""), shown("Bearer right-password")] == [401, 200]
    assert shown("Bearer " + "t" * 32, "/v0/executions") == 200
    answer = web.get("/capabilities", headers={"Authorization": "Basic eDp5"})
    assert answer.get_json()["code"] == "RATE_LIMITED" and int(answer.headers["Retry-After"]) <= 60


def test_unavailable_store_is_503(tmp_path: Path) -> None:
    """In the swarm's error format, so that a kernel retries the task; verdicts still work."""
    settings = Settings.load(
        {"REDIS_URL": "redis://127.0.0.1:1/0", "SWARM_KEYS": "a:pw", "WORKER_STATE_DIR": str(tmp_path)}
    )
    web = create_app(settings).test_client()
    for path in ("/swarm/execute", "/execute"):
        answer = web.post(path, data=task(), headers={"Authorization": "Bearer pw"})
        assert answer.status_code == 503
        assert answer.get_json()["code"] == "STORE_UNAVAILABLE"
    answer = web.post("/verify", json=VERIFY[0]["request"], headers={"Authorization": "Bearer pw"})
    assert answer.status_code == 200
