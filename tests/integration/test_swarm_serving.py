"""The runtime on a real store, with work done by hand instead of by warm processes, and its closed door."""

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
from worker.agents.declare import Capability
from worker.agents.output import encode
from worker.app import create_app
from worker.errors import BadRequest, Problem, TooLarge, Unavailable
from worker.executions.record import Execution
from worker.parts import Parts
from worker.settings import Settings
from worker.swarm import full_schema
from worker.swarm.candidate import AnswerRefused, ImpossibleSchema
from worker.swarm.fetching import Outcome
from worker.swarm.kernels import Kernel
from worker.swarm.places import Busy, Expired
from worker.swarm.reading_evidence import ReadEvidence
from worker.swarm.serving import Serving, StillRunning, Stricter, UnknownProfile

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


class Hand:
    """Takes what waits in the express lane and does with it what it was told."""

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
        parts.store.due(tree="t", queued_age_us=10**12, retention_us=10**15)
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
def _serving(parts: Parts) -> Serving:
    return parts.serving


@pytest.fixture(name="hand")
def _hand(parts: Parts) -> Iterator[Hand]:
    hand = Hand(parts, lambda execution: value({"answer": "done"}))
    yield hand
    hand.close()


def task(execution_id: str = "exec-1", **changes: Any) -> bytes:
    ids = {"execution_id": execution_id, "attempt_id": execution_id}
    return json.dumps(execute_body(**{"task_contract": contract(), **ids, **changes})).encode()


def refused(call: Callable[[], object]) -> Problem:
    with pytest.raises(Problem) as caught:
        call()
    return caught.value


def test_the_same_request_gets_the_same_bytes(serving: Serving, hand: Hand, parts: Parts) -> None:
    """Once in a row, five times at once, and from another process that shares nothing but the store."""
    raw = task()
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: serving.execute(ALPHA, raw), range(5)))
    elsewhere = Parts(parts.settings, "web").serving
    answers += [serving.execute(ALPHA, raw), elsewhere.execute(ALPHA, raw)]
    assert len(set(answers)) == 1
    assert len(hand.seen) == 1
    assert json.loads(answers[0])["candidate_output"] == {"answer": "done"}


def test_a_key_belongs_to_its_kernel(serving: Serving, hand: Hand) -> None:
    """The ids of one kernel mean nothing to another, and each of the three ids counts."""
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


def test_the_first_body_wins(serving: Serving, hand: Hand) -> None:
    """Another body under the same ids is answered with the first one's answer, in the first one's form."""
    first = serving.execute(ALPHA, task())
    schema = {"type": "object", "required": ["never"]}
    other = task(stage="explore", inputs=1, profile="nope", task_contract=contract(output_schema=schema))
    assert serving.execute(ALPHA, other) == first
    assert len(hand.seen) == 1


def test_the_function_gets_what_the_kernel_sent(serving: Serving, hand: Hand) -> None:
    """Input, contract, stage, seed and profile stand in the record that the work process takes."""
    seed = {"seed_type": "SIMILAR_HITS_V1", "hits": [], "constraints": {}}
    inputs = {"prompt": "päron \u2028", "n": 12345678901234567890}
    serving.execute(ALPHA, task(inputs=inputs, seed_bundle=seed, stage="DIVERGE_MODE", task_type="odd"))
    [execution] = hand.seen
    assert json.loads(execution.input) == inputs
    context = execution.context
    assert (context["stage"], context["seed"], context["profile"]) == ("DIVERGE_MODE", seed, "default")
    assert context["swarm"]["budget"] == CONTRACT["budget"]
    assert (execution.door, execution.agent) == ("swarm", "hand")


def test_long_work_is_held_and_collected(serving: Serving, hand: Hand) -> None:
    """A request is silent as long as it is held; a later one collects, without a second run."""
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


def test_places_are_given_back(parts: Parts, hand: Hand) -> None:
    """Many tasks at once find room in the one place there is, and leave it free."""
    patient = replace(parts.settings, swarm_patience=10.0)
    serving = Parts(patient, "web").serving
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: serving.execute(ALPHA, task(f"e{n}")), range(12)))
    assert len(hand.seen) == 12
    assert parts.client.zcard(parts.keys.swarm("places", "express")) == 0


def test_no_place_is_503(serving: Serving, hand: Hand) -> None:
    """While its only place is in use, the swarm tells a kernel to try again, and nothing is recorded."""
    hand.go.clear()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(serving.execute, ALPHA, task("long"))
        time.sleep(0.1)
        busy = refused(lambda: serving.execute(ALPHA, task("second")))
        assert isinstance(busy, Busy) and busy.status == 503
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
        ({"task_contract": contract(expiry_ms=1)}, Expired, 422),
        ({"task_contract": contract(budget={**CONTRACT["budget"], "time_ms": 0})}, Expired, 422),
        ({"task_contract": contract(note="x" * 300_000)}, TooLarge, 413),
        ({"task_id": 7}, BadRequest, 422),
        ({"task_contract": None}, BadRequest, 422),
    ],
)
def test_what_is_refused_before_it_runs(
    serving: Serving, hand: Hand, changes: dict[str, Any], kind: type[Problem], status: int
) -> None:
    """What would fail in any case is told at once, final, and makes no execution."""
    problem = refused(lambda: serving.execute(ALPHA, task(**changes)))
    assert isinstance(problem, kind) and problem.status == status
    assert hand.seen == []


def test_a_closed_agent_serves_nobody(serving: Serving, parts: Parts, hand: Hand) -> None:
    """An agent that is only for sale is neither shown nor run; without an open one it is 503."""
    shown = json.loads(serving.capabilities())
    assert shown["task_types"] == ["swarm"] and shown["profiles"] == ["default"]
    parts.catalog.publish([Capability("paid", inline=True, price="1", task_types=("swarm",))])
    time.sleep(1.1)
    assert json.loads(serving.capabilities())["task_types"] == []
    assert refused(lambda: serving.execute(ALPHA, task())).status == 503


def test_time_is_kept(serving: Serving, hand: Hand, parts: Parts) -> None:
    """The record ends by the task's time or its expiry, whichever comes first, and never later than ours."""
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
        (failed("UNSATISFIABLE_SCHEMA"), 422, 422),
        (failed("EXECUTION_TIMEOUT"), 504, 504),
        (failed("INTERNAL_ERROR"), 500, 500),
        (failed("NO_MODEL"), 502, 502),
    ],
)
def test_how_work_that_went_wrong_is_told(
    serving: Serving, hand: Hand, result: Result, kernels: int, documents: int
) -> None:
    """The status says whether another try helps; the same request gets the same refusal, from the record."""
    hand.do = lambda execution: result
    for stage, status in (("EXPLORE", kernels), ("explore", documents)):
        told = [refused(lambda at=stage: serving.execute(ALPHA, task(at, stage=at))) for _ in range(2)]
        assert [problem.status for problem in told] == [status, status]
        assert str(told[0]) == str(told[1]) and told[0].details == told[1].details
    assert len(hand.seen) == 2
    assert isinstance(told[0], AnswerRefused) or told[0].code == result[1]["code"]


def test_text_becomes_an_answer(serving: Serving, hand: Hand) -> None:
    """An agent that returns text, a list or a stream gets the shape that the schema asks for."""
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


def test_files_are_evidence(serving: Serving, hand: Hand) -> None:
    """Every file is a reference with its real digest; text goes inline too, cut and of an accepted type."""
    made = [
        serving.files.put(b"# notes", name="notes.md", mime="text/markdown; charset=utf-8"),
        serving.files.put(b'{"a":1}', name="a.json", mime="application/json"),
        serving.files.put("ä".encode() * 50_000, name="long.txt", mime="text/plain"),
        serving.files.put(b"\x89PNG\r\n\x1a\n" + b"x" * 100, name="p.png", mime="image/png"),
    ]
    hand.do = lambda execution: value({"answer": "see files"}, "multiple", tuple(made))
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
    assert [ref["digest"] for ref in refs[:4]] == [f"sha256:{ref.sha256}" for ref in made]
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


def test_large_and_odd_outputs_arrive(serving: Serving, hand: Hand) -> None:
    """An output kept as a file, and one with integers beyond a double, are answered byte for byte."""
    stored = serving.files.put(encode({"answer": "y" * 40_000}), name="output.json", mime="application/json")
    described = {"type": "json", "files": [], "value_ref": asdict(stored)}
    hand.do = lambda execution: ("completed", described, b"")
    assert json.loads(serving.execute(ALPHA, task("large")))["candidate_output"] == {"answer": "y" * 40_000}
    hand.do = lambda execution: value({"answer": "ä\u2028", "n": 18446744073709551615, "f": 1e-7})
    raw = serving.execute(ALPHA, task("odd"))
    assert '"candidate_output":{"answer":"ä\u2028","n":18446744073709551615,"f":1e-07}'.encode() in raw
    assert json.loads(raw)["evidence_refs"] == []


def test_a_changed_identity_changes_no_answer(serving: Serving, hand: Hand) -> None:
    """What was answered once stays as it was, also after the operator names another model."""
    first = serving.execute(ALPHA, task())
    renamed = replace(serving, identity=replace(serving.identity, model_id="another"))
    assert renamed.execute(ALPHA, task()) == first
    assert b"another" in renamed.execute(ALPHA, task("new"))


@pytest.mark.parametrize("case", VERIFY)
def test_verification_needs_no_store(case: dict[str, Any]) -> None:
    """Verdicts of the recorded cases come out byte for byte, with a store that nobody could reach."""
    serving = Parts(Settings.load({"REDIS_URL": "redis://127.0.0.1:1/0"}), "web").serving
    raw = serving.verify(ALPHA, json.dumps(case["request"]).encode())
    assert raw == json.dumps(case["response"], separators=(",", ":")).encode()


def test_the_operators_own_hashes_are_accepted() -> None:
    """In both spellings, for the policy they were given for and no other; refusals name them."""
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


def test_the_whole_schema_can_only_fail_more(serving: Serving, hand: Hand, parts: Parts) -> None:
    """Opted in, a candidate that passed must fit its whole schema; one that failed is not checked again."""

    class AsJob:
        def __init__(self, given: Any) -> None:
            self.input = given

    hand.do = lambda execution: value(full_schema.check(AsJob(json.loads(execution.input))))
    strict = replace(
        serving, stricter=Stricter(full_schema=full_schema.FullSchema(serving.executions, serving.places))
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


def test_evidence_is_read_only_when_asked_for(serving: Serving) -> None:
    """A right digest passes, a wrong one fails, the unreadable is inconclusive, other hosts are let be."""
    with _evidence_host() as host:
        fetch = ReadEvidence("test", (host,))
        curious = replace(serving, stricter=Stricter(origins=(host,), fetch=fetch))

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
        assert fetch(f"{host}/999", max_bytes=99, seconds=0.3).outcome is Outcome.TIMEOUT
        assert fetch(f"{host}/200", max_bytes=3, seconds=5).outcome is Outcome.UNREACHABLE
        production = ReadEvidence("production", (host,))
        assert production(f"{host}/200", max_bytes=99, seconds=5).outcome is Outcome.UNREACHABLE


def test_the_door_is_shut_without_keys(parts: Parts) -> None:
    """No SWARM_KEYS: every address of the swarm is unknown, and the root's execute is only for hiring."""
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


def test_a_store_that_is_away_is_503(tmp_path: Path) -> None:
    """Told in the swarm's form, so that a kernel runs the task again; verdicts are given all the same."""
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
