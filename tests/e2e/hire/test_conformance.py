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

from tests.e2e.hire.exchange import FEE_WALLET, Shop, decoded, encoded
from tests.e2e.tree import ROOT
from tests.waiting import eventually
from worker.contracts.canonical import contract_hash
from worker.contracts.signatures import recover_digest, sign_text
from worker.payments.typed_data import receipt_digest

SCHEMAS = ROOT / "contracts" / "schema"


def validator(name: str) -> Draft202012Validator:
    found = [path for path in SCHEMAS.rglob("*.json") if name in path.name]
    assert len(found) == 1, found
    return Draft202012Validator(json.loads(found[0].read_text()))


def code(reply: requests.Response) -> str:
    body = reply.json()
    return str(body["error"]["code"] if isinstance(body["error"], dict) else body["code"])


def test_1_the_manifest_fits_its_schema(shop: Shop) -> None:
    """The manifest is valid under the published schema, at both of its addresses."""
    document = shop.http.get(f"{shop.url}/manifest").json()
    validator("manifest").validate(document)
    assert document == shop.http.get(f"{shop.url}/.well-known/hire-manifest.json").json()
    assert document["endpoint"] == {"url": shop.url, "protocol": "HIRE/1.0", "auth": "x402"}


def test_2_contracts_hash_as_the_vectors_say(shop: Shop) -> None:
    """The worker's hash is that of the canonical form: key order and 1.0 for 1 do not matter."""
    draft = shop.draft("text")
    draft["task"]["description"] = "日本語 & émojis 🎨"
    draft["terms"]["platform_fee"]["percentage"] = 1.0
    signed = shop.http.post(f"{shop.url}/contracts", json=draft).json()
    turned = json.loads(json.dumps(signed, sort_keys=True))
    turned["terms"]["platform_fee"]["percentage"] = 1
    assert signed["hash"] == contract_hash(turned)
    validator("contract").validate(signed | {"signatures": {**signed["signatures"], "seeker": "0x"}})


def test_3_tampering_is_noticed(shop: Shop) -> None:
    """A changed field, swapped signatures or a lone one register nothing."""
    signed = shop.http.post(f"{shop.url}/contracts", json=shop.draft("text")).json()
    signed["signatures"]["seeker"] = sign_text(signed["hash"], shop.key)

    def put(**changes: Any) -> requests.Response:
        document = copy.deepcopy(signed)
        for path, value in changes.items():
            *parents, last = path.split("__")
            target = document
            for name in parents:
                target = target[name]
            target[last] = value
        return shop.http.put(f"{shop.url}/contracts", json=document)

    assert code(put(terms__price={"amount": "0.001", "currency": "USDC", "network": "base"})) == (
        "CONTRACT_HASH_MISMATCH"
    )
    both = signed["signatures"]
    swapped = {**both, "worker": both["seeker"], "seeker": both["worker"]}
    assert put(signatures=swapped).status_code in (401, 403, 422)
    assert put(signatures={name: both[name] for name in ("worker", "timestamp")}).status_code in (400, 422)
    assert put().status_code == 200 and put().json()["state"] == "SIGNED"


def test_4_who_may_execute(shop: Shop) -> None:
    """No id is 400, an unknown one 404, a half-signed one 403; for an expired one see 17."""
    body = {"text": "x"}
    assert shop.http.post(f"{shop.url}/execute", json=body).status_code == 400
    assert shop.execute("ctr_" + "0" * 32, body).status_code == 404
    half = shop.http.post(f"{shop.url}/contracts", json=shop.draft("text")).json()["contract_id"]
    assert shop.execute(half, body).status_code == 403


def test_5_the_402(shop: Shop) -> None:
    """Both header families say the same as the contract."""
    asked = shop.execute(shop.contract("text", price="1.25"), {"text": "x"})
    required = decoded(asked.headers["PAYMENT-REQUIRED"])
    accepted = required["accepts"][0]
    assert required["x402Version"] == 2 and required["resource"]["url"] == f"{shop.url}/execute"
    assert accepted["amount"] == str(int(Decimal("1.25") * 10**6))
    assert accepted["payTo"].lower() == asked.headers["X-Payment-Address"].lower()
    assert accepted["network"] == shop.facts["network"] and accepted["scheme"] == "exact"
    assert accepted["asset"].lower() == shop.facts["asset"].lower()
    assert asked.headers["X-Payment-Amount"] == "1.25"
    assert asked.json()["accepts"][0]["maxAmountRequired"] == accepted["amount"]


def test_6_the_official_client_pays(shop: Shop) -> None:
    """The stock x402 client meets the 402, pays it and gets the work, its contract id kept."""
    client = x402ClientSync()
    register_exact_evm_client(client, EthAccountSigner(Account.from_key(shop.key)))
    paying = x402_requests(client)
    contract = shop.contract("text")
    reply = paying.post(f"{shop.url}/execute", json={"text": "stock"}, headers={"X-Contract-ID": contract})
    assert reply.status_code == 200, reply.text
    assert (reply.json()["contract_id"], reply.json()["output"]["content"]) == (contract, "stock")
    paid = decoded(reply.headers["PAYMENT-RESPONSE"])
    receipt = reply.json()["receipt"]
    assert paid["transaction"].startswith("0x")
    assert receipt["payload"]["transaction"] == paid["transaction"]
    assert receipt["payload"]["payer"].lower() == shop.facts["seeker_wallet"].lower()
    digest = receipt_digest(receipt["payload"])
    signer = recover_digest(digest, bytes.fromhex(receipt["signature"].removeprefix("0x")))
    assert signer.lower() == shop.facts["worker_wallet"].lower()


@pytest.mark.parametrize(
    ("changes", "key"), [({"value": 9_999}, ""), ({"lasts": 5}, ""), ({}, "0x" + "77" * 32)]
)
def test_7_a_payment_that_is_not_the_one(shop: Shop, changes: dict[str, Any], key: str) -> None:
    """A wrong amount, window or payer is answered 402 and no work is begun."""
    contract = shop.contract("text")
    asked = shop.execute(contract, {"text": "x"})
    reply = shop.execute(contract, {"text": "x"}, payment=shop.sign(asked, key=key, **changes))
    assert reply.status_code == 402
    assert decoded(reply.headers["PAYMENT-RESPONSE"])["success"] is False
    view = shop.http.get(f"{shop.url}/contracts", headers={"X-Contract-ID": contract}).json()
    assert view["state"] == "SIGNED"


def test_7_a_payment_for_another_contract_or_network(shop: Shop) -> None:
    """A payment that bought something buys nothing else, and another network is not ours."""
    first, second = shop.contract("text"), shop.contract("text")
    payment = shop.sign(shop.execute(first, {"text": "x"}))
    assert shop.execute(first, {"text": "x"}, payment=payment).status_code == 200
    again = shop.execute(second, {"text": "x"}, payment=payment)
    assert (again.status_code, code(again)) == (409, "PAYMENT_USED")
    asked = shop.execute(second, {"text": "x"})
    foreign = decoded(shop.sign(asked))
    foreign["accepted"]["network"] = "eip155:1"
    assert shop.execute(second, {"text": "x"}, payment=encoded(foreign)).status_code == 402


def test_8_invalid_input(shop: Shop) -> None:
    """Input that breaks the schema is refused with the field, what is expected and what came."""
    reply = shop.execute(shop.contract("score"), [1, 2])
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (422, "INVALID_INPUT")
    assert {"field", "expected", "received"} <= set(error["details"])
    picky = shop.buy(shop.contract("picky"), {"colors": ["red"]}).json()["error"]["details"]
    assert picky["field"] == "colors[0]"


def test_9_at_once_and_later(shop: Shop, tmp_path: Path) -> None:
    """Short work is answered at once; long work is pending, polled, and survives the death of its process."""
    assert shop.buy(shop.contract("text"), {"text": "x"}).status_code == 200
    gate = tmp_path / "gate"
    contract, task = shop.begin("gated", {"gate": str(gate)})
    shop.until(contract, task, lambda body: body["status"] == "partial")
    assert shop.local.program is not None
    tree = psutil.Process(shop.local.program.pid)
    [work] = [each for each in tree.children() if "work" in each.cmdline()]
    for child in work.children():
        os.kill(child.pid, signal.SIGKILL)
    gate.touch()
    assert shop.ended(contract, task)["metadata"]["attempts"] == 2
    assert shop.charges(task) == 1


def test_10_copies_are_one(shop: Shop) -> None:
    """Ten copies at once, with one payment, are one execution and one settlement."""
    contract = shop.contract("napping-inline")
    payment = shop.sign(shop.execute(contract, {"seconds": 0.3}))
    replies: list[requests.Response] = []

    def send() -> None:
        with requests.Session() as http:
            replies.append(shop.execute(contract, {"seconds": 0.3}, payment=payment, http=http))

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [task] = {reply.json()["task_id"] for reply in replies}
    assert shop.ended(contract, task)["status"] == "completed" and shop.charges(task) == 1


def test_11_retries(shop: Shop, tmp_path: Path) -> None:
    """A passing fault gives as many free tries as `retry_policy` says, and not one more."""
    given = {"gate": str(tmp_path / "tries"), "failures": 9}
    contract = shop.contract("shaky", sla={"retry_policy": "2 attempts"})
    statuses = [shop.buy(contract, given).json()["error"]["details"]["retryable"]]
    statuses += [shop.execute(contract, given).json()["error"]["details"]["retryable"] for _ in range(3)]
    assert statuses == [True, True, False, False]
    assert Path(given["gate"]).read_text() == "3"


def test_12_invalid_output_is_not_charged(shop: Shop) -> None:
    """Output that breaks the schema fails and moves no money."""
    before = shop.balance(shop.facts["seeker_wallet"])
    reply = shop.buy(shop.contract("liar"), {"lie": 1})
    assert (reply.status_code, code(reply)) == (500, "OUTPUT_SCHEMA_INVALID")
    assert shop.balance(shop.facts["seeker_wallet"]) == before


def test_13_every_output_type(shop: Shop) -> None:
    """Text, JSON, a file, several, and a stream."""
    found = {
        name: shop.done(name, given)[1]["output"]["type"]
        for name, given in (
            ("text", {"text": "x"}),
            ("score", {"score": 1}),
            ("image", {}),
            ("logos", {}),
        )
    }
    assert found == {"text": "text", "score": "json", "image": "file", "logos": "multiple"}
    _, body = shop.done("story", {}, terms={"settlement": "before_work"})
    assert body["output"]["type"] == "stream" and body["output"]["format"] == "sse"


def test_14_files_need_no_credentials(shop: Shop) -> None:
    """A deliverable's address is enough to read it, and its bytes have the announced checksum."""
    _, body = shop.done("logos", {})
    for each in body["deliverables"]:
        content = requests.get(each["url"], timeout=10).content
        assert each["checksum"] == "sha256:" + hashlib.sha256(content).hexdigest()


# 15 and 16: test_webhooks.py, test_refusals.py and test_views.py


def test_17_too_late_is_not_settled(shop: Shop, tmp_path: Path) -> None:
    """Work beyond its latency promise is stopped and moves no money; an expired contract buys nothing."""
    expired = shop.contract("text", deadline_in=600)
    contract = shop.contract("gated", sla={"max_latency_ms": 120_000})
    reply = shop.buy(contract, {"gate": str(tmp_path / "never")}, Prefer="respond-async")
    task = reply.json()["task_id"]
    shop.until(contract, task, lambda body: body["status"] == "partial")
    shop.move_clock(601)
    assert shop.ended(contract, task)["error"]["code"] == "SLA_TIMEOUT"
    assert shop.charges(task) == 0
    assert shop.execute(expired, {"text": "x"}).status_code == 410


def test_18_a_failed_settlement_is_paid_later(shop: Shop, tmp_path: Path) -> None:
    """When the payer's money is gone at settlement the result waits, sealed, for another payment."""
    key = "0x" + "5a" * 32
    wallet = Account.from_key(key).address
    gate = tmp_path / "gate"

    shop.give(10_000, wallet)
    contract = shop.contract("gated", key=key)
    given = {"gate": str(gate)}
    reply = shop.buy(contract, given, key=key, Prefer="respond-async")
    task = reply.json()["task_id"]
    ready = shop.until(contract, task, lambda body: body["status"] == "partial")["deliverables"][0]["url"]
    shop.give(10_000, shop.facts["seeker_wallet"], key=key)
    gate.touch()
    shop.until(contract, task, lambda body: body["phase"] == "payment_due")
    asked = shop.execute(contract, given)
    assert asked.status_code == 402
    assert requests.get(ready, timeout=10).status_code == 403
    shop.give(10_000, wallet)
    paid = shop.execute(contract, given, payment=shop.sign(asked, key=key))
    assert paid.status_code == 200 and paid.json()["metadata"]["attempts"] == 1
    assert requests.get(ready, timeout=10).content == b"the draft\n"
    assert shop.balance(wallet) == 0 and shop.charges(task) == 1


def test_19_fees_are_rounded_half_up_in_atomic_units(shop: Shop) -> None:
    """One per cent of 0.01005 USDC is 100.5 units: 101 are owed to the platform."""
    before = int(shop.store.hget(shop.keys.sums, "fees_due") or 0)  # type: ignore[arg-type]
    shop.done("text", {"text": "x"}, price="0.01005")
    owed = eventually(
        lambda: int(shop.store.hget(shop.keys.sums, "fees_due") or 0) - before,  # type: ignore[arg-type]
        10,
        "a fee",
    )
    assert owed == 101
    assert shop.balance(FEE_WALLET) == 0, "fees gather before they are paid"


@pytest.mark.parametrize("trigger", ["on_acceptance", "escrow", "milestone"])
def test_20_other_triggers_are_not_signed(shop: Shop, trigger: str) -> None:
    """What HIRE has no endpoints for is refused at signing, with what would be signed."""
    draft = shop.draft("text")
    draft["terms"]["payment_trigger"] = trigger
    reply = shop.http.post(f"{shop.url}/contracts", json=draft)
    assert (reply.status_code, code(reply)) == (422, "UNSUPPORTED_PAYMENT_TRIGGER")
    assert reply.json()["error"]["details"]["expected"] == "on_delivery"
