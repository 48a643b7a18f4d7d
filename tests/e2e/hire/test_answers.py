"""What a seeker is answered: the document's shapes, waiting, polling, repeating, cancelling, files."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e.hire.exchange import Shop, decoded
from tests.e2e.hire.hire_agents import BYTES, SVG

CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")

# The examples of the document: what each key holds.
COMPLETED = {"status": "completed", "contract_id": str, "deliverables": list, "metadata": dict}
PENDING = {"status": "pending", "task_id": str, "poll_url": str, "estimated_completion": TIME}
FAILED = {"status": "failed", "contract_id": str, "error": dict}


def fits(body: dict[str, Any], example: dict[str, Any]) -> None:
    """Every key of the example is there and holds what the example shows."""
    for name, wanted in example.items():
        assert name in body, f"{name} is missing: {body}"
        if isinstance(wanted, type):
            assert isinstance(body[name], wanted), name
        elif isinstance(wanted, re.Pattern):
            assert wanted.fullmatch(body[name]), body[name]
        else:
            assert body[name] == wanted, name


def test_the_402_of_the_document(shop: Shop) -> None:
    """An unpaid request is answered with the document's four headers, in units of people."""
    asked = shop.execute(shop.contract("text", price="5"), {"text": "x"})
    assert asked.status_code == 402
    assert asked.headers["X-Payment-Address"].lower() == shop.facts["worker_wallet"].lower()
    assert asked.headers["X-Payment-Amount"] == "5"
    assert asked.headers["X-Payment-Currency"] == "USDC"
    assert asked.headers["X-Payment-Network"] == "base"
    assert asked.headers["Cache-Control"] == "no-store"


def test_success_as_the_document_shows_it(shop: Shop) -> None:
    """The completed answer has the document's keys, and each deliverable a name, a URL and its checksum."""
    contract = shop.contract("logos")
    reply = shop.buy(contract, {})
    body = reply.json()
    assert reply.status_code == 200
    fits(body, COMPLETED | {"contract_id": contract})
    for each in body["deliverables"]:
        fits(each, {"name": str, "url": str, "checksum": CHECKSUM})
    fits(body["metadata"], {"execution_time_ms": int, "model_used": str, "attempts": 1, "queue_time_ms": int})
    assert decoded(reply.headers["PAYMENT-RESPONSE"])["success"] is True


def test_failure_as_the_document_shows_it(shop: Shop) -> None:
    """An agent that does not like its input fails with the document's example, word for word."""
    contract = shop.contract("picky")
    reply = shop.buy(contract, {"colors": ["red"]})
    body = reply.json()
    assert reply.status_code == 422
    fits(body, FAILED | {"contract_id": contract})
    error = body["error"]
    assert error["code"] == "INVALID_INPUT" and error["message"] == "Color format not recognized"
    fits(error["details"], {"field": "colors[0]", "expected": "hex color", "received": "red"})
    assert error["details"]["charged"] is False
    assert shop.charges(body["task_id"]) == 0
    # Another input is welcome on the same payment.
    again = shop.execute(contract, {"colors": ["#FF5733"]})
    assert (again.status_code, again.json()["output"]["content"]) == (200, "fine")
    assert shop.charges(body["task_id"]) == 1


def test_pending_as_the_document_shows_it(shop: Shop, tmp_path: Path) -> None:
    """A long task is answered at once with 202, where to poll, and when to come back."""
    gate = tmp_path / "gate"
    contract = shop.contract("gated")
    reply = shop.buy(contract, {"gate": str(gate)}, Prefer="respond-async")
    body = reply.json()
    assert reply.status_code == 202
    fits(body, PENDING | {"contract_id": contract, "poll_url": f"{shop.url}/tasks/{body['task_id']}"})
    assert reply.headers["Location"] == body["poll_url"]
    assert int(reply.headers["Retry-After"]) >= 1
    assert reply.headers["Preference-Applied"] == "respond-async"
    gate.touch()
    assert shop.ended(contract, body["task_id"])["status"] == "completed"


@pytest.mark.parametrize(
    ("capability", "given", "output"),
    [
        ("text", {"text": "Your code review: fine"}, {"type": "text", "content": "Your code review: fine"}),
        ("score", {"score": 8}, {"type": "json", "content": {"score": 8, "issues": []}}),
        ("image", {}, {"type": "file", "url": str, "mime": "image/png", "size": len(BYTES)}),
        ("logos", {}, {"type": "multiple", "items": list}),
        ("big", {}, {"type": "text", "content": "long " * 20_000}),
    ],
)
def test_output_types(shop: Shop, capability: str, given: Any, output: dict[str, Any]) -> None:
    """Every output type has the document's shape, and its bytes the checksum it was announced with."""
    _, body = shop.done(capability, given)
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


def test_a_model_is_named(shop: Shop) -> None:
    """`model_used` is what the author named, else the capability with its version."""
    assert shop.done("text", {"text": "x"})[1]["metadata"]["model_used"] == "scribe-1"
    assert re.fullmatch(r"score/[0-9a-f]{12}", shop.done("score", {"score": 1})[1]["metadata"]["model_used"])


# Waiting and polling


@pytest.mark.parametrize(
    ("wish", "applied"),
    [("wait=1", "wait=1"), ("respond-async, wait=1", "respond-async, wait=1"), ("WAIT=1;x=y", "wait=1")],
)
def test_prefer_wait(shop: Shop, wish: str, applied: str) -> None:
    """Somebody who wants to wait a second is answered 202 after a second, and told that it was heard."""
    contract = shop.contract("napping")
    reply = shop.buy(contract, {"seconds": 2.2}, Prefer=wish)
    assert reply.status_code == 202 and reply.headers["Preference-Applied"] == applied
    assert 0.9 < reply.elapsed.total_seconds() < 2.1
    shop.ended(contract, reply.json()["task_id"])


@pytest.mark.parametrize(
    "wish", ["wait=soon", "wait=-1", "wait=1e9", "handling=lenient", "wait=9999999999999"]
)
def test_an_unreadable_preference_is_no_preference(shop: Shop, wish: str) -> None:
    """What cannot be read is ignored, and nothing is said to have been applied."""
    reply = shop.buy(shop.contract("text"), {"text": "x"}, Prefer=wish)
    assert reply.status_code == 200 and "Preference-Applied" not in reply.headers


def test_polling(shop: Shop, tmp_path: Path) -> None:
    """A poll shows progress and where to go on; unchanged it is a 304, changed it is not."""
    gate = tmp_path / "gate"
    contract, task = shop.begin("gated", {"gate": str(gate)})
    shop.until(contract, task, lambda body: body.get("progress", {}).get("message") == "half")
    first = shop.poll(contract, task)
    assert first.headers["Retry-After"] and "Location" not in first.headers
    assert first.json()["progress"] == {"fraction": 0.5, "message": "half"}
    again = shop.poll(contract, task, If_None_Match=first.headers["ETag"])
    assert (again.status_code, again.content) == (304, b"")
    gate.touch()
    done = shop.ended(contract, task)
    last = shop.poll(contract, task, If_None_Match=first.headers["ETag"])
    assert last.status_code == 200 and last.headers["ETag"] != first.headers["ETag"]
    assert done["sequence"] > first.json()["sequence"]
    assert TIME.fullmatch(done["expires_at"])
    assert shop.poll(contract, task, If_None_Match=last.headers["ETag"]).status_code == 304


def test_a_foreign_task_looks_unknown(shop: Shop) -> None:
    """Without its contract, with another's, or with a wrong id, a task cannot be told from none."""
    contract, body = shop.done("text", {"text": "mine"})
    other = shop.contract("text")
    task = body["task_id"]
    seen = [
        shop.http.get(f"{shop.url}/tasks/{task}"),
        shop.poll(other, task),
        shop.poll(contract, "00000000-0000-7000-8000-000000000000"),
        shop.poll(contract, "nonsense"),
        shop.http.delete(f"{shop.url}/tasks/{task}", headers={"X-Contract-ID": other}),
        shop.http.get(f"{shop.url}/stream/{task}", headers={"X-Contract-ID": other}),
        shop.http.get(f"{shop.url}/stream/{task}?token=" + "0" * 32),
    ]
    assert {reply.status_code for reply in seen} == {404}
    assert {reply.json()["error"]["code"] for reply in seen} == {"TASK_NOT_FOUND"}
    assert len({json.dumps(reply.json()["error"]) for reply in seen}) == 1


# The same request again


def test_replay_is_byte_identical(shop: Shop) -> None:
    """A completed contract answers with the same bytes, whatever payment comes along, and charges once."""
    contract = shop.contract("text", deadline_in=3600)
    asked = shop.execute(contract, {"text": "once"})
    first = shop.execute(contract, {"text": "once"}, payment=shop.sign(asked))
    before = shop.balance(shop.facts["seeker_wallet"])
    plain = shop.execute(contract, {"text": "once"})
    paid = shop.execute(contract, {"text": "once"}, payment=shop.sign(asked))
    poll = shop.poll(contract, first.json()["task_id"])
    for reply in (plain, paid):
        assert reply.status_code == 200 and reply.headers["Idempotent-Replayed"] == "true"
        assert reply.content == first.content == poll.content
        assert reply.headers["PAYMENT-RESPONSE"] == first.headers["PAYMENT-RESPONSE"]
    assert "X-Payment-Status" not in plain.headers
    assert paid.headers["X-Payment-Status"] == "already_paid"
    assert shop.balance(shop.facts["seeker_wallet"]) == before
    assert shop.charges(first.json()["task_id"]) == 1


def test_duplicates_while_running(shop: Shop, tmp_path: Path) -> None:
    """A duplicate is told how it stands, another payment is not taken, another body is a 409."""
    gate = tmp_path / "gate"
    given = {"gate": str(gate), "b": 1}
    contract = shop.contract("gated")
    asked = shop.execute(contract, given)
    first = shop.execute(contract, given, payment=shop.sign(asked), Prefer="respond-async")
    twin = shop.execute(contract, dict(reversed(given.items())), Prefer="wait=0")
    assert twin.status_code == 202 and twin.json()["task_id"] == first.json()["task_id"]
    paid = shop.execute(contract, given, payment=shop.sign(asked), Prefer="respond-async")
    assert paid.status_code == 202 and paid.json()["payment"] in ("being_paid", "already_paid")
    other = shop.execute(contract, {"gate": "elsewhere"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    gate.touch()
    waited = shop.execute(contract, given, Prefer="wait=9")
    assert waited.status_code == 200
    shop.ended(contract, first.json()["task_id"])
    late = shop.execute(contract, {"gate": "elsewhere"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert shop.charges(first.json()["task_id"]) == 1


def test_many_at_once_are_one(shop: Shop) -> None:
    """Eight copies of one paid request at the same moment are one execution and one charge."""
    contract = shop.contract("text")
    payment = shop.sign(shop.execute(contract, {"text": "x"}))
    replies: list[requests.Response] = []

    def send() -> None:
        with requests.Session() as http:
            replies.append(shop.execute(contract, {"text": "x"}, payment=payment, http=http))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({reply.json()["task_id"] for reply in replies}) == 1
    assert {reply.status_code for reply in replies} <= {200, 202}
    assert shop.charges(replies[0].json()["task_id"]) == 1


@pytest.mark.parametrize(("policy", "free"), [("3 attempts", 3), (3, 3), (None, 0), ("often", 0)])
def test_free_retries(shop: Shop, tmp_path: Path, policy: Any, free: int) -> None:
    """After a passing fault there are as many free tries as the contract says, then the failure stays."""
    given = {"gate": str(tmp_path / "tries"), "failures": 99}
    contract = shop.contract("shaky", sla={} if policy is None else {"retry_policy": policy})
    reply = shop.buy(contract, given)
    for left in range(free, 0, -1):
        details = reply.json()["error"]["details"]
        assert (reply.status_code, details["retries_left"], details["retryable"]) == (503, left, True)
        assert reply.headers["Retry-After"]
        reply = shop.execute(contract, given)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["details"]["retryable"]) == (
        503,
        "TRANSIENT_FAILURE",
        False,
    )
    assert Path(given["gate"]).read_text() == str(free + 1)
    assert shop.execute(contract, given).json()["error"]["code"] == "TRANSIENT_FAILURE"
    assert shop.charges(reply.json()["task_id"]) == 0


def test_a_retry_that_succeeds_is_charged_once(shop: Shop, tmp_path: Path) -> None:
    """The payment of the first try buys the result of the second."""
    given = {"gate": str(tmp_path / "tries"), "failures": 1}
    contract = shop.contract("shaky", sla={"retry_policy": "1 attempt"})
    assert shop.buy(contract, given).status_code == 503
    assert shop.execute(contract, {"gate": "other", "failures": 1}).status_code == 409
    reply = shop.execute(contract, given)
    assert (reply.status_code, reply.json()["output"]["content"]) == (200, {"tries": 2})
    assert shop.charges(reply.json()["task_id"]) == 1


def test_output_that_breaks_a_schema(shop: Shop) -> None:
    """JSON that breaks the capability's promise or the contract's is a failure, and nobody pays for it."""
    asked: dict[str, Any] = {"output_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    for capability, given, task in (("liar", {"lie": 1}, {}), ("liar", {"truth": 1, "n": "x"}, asked)):
        contract = shop.contract(capability, task=task)
        reply = shop.buy(contract, given)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (500, "OUTPUT_SCHEMA_INVALID")
        assert error["details"]["refund_condition"] == "output_schema_invalid"
        assert error["details"]["charged"] is False
        assert shop.charges(reply.json()["task_id"]) == 0
    good = shop.buy(shop.contract("liar", task=asked), {"truth": 1, "n": 5})
    assert good.status_code == 200


def test_an_agents_own_failure(shop: Shop) -> None:
    """An agent that gives up is told of in its own words, and again for the same request."""
    contract = shop.contract("broken")
    reply = shop.buy(contract, {})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["message"]) == (500, "NO_IDEA", "nothing came to mind")
    assert error["details"]["mood"] == "bad"
    again = shop.execute(contract, {})
    assert again.content == reply.content and again.headers["Idempotent-Replayed"] == "true"


# Cancelling


def cancel(shop: Shop, contract: str, task: str) -> requests.Response:
    return shop.http.delete(f"{shop.url}/tasks/{task}", headers={"X-Contract-ID": contract})


def test_cancel_before_the_start(shop: Shop) -> None:
    """A task that waits in the queue is released at once and costs nothing."""
    busy = [shop.begin("napping", {"seconds": 1.5}) for _ in range(2)]
    contract, task = shop.begin("napping", {"seconds": 0})
    reply = cancel(shop, contract, task)
    body = reply.json()
    assert (reply.status_code, body["status"], body["error"]["code"]) == (200, "failed", "CANCELLED")
    assert shop.charges(task) == 0
    assert shop.execute(contract, {"seconds": 0}).json()["error"]["code"] == "CANCELLED"
    for each in busy:
        shop.ended(*each)


def test_cancel_while_running(shop: Shop, tmp_path: Path) -> None:
    """Work under way is stopped and not charged; a second cancel is a conflict."""
    contract, task = shop.begin("gated", {"gate": str(tmp_path / "never")})
    shop.until(contract, task, lambda body: body["status"] == "partial")
    assert cancel(shop, contract, task).json()["error"]["code"] == "CANCELLED"
    again = cancel(shop, contract, task)
    assert (again.status_code, again.json()["error"]["details"]["charged"]) == (409, False)
    assert shop.charges(task) == 0
    assert shop.until(contract, task, lambda body: True)["status"] == "failed"


def test_cancel_what_was_paid_before_the_work(shop: Shop, tmp_path: Path) -> None:
    """Who paid before the work and cancels it after its start has bought what was done: no refund."""
    contract, task = shop.begin(
        "gated-before", {"gate": str(tmp_path / "never")}, terms={"settlement": "before_work"}
    )
    shop.until(contract, task, lambda body: body["status"] == "partial")
    details = cancel(shop, contract, task).json()["error"]["details"]
    assert details["charged"] is True and "refund" not in details


def test_cancel_when_it_is_done(shop: Shop) -> None:
    """What is settled stays as it is, and the refusal says that it was paid for."""
    contract, body = shop.done("text", {"text": "x"})
    reply = cancel(shop, contract, body["task_id"])
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "CONFLICT")
    details = reply.json()["error"]["details"]
    assert details == {"charged": True, "advice": "GET this address to see what became of it."}
    assert shop.poll(contract, body["task_id"]).json() == body


# Files


def test_files(shop: Shop) -> None:
    """A file comes whole or in part, with headers that say what it is and forbid to run it."""
    _, body = shop.done("image", {})
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


def test_a_file_needs_its_own_token(shop: Shop) -> None:
    """Another file's token, a shortened one or another name's opens nothing."""
    _, body = shop.done("logos", {})
    first, second = (each["url"] for each in body["deliverables"][:2])
    parts = first.split("/")
    for token in (second.split("/")[-2], parts[-2][:-1], "0" * 32, "%00", "é"):
        reply = requests.get("/".join([*parts[:-2], token, parts[-1]]), timeout=10)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("which", ["9", "-1", "ready-1", "ready-99999", "nonsense", "ready-x"])
def test_a_file_that_is_none(shop: Shop, which: str) -> None:
    """A place where no file is has no answer, whatever it is called."""
    _, body = shop.done("image", {})
    parts = body["deliverables"][0]["url"].split("/")
    assert requests.get("/".join([*parts[:-3], which, *parts[-2:]]), timeout=10).status_code == 404


# What is refused before money


def test_what_cannot_be_read_is_refused(shop: Shop) -> None:
    """Each malformed request has its own status and code, costs nothing and shows no 402."""
    contract = shop.contract("text")
    url, named = f"{shop.url}/execute", {"X-Contract-ID": contract}
    json_type = {"Content-Type": "application/json"}
    deep = "[" * 65 + "]" * 65

    def sent(data: bytes, headers: dict[str, str]) -> tuple[int, str]:
        reply = shop.http.post(url, data=data, headers=headers)
        body = reply.json()
        assert body["status"] == "failed" and body["error"]["details"]["charged"] is False
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
    bad = shop.execute(contract, {"text": "x"}, payment="%%%")
    assert bad.status_code == 400 and "PAYMENT-REQUIRED" not in bad.headers


def test_a_body_of_no_type_is_json(shop: Shop) -> None:
    """An absent content type counts as JSON, and any JSON value is an input."""
    contract = shop.contract("text")
    request = requests.Request(
        "POST", f"{shop.url}/execute", data=b'{"text":"x"}', headers={"X-Contract-ID": contract}
    )
    prepared = request.prepare()
    prepared.headers.pop("Content-Type", None)
    assert shop.http.send(prepared).status_code == 402


def test_input_that_breaks_the_capabilitys_schema(shop: Shop) -> None:
    """Input that cannot be worked on is refused before money is mentioned; corrected, it is sold."""
    contract = shop.contract("score")
    reply = shop.execute(contract, {"points": 1})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "INVALID_INPUT")
    assert "PAYMENT-REQUIRED" not in reply.headers
    assert shop.execute(contract, {"score": 1}).status_code == 402


def test_headers_have_a_bound(shop: Shop) -> None:
    """Headers of more than 16 kB are refused, by us or by the server in front of us."""
    contract = shop.contract("text")
    many = {f"X-Filler-{number}": "x" * 4000 for number in range(5)}
    reply = shop.execute(contract, {}, **many)
    assert (reply.status_code, reply.json()["error"]["code"]) == (431, "HEADERS_TOO_LARGE")
    assert shop.execute(contract, {}, X_Filler="x" * 9000).status_code in (400, 431)
    assert shop.execute(contract, {"text": "x"}, X_Filler="x" * 4000).status_code == 402


def test_a_contract_of_one_hand_is_not_signed(shop: Shop) -> None:
    """A draft that only we signed is known but buys nothing."""
    drafted = shop.http.post(f"{shop.url}/contracts", json=shop.draft("text")).json()
    reply = shop.execute(drafted["contract_id"], {"text": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "CONTRACT_NOT_SIGNED")
