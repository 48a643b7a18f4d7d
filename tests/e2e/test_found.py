"""The public validators find no errors in what a running worker publishes for catalogs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from x402.extensions.bazaar import validate_discovery_extension

from tests.e2e.hire.hire_session import HireSession, decoded, hire_tree
from tests.npm import installed
from tests.waiting import eventually
from worker.hiring.evidence_check import check_evidence
from worker.seeker import Purse, Wallet

SIGNING_KEY = "0x" + "5a" * 32
SIGNER = Account.from_key(SIGNING_KEY).address
HERE = Path(__file__).parent


@pytest.fixture(name="validators", scope="module")
def _validators() -> Path:
    # Ignore the package's optional peers; they are unrelated to validation.
    return installed(HERE / "validators", "node-validators", "--legacy-peer-deps")


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker with every descriptive setting that an operator can make."""
    settings = {
        "CONTACT_EMAIL": "shop@example.com",
        "GUIDANCE": "Send English.",
        "SIGNING_KEY": SIGNING_KEY,
        "WORKER_AGENTS": "found_agents,worker.shipped",
    }
    with hire_tree(tmp_path_factory.mktemp("found"), **settings) as session:
        yield session


def sold(session: HireSession) -> list[str]:
    paths = session.http.get(f"{session.url}/openapi.json", timeout=30).json()["paths"]
    return [path for path in paths if path.startswith("/buy/")]


def required(session: HireSession, path: str) -> dict[str, Any]:
    answer = session.http.post(session.url + path, timeout=30)
    assert answer.status_code == 402, answer.text
    found: dict[str, Any] = decoded(answer.headers["PAYMENT-REQUIRED"])
    return found


def judged(validators: Path, **documents: Any) -> dict[str, Any]:
    command = ["node", "check.mjs"]
    done = subprocess.run(
        command, input=json.dumps(documents), cwd=validators, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tool(validators: Path, *words: str) -> subprocess.CompletedProcess[str]:
    plain = {**os.environ, "NO_COLOR": "1"}  # in CI some draw colours into files too
    return subprocess.run(
        ["node", *words], cwd=validators, env=plain, capture_output=True, text=True, timeout=120
    )


def test_python_validator_accepts_every_402(session: HireSession) -> None:
    """Each capability's bazaar extension is valid for the official Python package."""
    paths = sold(session)
    assert len(paths) > 5
    for path in paths:
        checked = validate_discovery_extension(required(session, path)["extensions"]["bazaar"])
        assert checked.valid, (path, checked.errors)


def test_strict_validators_find_nothing(session: HireSession, validators: Path) -> None:
    """No error and no warning in strict mode; the offer is signed by the key in did.json."""
    did = session.http.get(f"{session.url}/.well-known/did.json", timeout=30).json()
    assert did["verificationMethod"][0]["blockchainAccountId"].endswith(f":{SIGNER}")
    for path in ("/buy/score", "/buy/logo-design", "/buy/explain-code"):
        document = required(session, path)
        verdict = judged(validators, required=document)
        assert (verdict["valid"], verdict["issues"], verdict["bazaar"]) == (True, [], {"valid": True}), path
        accepted = document["accepts"][0]
        offer = {"signer": SIGNER, "amount": accepted["amount"], "url": session.url + path}
        assert verdict["offers"] == [offer]


def test_discovery_lists_every_capability_without_a_warning(session: HireSession, validators: Path) -> None:
    """The discovery tool reads /openapi.json and finds exactly the paid routes, without warnings."""
    cli = "node_modules/@agentcash/discovery/bin/discovery.js"
    done = tool(validators, cli, "discover", session.url, "--json")
    found = json.loads(done.stdout)
    assert found["ok"] is True and found["warnings"] == []
    paid = {each["path"] for each in found["resources"] if each["authHint"] == "paid"}
    assert paid == set(sold(session))


def test_mppx_validates_the_worker(session: HireSession, validators: Path) -> None:
    """All checks of documents, paid endpoints and challenges pass.

    Its exit code only says whether an endpoint speaks MPP, and none here does.
    """
    done = tool(validators, "node_modules/mppx/dist/bin.js", "validate", session.url)
    shown = done.stdout + done.stderr
    assert "✗" not in shown and "⚠" not in shown and "! " not in shown, shown[-3000:]
    for check in ("llms.txt found and nonempty", "Valid OpenAPI structure", "Paid endpoints found"):
        assert f"✓ {check}" in shown
    assert shown.count("✓ x402 payment challenge") == len(sold(session))


def test_a_plain_purchase_leaves_proof(session: HireSession, validators: Path, tmp_path: Path) -> None:
    """Bought with a purse: the official verifier accepts the receipt and ours the evidence, offline."""
    url = f"{session.url}/buy/score"
    purse = Purse(Wallet(session.key), keep=tmp_path / "purse")
    result = purse.buy(url, {"score": 7}, key="one")
    assert result.body["output"]["content"] == {"score": 7}
    verdict = judged(validators, required=required(session, "/buy/score"), receipt=result.body["receipt"])
    assert verdict["receipts"] == [{"signer": SIGNER, "url": url}]
    again = purse.buy(url, {"score": 7}, key="one")
    assert again.body == result.body and purse.budget().spent == "0.01"
    token = result.body["task_token"]
    headers = {"Authorization": f"Bearer {token}"}
    evidence = session.http.get(result.body["links"]["evidence"], headers=headers, timeout=30)
    assert evidence.status_code == 200 and token not in evidence.text
    assert check_evidence(evidence.json())
    assert evidence.json()["delivery"]["payload"]["transaction"] == result.transaction


def test_a_purchase_shows_in_the_listing(session: HireSession, tmp_path: Path) -> None:
    """The facilitator lists the purchase; `worker listing` reports it and fails only on the local address."""
    Purse(Wallet(session.key), keep=tmp_path / "purse").buy(f"{session.url}/buy/score", {"score": 1})
    state = str(session.local.state)
    command = [sys.executable, "-m", "worker", "listing", "--check", "--state", state]

    def shown() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1, done.stderr  # catalogs reject 127.0.0.1
        return done.stdout

    eventually(lambda: "listed at" in shown(), 20, "the listing")
    lines = shown().splitlines()
    assert {line.split()[1] for line in lines if "FAILS" in line} == {"public_address:"}
    assert [line for line in lines if "last paid for at" in line and "listed at" in line]


def test_long_work_bought_with_a_purse_is_followed(session: HireSession, tmp_path: Path) -> None:
    """The token of a 202 polls the work until the files are ready."""
    purse = Purse(Wallet(session.key), keep=tmp_path / "purse")
    result = purse.buy(f"{session.url}/buy/logos", {})
    assert [each["name"] for each in result.deliverables][:2] == ["logo_v1.svg", "logo_v2.svg"]
    assert result.transaction
