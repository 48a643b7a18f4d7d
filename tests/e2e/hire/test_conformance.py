"""The protocol's conformance list, item by item, over real HTTP."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import signal
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from eth_account import Account
from jsonschema import Draft202012Validator
from x402 import x402ClientSync
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import register_exact_evm_client

from tests.e2e.hire.hire_session import FEE_WALLET, HireSession, decoded, encoded
from tests.e2e.tree import ROOT
from tests.waiting import eventually
from worker.contracts.signatures import recover_digest, sign_text
from worker.core.canonical import contract_hash
from worker.x402.typed_data import receipt_digest

SCHEMAS = ROOT / "contracts" / "schema"


def validator(name: str) -> Draft202012Validator:
    found = [path for path in SCHEMAS.rglob("*.json") if name in path.name]
    assert len(found) == 1, found
    return Draft202012Validator(json.loads(found[0].read_text()))


def code(reply: requests.Response) -> str:
    body = reply.json()
    return str(body["error"]["code"] if isinstance(body["error"], dict) else body["code"])


def test_1_manifest_matches_its_schema(session: HireSession) -> None:
    """The manifest is valid under the published schema, at both of its addresses."""
    document = session.http.get(f"{session.url}/manifest").json()
    validator("manifest").validate(document)
    assert document == session.http.get(f"{session.url}/.well-known/hire-manifest.json").json()
    assert document["endpoint"] == {"url": session.url, "protocol": "HIRE/1.0", "auth": "x402"}


def test_2_contract_hashes_match_the_vectors(session: HireSession) -> None:
    """The worker hashes the canonical form: key order and 1.0 instead of 1 make no difference."""
    draft = session.draft("text")
    draft["task"]["description"] = "日本語 & émojis 🎨"
    draft["terms"]["platform_fee"]["percentage"] = 1.0
    signed = session.http.post(f"{session.url}/contracts", json=draft).json()
    turned = json.loads(json.dumps(signed, sort_keys=True))
    turned["terms"]["platform_fee"]["percentage"] = 1
    assert signed["hash"] == contract_hash(turned)
    validator("contract").validate(signed | {"signatures": {**signed["signatures"], "seeker": "0x"}})


def test_3_tampered_contracts_are_refused(session: HireSession) -> None:
    """A changed field, swapped signatures or a single signature register nothing."""
    signed = session.http.post(f"{session.url}/contracts", json=session.draft("text")).json()
    signed["signatures"]["seeker"] = sign_text(signed["hash"], session.key)

    def put(**changes: Any) -> requests.Response:
        document = copy.deepcopy(signed)
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = document
            for name in parents:
                target = target[name]
            target[last] = value
        return session.http.put(f"{session.url}/contracts", json=document)

    assert code(put(terms__price={"amount": "0.001", "currency": "USDC", "network": "base"})) == (
        "CONTRACT_HASH_MISMATCH"
    )
    both = signed["signatures"]
    swapped = {**both, "worker": both["seeker"], "seeker": both["worker"]}
    assert put(signatures=swapped).status_code in (401, 403, 422)
    assert put(signatures={name: both[name] for name in ("worker", "timestamp")}).status_code in (400, 422)
    assert put().status_code == 200 and put().json()["state"] == "SIGNED"


def test_4_only_signed_contracts_may_execute(session: HireSession) -> None:
    """No id gets 400, an unknown one 404, a half-signed one 403; for an expired one see 17."""
    body = {"text": "x"}
    assert session.http.post(f"{session.url}/execute", json=body).status_code == 400
    assert session.execute("ctr_" + "0" * 32, body).status_code == 404
    half = session.http.post(f"{session.url}/contracts", json=session.draft("text")).json()["contract_id"]
    assert session.execute(half, body).status_code == 403


def test_5_402_headers_match_the_contract(session: HireSession) -> None:
    """Both header families agree with the contract."""
    asked = session.execute(session.contract("text", price="1.25"), {"text": "x"})
    required = decoded(asked.headers["PAYMENT-REQUIRED"])
    accepted = required["accepts"][0]
    assert required["x402Version"] == 2 and required["resource"]["url"] == f"{session.url}/execute"
    assert accepted["amount"] == str(int(Decimal("1.25") * 10**6))
    assert accepted["payTo"].lower() == asked.headers["X-Payment-Address"].lower()
    assert accepted["network"] == session.facts["network"] and accepted["scheme"] == "exact"
    assert accepted["asset"].lower() == session.facts["asset"].lower()
    assert asked.headers["X-Payment-Amount"] == "1.25"
    assert asked.json()["accepts"][0]["maxAmountRequired"] == accepted["amount"]


def test_6_official_client_pays(session: HireSession) -> None:
    """The stock x402 client gets the 402, pays it and receives the work; its contract id is preserved."""
    client = x402ClientSync()
    register_exact_evm_client(client, EthAccountSigner(Account.from_key(session.key)))
    paying = x402_requests(client)
    contract = session.contract("text")
    reply = paying.post(f"{session.url}/execute", json={"text": "stock"}, headers={"X-Contract-ID": contract})
    assert reply.status_code == 200, reply.text
    assert (reply.json()["contract_id"], reply.json()["output"]["content"]) == (contract, "stock")
    paid = decoded(reply.headers["PAYMENT-RESPONSE"])
    receipt = reply.json()["receipt"]
    assert paid["transaction"].startswith("0x")
    assert receipt["payload"]["transaction"] == paid["transaction"]
    assert receipt["payload"]["payer"].lower() == session.facts["seeker_wallet"].lower()
    digest = receipt_digest(receipt["payload"])
    signer = recover_digest(digest, bytes.fromhex(receipt["signature"].removeprefix("0x")))
    assert signer.lower() == session.facts["worker_wallet"].lower()


@pytest.mark.parametrize(
    ("changes", "key"), [({"value": 9_999}, ""), ({"lasts": 5}, ""), ({}, "0x" + "77" * 32)]
)
def test_7_mismatched_payment_is_refused(session: HireSession, changes: dict[str, Any], key: str) -> None:
    """A wrong amount, window or payer gets a 402 and starts no work."""
    contract = session.contract("text")
    asked = session.execute(contract, {"text": "x"})
    reply = session.execute(contract, {"text": "x"}, payment=session.sign(asked, key=key, **changes))
    assert reply.status_code == 402
    assert decoded(reply.headers["PAYMENT-RESPONSE"])["success"] is False
    view = session.http.get(f"{session.url}/contracts", headers={"X-Contract-ID": contract}).json()
    assert view["state"] == "SIGNED"


def test_7_payment_for_another_contract_or_network_is_refused(session: HireSession) -> None:
    """A used payment buys nothing else, and a payment on another network is refused."""
    first, second = session.contract("text"), session.contract("text")
    payment = session.sign(session.execute(first, {"text": "x"}))
    assert session.execute(first, {"text": "x"}, payment=payment).status_code == 200
    again = session.execute(second, {"text": "x"}, payment=payment)
    assert (again.status_code, code(again)) == (409, "PAYMENT_USED")
    asked = session.execute(second, {"text": "x"})
    foreign = decoded(session.sign(asked))
    foreign["accepted"]["network"] = "eip155:1"
    assert session.execute(second, {"text": "x"}, payment=encoded(foreign)).status_code == 402


def test_8_invalid_input_names_the_field(session: HireSession) -> None:
    """Input that violates the schema is refused with the field, the expected value and the given one."""
    reply = session.execute(session.contract("score"), [1, 2])
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (422, "INVALID_INPUT")
    assert {"field", "expected", "received"} <= set(error["details"])
    picky = session.buy(session.contract("picky"), {"colors": ["red"]}).json()["error"]["details"]
    assert picky["field"] == "colors[0]"


def test_9_short_work_answers_inline_and_long_work_is_polled(session: HireSession, tmp_path: Path) -> None:
    """Short work is answered at once; long work is pending, polled, and survives its process."""
    assert session.buy(session.contract("text"), {"text": "x"}).status_code == 200
    gate = tmp_path / "gate"
    contract, task = session.begin("gated", {"gate": str(gate)})
    session.until(contract, task, lambda body: body["status"] == "partial")
    assert session.local.program is not None
    tree = psutil.Process(session.local.program.pid)
    [work] = [each for each in tree.children() if "work" in each.cmdline()]
    for child in work.children():
        os.kill(child.pid, signal.SIGKILL)
    gate.touch()
    assert session.ended(contract, task)["metadata"]["attempts"] == 2
    assert session.charges(task) == 1


def test_10_concurrent_copies_are_one_settlement(session: HireSession) -> None:
    """Ten concurrent copies with one payment are one execution and one settlement."""
    contract = session.contract("napping-inline")
    payment = session.sign(session.execute(contract, {"seconds": 0.3}))
    replies: list[requests.Response] = []

    def send() -> None:
        with requests.Session() as http:
            replies.append(session.execute(contract, {"seconds": 0.3}, payment=payment, http=http))

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [task] = {reply.json()["task_id"] for reply in replies}
    assert session.ended(contract, task)["status"] == "completed" and session.charges(task) == 1


def test_11_free_retries_follow_the_retry_policy(session: HireSession, tmp_path: Path) -> None:
    """A transient failure gets exactly as many free retries as `retry_policy` allows."""
    input = {"gate": str(tmp_path / "tries"), "failures": 9}
    contract = session.contract("shaky", sla={"retry_policy": "2 attempts"})
    statuses = [session.buy(contract, input).json()["error"]["details"]["retryable"]]
    statuses += [session.execute(contract, input).json()["error"]["details"]["retryable"] for _ in range(3)]
    assert statuses == [True, True, False, False]
    assert Path(input["gate"]).read_text() == "3"


def test_12_invalid_output_is_not_charged(session: HireSession) -> None:
    """Output that violates the schema fails and moves no money."""
    before = session.balance(session.facts["seeker_wallet"])
    reply = session.buy(session.contract("liar"), {"lie": 1})
    assert (reply.status_code, code(reply)) == (500, "OUTPUT_SCHEMA_INVALID")
    assert session.balance(session.facts["seeker_wallet"]) == before


def test_13_every_output_type_is_delivered(session: HireSession) -> None:
    """Text, JSON, a file, several, and a stream."""
    found = {
        name: session.done(name, input)[1]["output"]["type"]
        for name, input in (
            ("text", {"text": "x"}),
            ("score", {"score": 1}),
            ("image", {}),
            ("logos", {}),
        )
    }
    assert found == {"text": "text", "score": "json", "image": "file", "logos": "multiple"}
    _, body = session.done("story", {}, terms={"settlement": "before_work"})
    assert body["output"]["type"] == "stream" and body["output"]["format"] == "sse"


def test_14_files_need_no_credentials(session: HireSession) -> None:
    """A deliverable's URL is enough to read it, and its bytes match the announced checksum."""
    _, body = session.done("logos", {})
    for each in body["deliverables"]:
        content = requests.get(each["url"], timeout=10).content
        assert each["checksum"] == "sha256:" + hashlib.sha256(content).hexdigest()


# 15 and 16: test_webhooks.py, test_refusals.py and test_views.py


def test_17_late_work_is_not_settled(session: HireSession, tmp_path: Path) -> None:
    """Work beyond its latency limit is stopped and not charged; an expired contract buys nothing."""
    expired = session.contract("text", deadline_in=600)
    contract = session.contract("gated", sla={"max_latency_ms": 120_000})
    reply = session.buy(contract, {"gate": str(tmp_path / "never")}, Prefer="respond-async")
    task = reply.json()["task_id"]
    session.until(contract, task, lambda body: body["status"] == "partial")
    session.move_clock(601)
    assert session.ended(contract, task)["error"]["code"] == "SLA_TIMEOUT"
    assert session.charges(task) == 0
    assert session.execute(expired, {"text": "x"}).status_code == 410


def test_18_failed_settlement_can_be_paid_later(session: HireSession, tmp_path: Path) -> None:
    """If the payer's balance is gone at settlement, the result stays sealed until another payment."""
    key = "0x" + "5a" * 32
    wallet = Account.from_key(key).address
    gate = tmp_path / "gate"

    session.give(10_000, wallet)
    contract = session.contract("gated", key=key)
    input = {"gate": str(gate)}
    reply = session.buy(contract, input, key=key, Prefer="respond-async")
    task = reply.json()["task_id"]
    ready = session.until(contract, task, lambda body: body["status"] == "partial")["deliverables"][0]["url"]
    session.give(10_000, session.facts["seeker_wallet"], key=key)
    gate.touch()
    session.until(contract, task, lambda body: body["phase"] == "payment_due")
    asked = session.execute(contract, input)
    assert asked.status_code == 402
    assert requests.get(ready, timeout=10).status_code == 403
    session.give(10_000, wallet)
    paid = session.execute(contract, input, payment=session.sign(asked, key=key))
    assert paid.status_code == 200 and paid.json()["metadata"]["attempts"] == 1
    assert requests.get(ready, timeout=10).content == b"the draft\n"
    assert session.balance(wallet) == 0 and session.charges(task) == 1


def test_19_fees_are_rounded_half_up_in_atomic_units(session: HireSession) -> None:
    """One per cent of 0.01005 USDC is 100.5 units: the platform is owed 101."""
    before = int(session.store.hget(session.keys.sums, "fees_due") or 0)  # type: ignore[arg-type]
    session.done("text", {"text": "x"}, price="0.01005")
    owed = eventually(
        lambda: int(session.store.hget(session.keys.sums, "fees_due") or 0) - before,  # type: ignore[arg-type]
        10,
        "a fee",
    )
    assert owed == 101
    assert session.balance(FEE_WALLET) == 0, "fees gather before they are paid"


@pytest.mark.parametrize("trigger", ["on_acceptance", "escrow", "milestone"])
def test_20_unsupported_payment_triggers_are_refused(session: HireSession, trigger: str) -> None:
    """Triggers without HIRE endpoints are refused at signing; the refusal names the supported one."""
    draft = session.draft("text")
    draft["terms"]["payment_trigger"] = trigger
    reply = session.http.post(f"{session.url}/contracts", json=draft)
    assert (reply.status_code, code(reply)) == (422, "UNSUPPORTED_PAYMENT_TRIGGER")
    assert reply.json()["error"]["details"]["expected"] == "on_delivery"
