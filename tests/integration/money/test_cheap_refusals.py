"""Refusals cost the web process little CPU time, for any request at any door."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.fakes.paid_worker import PaidWorker
from tests.fakes.seeker import Hired, signed_payment
from worker.app import create_app
from worker.core.canonical import MAX_VALUES
from worker.core.settings import Settings

# Seconds of CPU time for one refusal.
MOST = 0.030
MEGABYTE = 1 << 20


def filled(start: bytes, piece: bytes, end: bytes, size: int = MEGABYTE) -> bytes:
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def listed(piece: bytes, count: int) -> bytes:
    return b"[" + b",".join([piece] * count) + b"]"


BODIES = {
    "a megabyte of lists": filled(b"[", b"[],", b"[]]"),
    "a megabyte of objects": filled(b"[", b'{"a":{"b":{}}},', b"0]"),
    "a megabyte of numbers": filled(b"[", b"0.5,", b"0]"),
    "a megabyte of texts": filled(b"[", b'"",', b'""]'),
    "a megabyte of quotes": b'"' * MEGABYTE,
    "a megabyte of brackets": b"[" * MEGABYTE,
    "one text, all escapes": filled(b'"', b'\\"', b'"'),
    "one text, all control characters": filled(b'"', b"\\u0001", b'"'),
    "one long number": b"0." + b"1" * (MEGABYTE - 2),
    "as many lists as are parsed": listed(b"[]", MAX_VALUES // 2),
    "as many objects": listed(b'{"a":{"b":"c"}}', MAX_VALUES // 3),
    "as many numbers": listed(b"0.12345678901234567", MAX_VALUES),
    "as many keys": json.dumps({f"key {n} " + "k" * 30: n for n in range(MAX_VALUES)}).encode(),
    "a key twice in each": listed(b'{"a":0,"a":0}', MAX_VALUES // 3),
    "a kernel's": filled(b'{"execution_id":1,"attempt_id":2,"x":[', b"[],", b"[]]}"),
}
# Contracts have a smaller limit.
DOCUMENTS = {
    "requirements": b'{"task":{"requirements":' + listed(b'"x"', 5_000) + b"}}",
    "nested schemas": b'{"task":{"output_schema":{"allOf":' + listed(b'{"not":' * 50 + b"{}" + b"}" * 50, 70),
    "beyond its size": filled(b"[", b"[],", b"[]]"),
}


@pytest.fixture(name="client", scope="module")
def _client(running_paid_worker: PaidWorker) -> Iterator[FlaskClient]:
    """All doors of a worker, with rate limits that only the tests about them reach."""
    more = {"SWARM_KEYS": "a:" + "p" * 32, "LIMIT_EXECUTES": "1000", "LIMIT_CONTRACTS": "1000"}
    yield create_app(Settings.load({**running_paid_worker.environ, **more})).test_client()


@contextmanager
def untraced() -> Iterator[None]:
    """Turns off coverage tracing, which takes about as long as the code measured here."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def cheap(ask: Callable[[], TestResponse], status: int, code: str = "") -> None:
    """The response and its CPU time: the best of three, to exclude other work of this process."""
    costs = []
    for _ in range(3):
        with untraced():
            began = time.thread_time()
            answer = ask()
            costs.append(time.thread_time() - began)
        assert answer.status_code == status, answer.data[:300]
        assert not code or code in answer.text
    assert min(costs) <= MOST, costs


def posted(client: FlaskClient, path: str, body: bytes, method: str = "POST", **headers: str) -> TestResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.open(path, method=method, data=body, content_type="application/json", headers=named)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_unknown_contract_is_refused_cheaply(client: FlaskClient, body: bytes) -> None:
    """The contract is looked up before the body is parsed."""
    unknown = "ctr_" + secrets.token_hex(16)
    cheap(lambda: posted(client, "/execute", body, X_Contract_ID=unknown), 404, "CONTRACT_NOT_FOUND")


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_known_contract_is_refused_cheaply(paid_worker: PaidWorker, client: FlaskClient, body: bytes) -> None:
    """Any fault in the body, with or without a payment."""
    hired = paid_worker.seeker().hire()
    header = hired.sign()
    status = posted(client, "/execute", body, X_Contract_ID=hired.id).status_code
    assert status in (400, 402, 413, 422)
    cheap(lambda: posted(client, "/execute", body, X_Contract_ID=hired.id), status)
    if status != 402:  # this one could be bought
        paying = {"X_Contract_ID": hired.id, "PAYMENT_SIGNATURE": header}
        cheap(lambda: posted(client, "/execute", body, **paying), status)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_different_body_for_a_finished_contract_is_refused_cheaply(
    paid_worker: PaidWorker, client: FlaskClient, body: bytes
) -> None:
    """The comparison of canonical digests stays within the same bound."""
    hired = paid_worker.seeker().hire()
    assert hired.pay().status == 200
    status = posted(client, "/execute", body, X_Contract_ID=hired.id).status_code
    assert status in (400, 409, 413)
    cheap(lambda: posted(client, "/execute", body, X_Contract_ID=hired.id), status)


def test_used_up_budget_is_refused_cheaply(paid_worker: PaidWorker, client: FlaskClient) -> None:
    """The budget is checked before the body is read."""
    seeker = paid_worker.seeker()
    for _ in range(3):
        assert seeker.hire().pay({"do": "fail"}).status == 500
    id = seeker.hire().id
    for body in BODIES.values():
        cheap(lambda body=body: posted(client, "/execute", body, X_Contract_ID=id), 503, "UNPAID_WORK_LIMIT")  # type: ignore[misc]


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("body", [*BODIES.values(), *DOCUMENTS.values()], ids=[*BODIES, *DOCUMENTS])
def test_invalid_contract_is_refused_cheaply(client: FlaskClient, method: str, body: bytes) -> None:
    """Drafts and signed contracts have a lower bound."""
    status = posted(client, "/contracts", body, method).status_code
    assert status in (400, 413)
    cheap(lambda: posted(client, "/contracts", body, method), status)


@pytest.mark.parametrize("name", ["requirements", "extras", "schemas"])
def test_large_draft_is_refused_cheaply(paid_worker: PaidWorker, client: FlaskClient, name: str) -> None:
    """A draft that is well-formed until the last check."""
    schema = {"allOf": [json.loads('{"not":' * 50 + "{}" + "}" * 50)] * 30}
    large = {
        "requirements": {"requirements": ["x"] * 5_500},
        "extras": {f"extra {n}": n for n in range(5_500)},
        "schemas": {"input_schema": schema, "output_schema": {**schema, "$ref": "http://elsewhere.example/"}},
    }
    draft = paid_worker.seeker().draft(task=large[name])
    draft["terms"]["price"]["amount"] = "0.001"
    cheap(lambda: posted(client, "/contracts", json.dumps(draft).encode()), 422)


def test_rate_limited_request_is_refused_cheaply(running_paid_worker: PaidWorker) -> None:
    """The rate limit is checked first."""
    limits = {"LIMIT_EXECUTES": "1", "LIMIT_CONTRACTS": "1", "LIMIT_UNKNOWN": "1"}
    client = create_app(Settings.load({**running_paid_worker.environ, **limits})).test_client()
    body = BODIES["a megabyte of objects"]
    for method, path in (("POST", "/execute"), ("POST", "/contracts"), ("PUT", "/contracts")):
        posted(client, path, b"{}", method, X_Contract_ID="ctr_x")
        cheap(lambda: posted(client, path, body, method, X_Contract_ID="ctr_x"), 429)  # noqa: B023


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize(
    "path", ["/swarm/execute", "/swarm/verify", "/verify", "/v0/executions", "/v0/agents/intent"]
)
def test_missing_bearer_is_refused_cheaply(client: FlaskClient, path: str, body: bytes) -> None:
    """The key is checked before the body."""
    cheap(lambda: posted(client, path, body), 401)


def test_swarm_request_without_a_key_is_refused_cheaply(client: FlaskClient) -> None:
    """At the root URL, which the paid door shares."""
    cheap(lambda: posted(client, "/execute", BODIES["a kernel's"]), 401)


def test_reordered_keys_are_the_same_body(paid_worker: PaidWorker) -> None:
    """Byte equality is only a shortcut: an equal value gets the same response."""
    hired = paid_worker.seeker().hire()
    body = {"do": "ok", "n": 1.0}
    first = hired.pay(body)
    assert first.status == 200
    client = paid_worker.app.test_client()
    for text in (b'{"n":1,"do":"ok"}', b'{ "do" : "ok", "n": 1.00 }', b'{"do":"\\u006fk","n":1e0}'):
        response = posted(client, "/execute", text, X_Contract_ID=hired.id)
        assert response.status_code == 200 and response.json["task_id"] == first.json["task_id"]  # type: ignore[index]
    assert posted(client, "/execute", b'{"do":"ok","n":2}', X_Contract_ID=hired.id).status_code == 409


def test_corrected_input_replaces_the_stored_body_digest(paid_worker: PaidWorker) -> None:
    """Once a corrected input is accepted for the contract, the first input is a different body."""
    hired: Hired = paid_worker.seeker().hire()
    first, second = {"do": "invalid"}, {"do": "ok"}
    assert hired.pay(first).code == "INVALID_INPUT"
    done = hired.execute(second)
    assert done.status == 200
    assert hired.execute(first).code == "IDEMPOTENCY_CONFLICT"
    assert hired.execute(second).json["task_id"] == done.json["task_id"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_plain_purchase_is_refused_cheaply(paid_worker: PaidWorker, client: FlaskClient, body: bytes) -> None:
    """The plain door has the same bound: an unknown capability, an invalid body, and another's payment."""
    cheap(lambda: posted(client, "/buy/unknown", body), 404)
    header = paid_worker.seeker().hire().sign()
    status = posted(client, "/buy/echo", body).status_code
    assert status in (400, 402, 413, 422)
    if status != 402:  # this one could be bought
        cheap(lambda: posted(client, "/buy/echo", body), status)
    cheap(lambda: posted(client, "/buy/echo", body, PAYMENT_SIGNATURE=header), status)


def test_mismatched_payment_is_refused_cheaply(paid_worker: PaidWorker, client: FlaskClient) -> None:
    """A payment for another contract is refused as cheaply as a missing one."""
    hired = paid_worker.seeker().hire()
    header = signed_payment(hired.offer(), "0x" + secrets.token_hex(32), paid_worker.now())
    body = json.dumps({"do": "ok", "x": "y" * 900_000}).encode()
    cheap(lambda: posted(client, "/execute", body, X_Contract_ID=hired.id, PAYMENT_SIGNATURE=header), 402)
