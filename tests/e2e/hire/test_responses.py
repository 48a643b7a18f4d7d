"""Responses to a seeker: the specified shapes, waiting, polling, replays, cancelling, files."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.hire.hire_agents import BYTES, SVG
from tests.e2e.hire.hire_session import HireSession, decoded

CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

# The specification's examples: the keys and the type of each value.
COMPLETED = {"status": "completed", "contract_id": str, "deliverables": list, "metadata": dict}
PENDING = {"status": "pending", "task_id": str, "poll_url": str, "estimated_completion": TIME}
FAILED = {"status": "failed", "contract_id": str, "error": dict}


def fits(body: dict[str, Any], example: dict[str, Any]) -> None:
    """Checks that every key of the example is there with a value of the same kind."""
    for name, wanted in example.items():
        assert name in body, f"{name} is missing: {body}"
        if isinstance(wanted, type):
            assert isinstance(body[name], wanted), name
        elif isinstance(wanted, re.Pattern):
            assert wanted.fullmatch(body[name]), body[name]
        else:
            assert body[name] == wanted, name


def test_402_has_the_specified_headers(session: HireSession) -> None:
    """An unpaid request gets HIRE's four payment headers, with amounts in USDC."""
    asked = session.execute(session.contract("text", price="5"), {"text": "x"})
    assert asked.status_code == 402
    assert asked.headers["X-Payment-Address"].lower() == session.facts["worker_wallet"].lower()
    assert asked.headers["X-Payment-Amount"] == "5"
    assert asked.headers["X-Payment-Currency"] == "USDC"
    assert asked.headers["X-Payment-Network"] == "base"
    assert asked.headers["Cache-Control"] == "no-store"


def test_success_response_matches_the_specification(session: HireSession) -> None:
    """The completed response has the specified keys; each deliverable has a name, a URL and its checksum."""
    contract = session.contract("logos")
    reply = session.buy(contract, {})
    body = reply.json()
    assert reply.status_code == 200
    fits(body, COMPLETED | {"contract_id": contract})
    for each in body["deliverables"]:
        fits(each, {"name": str, "url": str, "checksum": CHECKSUM})
    fits(body["metadata"], {"execution_time_ms": int, "model_used": str, "attempts": 1, "queue_time_ms": int})
    assert decoded(reply.headers["PAYMENT-RESPONSE"])["success"] is True


def test_failure_response_matches_the_specification(session: HireSession) -> None:
    """An agent that rejects its input fails with the specification's example, verbatim."""
    contract = session.contract("picky")
    reply = session.buy(contract, {"colors": ["red"]})
    body = reply.json()
    assert reply.status_code == 422
    fits(body, FAILED | {"contract_id": contract})
    error = body["error"]
    assert error["code"] == "INVALID_INPUT" and error["message"] == "Color format not recognized"
    fits(error["details"], {"field": "colors[0]", "expected": "hex color", "received": "red"})
    assert error["details"]["charged"] is False
    assert session.charges(body["task_id"]) == 0
    # The same payment is accepted with another input.
    again = session.execute(contract, {"colors": ["#FF5733"]})
    assert (again.status_code, again.json()["output"]["content"]) == (200, "fine")
    assert session.charges(body["task_id"]) == 1


def test_pending_response_matches_the_specification(session: HireSession, tmp_path: Path) -> None:
    """A long task gets a 202 at once, with the poll URL and when to poll."""
    gate = tmp_path / "gate"
    contract = session.contract("gated")
    reply = session.buy(contract, {"gate": str(gate)}, Prefer="respond-async")
    body = reply.json()
    assert reply.status_code == 202
    fits(body, PENDING | {"contract_id": contract, "poll_url": f"{session.url}/tasks/{body['task_id']}"})
    assert reply.headers["Location"] == body["poll_url"]
    assert int(reply.headers["Retry-After"]) >= 1
    assert reply.headers["Preference-Applied"] == "respond-async"
    gate.touch()
    assert session.ended(contract, body["task_id"])["status"] == "completed"


@pytest.mark.parametrize(
    ("capability", "input", "output"),
    [
        ("text", {"text": "Your code review: fine"}, {"type": "text", "content": "Your code review: fine"}),
        ("score", {"score": 8}, {"type": "json", "content": {"score": 8, "issues": []}}),
        ("image", {}, {"type": "file", "url": str, "mime": "image/png", "size": len(BYTES)}),
        ("logos", {}, {"type": "multiple", "items": list}),
        ("big", {}, {"type": "text", "content": "long " * 20_000}),
    ],
)
def test_every_output_type_has_its_documented_shape(
    session: HireSession, capability: str, input: Any, output: dict[str, Any]
) -> None:
    """Every output type has the specified shape, and its bytes match the announced checksum."""
    _, body = session.done(capability, input)
    fits(body["output"], output)
    assert body["deliverables"]
    for each in body["deliverables"]:
        content = requests.get(each["url"], timeout=10).content
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == each["checksum"]
        assert len(content) == each["size"]
    for item in body["output"].get("items", []):
        fits(item, {"type": str})
        if item["type"] == "file":
            fits(item, {"url": str, "mime": "image/svg+xml", "size": len(SVG), "checksum": CHECKSUM})


def test_model_used_names_the_model_or_the_capability(session: HireSession) -> None:
    """`model_used` is the name given by the author, else the capability with its version."""
    assert session.done("text", {"text": "x"})[1]["metadata"]["model_used"] == "scribe-1"
    assert re.fullmatch(
        r"score/[0-9a-f]{12}", session.done("score", {"score": 1})[1]["metadata"]["model_used"]
    )


# Waiting and polling


@pytest.mark.parametrize(
    ("wish", "applied"),
    [("wait=1", "wait=1"), ("respond-async, wait=1", "respond-async, wait=1"), ("WAIT=1;x=y", "wait=1")],
)
def test_prefer_wait_limits_how_long_a_request_waits(session: HireSession, wish: str, applied: str) -> None:
    """`Prefer: wait=1` gets a 202 after a second, with Preference-Applied."""
    contract = session.contract("napping")
    reply = session.buy(contract, {"seconds": 2.2}, Prefer=wish)
    assert reply.status_code == 202 and reply.headers["Preference-Applied"] == applied
    assert 0.9 < reply.elapsed.total_seconds() < 2.1
    session.ended(contract, reply.json()["task_id"])


@pytest.mark.parametrize(
    "wish", ["wait=soon", "wait=-1", "wait=1e9", "handling=lenient", "wait=9999999999999"]
)
def test_invalid_prefer_header_is_ignored(session: HireSession, wish: str) -> None:
    """An invalid Prefer header is ignored and not echoed as applied."""
    reply = session.buy(session.contract("text"), {"text": "x"}, Prefer=wish)
    assert reply.status_code == 200 and "Preference-Applied" not in reply.headers


def test_polling_shows_progress_and_supports_etags(session: HireSession, tmp_path: Path) -> None:
    """A poll shows progress and the next URL; unchanged it gets a 304, changed it does not."""
    gate = tmp_path / "gate"
    contract, task = session.begin("gated", {"gate": str(gate)})
    session.until(contract, task, lambda body: body.get("progress", {}).get("message") == "half")
    first = session.poll(contract, task)
    assert first.headers["Retry-After"] and "Location" not in first.headers
    assert first.json()["progress"] == {"fraction": 0.5, "message": "half"}
    again = session.poll(contract, task, If_None_Match=first.headers["ETag"])
    assert (again.status_code, again.content) == (304, b"")
    gate.touch()
    done = session.ended(contract, task)
    last = session.poll(contract, task, If_None_Match=first.headers["ETag"])
    assert last.status_code == 200 and last.headers["ETag"] != first.headers["ETag"]
    assert done["sequence"] > first.json()["sequence"]
    assert TIME.fullmatch(done["expires_at"])
    assert session.poll(contract, task, If_None_Match=last.headers["ETag"]).status_code == 304


def test_another_contracts_task_looks_unknown(session: HireSession) -> None:
    """Without its contract, with another's, or with a wrong id, a task looks as if it did not exist."""
    contract, body = session.done("text", {"text": "mine"})
    other = session.contract("text")
    task = body["task_id"]
    seen = [
        session.http.get(f"{session.url}/tasks/{task}"),
        session.poll(other, task),
        session.poll(contract, "00000000-0000-7000-8000-000000000000"),
        session.poll(contract, "nonsense"),
        session.http.delete(f"{session.url}/tasks/{task}", headers={"X-Contract-ID": other}),
        session.http.get(f"{session.url}/stream/{task}", headers={"X-Contract-ID": other}),
        session.http.get(f"{session.url}/stream/{task}?token=" + "0" * 32),
    ]
    assert {reply.status_code for reply in seen} == {404}
    assert {reply.json()["error"]["code"] for reply in seen} == {"TASK_NOT_FOUND"}
    assert len({json.dumps(reply.json()["error"]) for reply in seen}) == 1


# Replays


def test_replay_returns_identical_bytes(session: HireSession) -> None:
    """A completed contract returns the same bytes, whatever payment is sent, and is charged once."""
    contract = session.contract("text", deadline_in=3600)
    asked = session.execute(contract, {"text": "once"})
    first = session.execute(contract, {"text": "once"}, payment=session.sign(asked))
    before = session.balance(session.facts["seeker_wallet"])
    plain = session.execute(contract, {"text": "once"})
    paid = session.execute(contract, {"text": "once"}, payment=session.sign(asked))
    poll = session.poll(contract, first.json()["task_id"])
    for reply in (plain, paid):
        assert reply.status_code == 200 and reply.headers["Idempotent-Replayed"] == "true"
        assert reply.content == first.content == poll.content
        assert reply.headers["PAYMENT-RESPONSE"] == first.headers["PAYMENT-RESPONSE"]
    assert "X-Payment-Status" not in plain.headers
    assert paid.headers["X-Payment-Status"] == "already_paid"
    assert session.balance(session.facts["seeker_wallet"]) == before
    assert session.charges(first.json()["task_id"]) == 1


def test_duplicate_requests_while_the_task_runs(session: HireSession, tmp_path: Path) -> None:
    """A duplicate gets the current state, a second payment is not taken, another body gets a 409."""
    gate = tmp_path / "gate"
    input = {"gate": str(gate), "b": 1}
    contract = session.contract("gated")
    asked = session.execute(contract, input)
    first = session.execute(contract, input, payment=session.sign(asked), Prefer="respond-async")
    twin = session.execute(contract, dict(reversed(input.items())), Prefer="wait=0")
    assert twin.status_code == 202 and twin.json()["task_id"] == first.json()["task_id"]
    paid = session.execute(contract, input, payment=session.sign(asked), Prefer="respond-async")
    assert paid.status_code == 202 and paid.json()["payment"] in ("being_paid", "already_paid")
    other = session.execute(contract, {"gate": "elsewhere"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    gate.touch()
    waited = session.execute(contract, input, Prefer="wait=9")
    assert waited.status_code == 200
    session.ended(contract, first.json()["task_id"])
    late = session.execute(contract, {"gate": "elsewhere"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert session.charges(first.json()["task_id"]) == 1


def test_concurrent_copies_are_one_execution(session: HireSession) -> None:
    """Eight concurrent copies of one paid request are one execution and one charge."""
    contract = session.contract("text")
    payment = session.sign(session.execute(contract, {"text": "x"}))
    replies: list[requests.Response] = []

    def send() -> None:
        with requests.Session() as http:
            replies.append(session.execute(contract, {"text": "x"}, payment=payment, http=http))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({reply.json()["task_id"] for reply in replies}) == 1
    assert {reply.status_code for reply in replies} <= {200, 202}
    assert session.charges(replies[0].json()["task_id"]) == 1


@pytest.mark.parametrize(("policy", "free"), [("3 attempts", 3), (3, 3), (None, 0), ("often", 0)])
def test_transient_failures_get_the_agreed_free_retries(
    session: HireSession, tmp_path: Path, policy: Any, free: int
) -> None:
    """A transient failure gets as many free retries as the contract allows, then it is final."""
    input = {"gate": str(tmp_path / "tries"), "failures": 99}
    contract = session.contract("shaky", sla={} if policy is None else {"retry_policy": policy})
    reply = session.buy(contract, input)
    for left in range(free, 0, -1):
        details = reply.json()["error"]["details"]
        assert (reply.status_code, details["retries_left"], details["retryable"]) == (503, left, True)
        assert reply.headers["Retry-After"]
        reply = session.execute(contract, input)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["details"]["retryable"]) == (
        503,
        "TRANSIENT_FAILURE",
        False,
    )
    assert Path(input["gate"]).read_text() == str(free + 1)
    assert session.execute(contract, input).json()["error"]["code"] == "TRANSIENT_FAILURE"
    assert session.charges(reply.json()["task_id"]) == 0


def test_a_retry_that_succeeds_is_charged_once(session: HireSession, tmp_path: Path) -> None:
    """The first try's payment buys the result of the second."""
    input = {"gate": str(tmp_path / "tries"), "failures": 1}
    contract = session.contract("shaky", sla={"retry_policy": "1 attempt"})
    assert session.buy(contract, input).status_code == 503
    assert session.execute(contract, {"gate": "other", "failures": 1}).status_code == 409
    reply = session.execute(contract, input)
    assert (reply.status_code, reply.json()["output"]["content"]) == (200, {"tries": 2})
    assert session.charges(reply.json()["task_id"]) == 1


def test_invalid_output_fails_uncharged(session: HireSession) -> None:
    """Output that violates the capability's or the contract's schema fails, and nothing is charged."""
    asked: dict[str, Any] = {"output_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    for capability, input, task in (("liar", {"lie": 1}, {}), ("liar", {"truth": 1, "n": "x"}, asked)):
        contract = session.contract(capability, task=task)
        reply = session.buy(contract, input)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (500, "OUTPUT_SCHEMA_INVALID")
        assert error["details"]["refund_condition"] == "output_schema_invalid"
        assert error["details"]["charged"] is False
        assert session.charges(reply.json()["task_id"]) == 0
    good = session.buy(session.contract("liar", task=asked), {"truth": 1, "n": 5})
    assert good.status_code == 200


def test_agent_error_is_reported_with_its_own_message(session: HireSession) -> None:
    """An agent's own failure is reported with its message, also on a replay."""
    contract = session.contract("broken")
    reply = session.buy(contract, {})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["message"]) == (500, "NO_IDEA", "nothing came to mind")
    assert error["details"]["mood"] == "bad"
    again = session.execute(contract, {})
    assert again.content == reply.content and again.headers["Idempotent-Replayed"] == "true"


# Cancelling


def cancel(session: HireSession, contract: str, task: str, query: str = "") -> requests.Response:
    return session.http.delete(f"{session.url}/tasks/{task}{query}", headers={"X-Contract-ID": contract})


def test_cancelling_queued_work_is_free(session: HireSession) -> None:
    """A queued task is released at once and costs nothing."""
    busy = [session.begin("napping", {"seconds": 1.5}) for _ in range(2)]
    contract, task = session.begin("napping", {"seconds": 0})
    reply = cancel(session, contract, task)
    body = reply.json()
    assert (reply.status_code, body["status"], body["error"]["code"]) == (200, "failed", "CANCELLED")
    assert session.charges(task) == 0
    assert session.execute(contract, {"seconds": 0}).json()["error"]["code"] == "CANCELLED"
    for each in busy:
        session.ended(*each)


def test_cancelling_running_work_is_free(session: HireSession, tmp_path: Path) -> None:
    """Running work is stopped and not charged; a second cancel is a conflict."""
    contract, task = session.begin("gated", {"gate": str(tmp_path / "never")})
    session.until(contract, task, lambda body: body["status"] == "partial")
    assert cancel(session, contract, task).json()["error"]["code"] == "CANCELLED"
    again = cancel(session, contract, task)
    assert (again.status_code, again.json()["error"]["details"]["charged"]) == (409, False)
    assert session.charges(task) == 0
    assert session.until(contract, task, lambda body: True)["status"] == "failed"


def test_cancelling_prepaid_work_requires_forfeit(session: HireSession, tmp_path: Path) -> None:
    """A seeker that prepaid is told what a cancel costs; only `forfeit=true` cancels, without a refund."""
    contract, task = session.begin(
        "gated-before", {"gate": str(tmp_path / "never")}, terms={"settlement": "before_work"}
    )
    session.until(contract, task, lambda body: body["status"] == "partial")
    refused = cancel(session, contract, task)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (409, "CANCEL_FORFEITS_PAYMENT")
    assert (error["details"]["charged"], error["details"]["amount"]) == (True, "0.01")
    assert "?forfeit=true" in error["details"]["advice"]
    assert session.poll(contract, task).json()["state"] == "running"
    assert cancel(session, contract, task, "?forfeit=yes").status_code == 400
    details = cancel(session, contract, task, "?forfeit=true").json()["error"]["details"]
    assert (details["charged"], details["forfeited"], "refund" in details) == (True, True, False)


def test_operator_cancel_refunds_prepaid_work(session: HireSession, tmp_path: Path) -> None:
    """When the operator cancels, the seeker gets a refund."""
    terms = {"settlement": "before_work"}
    contract, task = session.begin("gated-before", {"gate": str(tmp_path / "never")}, terms=terms)
    session.until(contract, task, lambda body: body["status"] == "partial")
    bearer = {"Authorization": f"Bearer {session.facts['kernel_token']}"}
    reply = session.http.post(f"{session.url}/v0/executions/{task}/cancel", json={}, headers=bearer)
    assert reply.status_code < 300, reply.text
    details = session.poll(contract, task).json()["error"]["details"]
    assert details["refund"]["amount"] == 10_000 and "forfeited" not in details


def test_completed_task_cannot_be_cancelled(session: HireSession) -> None:
    """A settled task stays as it is, and the refusal says that it was paid for."""
    contract, body = session.done("text", {"text": "x"})
    reply = cancel(session, contract, body["task_id"])
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "CONFLICT")
    details = reply.json()["error"]["details"]
    assert details == {"charged": True, "advice": "GET this address to see its result."}
    assert session.poll(contract, body["task_id"]).json() == body


# Files


def test_files_are_served_with_ranges_and_safe_headers(session: HireSession) -> None:
    """A file is served whole or in part, with headers that state its type and forbid running it."""
    _, body = session.done("image", {})
    url = body["deliverables"][0]["url"]
    whole = requests.get(url, timeout=10)
    digest = body["deliverables"][0]["checksum"].removeprefix("sha256:")
    assert whole.content == BYTES
    assert whole.headers["Content-Type"] == "image/png"
    assert whole.headers["ETag"] == f'"{digest}"'
    assert whole.headers["Repr-Digest"].startswith("sha-256=:")
    assert whole.headers["Content-Disposition"].startswith("attachment")
    assert "filename*=UTF-8''noise%20%C3%BCnicode.bin" in whole.headers["Content-Disposition"]
    assert whole.headers["X-Content-Type-Options"] == "nosniff"
    assert whole.headers["Content-Security-Policy"] == "sandbox"
    head = requests.head(url, timeout=10)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(BYTES))
    part = requests.get(url, headers={"Range": "bytes=100-199"}, timeout=10)
    assert (part.status_code, part.content) == (206, BYTES[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(BYTES)}"
    assert requests.get(url, headers={"Range": "bytes=-5"}, timeout=10).content == BYTES[-5:]
    assert requests.get(url, headers={"Range": "bytes=999999-"}, timeout=10).status_code == 416
    assert requests.get(url, headers={"If-None-Match": whole.headers["ETag"]}, timeout=10).status_code == 304
    assert requests.post(url, timeout=10).status_code == 405


def test_a_file_needs_its_own_token(session: HireSession) -> None:
    """Another file's token, a shortened one or a made-up one opens nothing."""
    _, body = session.done("logos", {})
    first, second = (each["url"] for each in body["deliverables"][:2])
    parts = first.split("/")
    for token in (second.split("/")[-2], parts[-2][:-1], "0" * 32, "%00", "é"):
        reply = requests.get("/".join([*parts[:-2], token, parts[-1]]), timeout=10)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("which", ["9", "-1", "ready-1", "ready-99999", "nonsense", "ready-x"])
def test_unknown_file_is_not_found(session: HireSession, which: str) -> None:
    """A path without a file gets a 404, whatever its name."""
    _, body = session.done("image", {})
    parts = body["deliverables"][0]["url"].split("/")
    assert requests.get("/".join([*parts[:-3], which, *parts[-2:]]), timeout=10).status_code == 404


# Refused before payment


def test_malformed_requests_are_refused_uncharged(session: HireSession) -> None:
    """Each malformed request gets its own status and code, costs nothing and gets no 402."""
    contract = session.contract("text")
    url, named = f"{session.url}/execute", {"X-Contract-ID": contract}
    json_type = {"Content-Type": "application/json"}
    deep = "[" * 65 + "]" * 65

    def sent(data: bytes, headers: dict[str, str]) -> tuple[int, str]:
        reply = session.http.post(url, data=data, headers=headers)
        body = reply.json()
        lost = reply.status_code == 404  # the store may have lost a paid contract
        assert body["status"] == "failed" and body["error"]["details"]["charged"] is (None if lost else False)
        assert "PAYMENT-REQUIRED" not in reply.headers
        return reply.status_code, body["error"]["code"]

    assert sent(b"{}", json_type) == (400, "MISSING_CONTRACT_ID")
    assert sent(b"{}", json_type | {"X-Contract-ID": "ctr_unknown"}) == (404, "CONTRACT_NOT_FOUND")
    assert sent(b"{", named | json_type) == (400, "INVALID_REQUEST")
    assert sent(b'{"a":1,"a":2}', named | json_type) == (400, "INVALID_REQUEST")
    assert sent(deep.encode(), named | json_type) == (400, "INVALID_REQUEST")
    assert sent(b'{"a":NaN}', named | json_type) == (400, "INVALID_REQUEST")
    assert sent(b'{"a":"\xff"}', named | json_type) == (400, "INVALID_REQUEST")
    assert sent(b"a=1", named | {"Content-Type": "text/plain"}) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert sent(b'"' + b"x" * (1 << 20) + b'"', named | json_type) == (413, "TOO_LARGE")
    bad = session.execute(contract, {"text": "x"}, payment="%%%")
    assert bad.status_code == 400 and "PAYMENT-REQUIRED" not in bad.headers


def test_missing_content_type_counts_as_json(session: HireSession) -> None:
    """A missing content type counts as JSON, and any JSON value is an input."""
    contract = session.contract("text")
    request = requests.Request(
        "POST", f"{session.url}/execute", data=b'{"text":"x"}', headers={"X-Contract-ID": contract}
    )
    prepared = request.prepare()
    prepared.headers.pop("Content-Type", None)
    assert session.http.send(prepared).status_code == 402


def test_invalid_input_is_refused_before_payment(session: HireSession) -> None:
    """Invalid input is refused before payment; corrected, it can be bought."""
    contract = session.contract("score")
    reply = session.execute(contract, {"points": 1})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "INVALID_INPUT")
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert session.execute(contract, {"score": 1}).status_code == 402


def test_oversized_headers_are_refused(session: HireSession) -> None:
    """Headers of more than 16 kB are refused, by the worker or the server in front of it."""
    contract = session.contract("text")
    many = {f"X-Filler-{number}": "x" * 4000 for number in range(5)}
    reply = session.execute(contract, {}, **many)
    assert (reply.status_code, reply.json()["error"]["code"]) == (431, "HEADERS_TOO_LARGE")
    assert session.execute(contract, {}, X_Filler="x" * 9000).status_code in (400, 431)
    assert session.execute(contract, {"text": "x"}, X_Filler="x" * 4000).status_code == 402


def test_contract_signed_by_one_party_buys_nothing(session: HireSession) -> None:
    """A draft with only the worker's signature is known but cannot be executed."""
    drafted = session.http.post(f"{session.url}/contracts", json=session.draft("text")).json()
    reply = session.execute(drafted["contract_id"], {"text": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "CONTRACT_NOT_SIGNED")


@pytest.mark.parametrize(
    "path",
    ["//manifest", "/tasks//x", "//execute", "///", "/v0//executions", "//v0/executions", "//evil.example/x"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_path_with_an_empty_segment_is_unknown(session: HireSession, path: str, method: str) -> None:
    """404 in the door's error format, and no redirect built from the Host header."""
    link = http.client.HTTPConnection("127.0.0.1", session.local.port, timeout=15)
    try:
        link.request(
            method, path, body=b"{}", headers={"Host": "evil.example", "Content-Type": "application/json"}
        )
        answer = link.getresponse()
        body = json.loads(answer.read())
    finally:
        link.close()
    assert (answer.status, answer.headers["Location"]) == (404, None)
    assert answer.headers["Content-Type"] == "application/json"
    if "v0" in path:
        assert (body["code"], set(body)) == ("NOT_FOUND", {"error", "code", "details"})
    else:
        fits(body, {"status": "failed", "contract_id": None, "error": dict})
        assert body["error"]["code"] == "NOT_FOUND"
