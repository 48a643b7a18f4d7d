"""A third party can verify a paid task's evidence offline; any change to it is detected."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.e2e.hire.hire_session import HireSession, hire_tree
from worker.core.canonical import parse
from worker.hiring.evidence import DELIVERY
from worker.hiring.evidence_check import EvidenceInvalid, check_evidence
from worker.seeker import Order, PurchaseStore, Seeker, SpendLimits, Wallet

SIGNING_KEY = "0x" + "5a" * 32
SIGNER = Account.from_key(SIGNING_KEY).address


@pytest.fixture(name="session", scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HireSession]:
    """A worker that signs its statements with a separate key."""
    with hire_tree(tmp_path_factory.mktemp("evidence"), SIGNING_KEY=SIGNING_KEY) as session:
        yield session


@pytest.fixture(name="bought", scope="module")
def _bought(session: HireSession) -> tuple[str, str, dict[str, Any]]:
    """A contract, its task and its evidence."""
    contract, body = session.done("logos", {"brief": "a logo"})
    return contract, body["task_id"], evidence_of(session, contract, body["links"]["evidence"])


def evidence_of(session: HireSession, contract: str, url: str) -> dict[str, Any]:
    reply = session.http.get(url, headers={"X-Contract-ID": contract}, timeout=30)
    assert reply.status_code == 200, reply.text
    assert "private" in reply.headers["Cache-Control"]
    found: dict[str, Any] = parse(reply.content)
    return found


def test_command_checks_the_file_without_the_worker(
    session: HireSession, bought: tuple[str, str, dict[str, Any]], tmp_path: Path
) -> None:
    """`worker evidence verify` proves terms, input, files and payment from the file alone."""
    contract, task, evidence = bought
    (tmp_path / "evidence.json").write_text(json.dumps(evidence))
    for each in session.poll(contract, task).json()["deliverables"]:
        (tmp_path / each["name"]).write_bytes(requests.get(each["url"], timeout=30).content)
    command = [sys.executable, "-m", "worker", "evidence", "verify", str(tmp_path / "evidence.json")]
    checks = ["--input", '{"brief": "a logo"}', "--files", str(tmp_path)]
    done = subprocess.run([*command, *checks], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert SIGNER in done.stdout and session.facts["worker_wallet"] in done.stdout
    other = subprocess.run(
        [*command, "--input", '{"brief": "b"}'], capture_output=True, text=True, timeout=60
    )
    assert other.returncode == 1 and "EVIDENCE_INVALID" in other.stderr


def test_statement_names_amount_outputs_and_transaction(
    session: HireSession, bought: tuple[str, str, dict[str, Any]]
) -> None:
    """The official typed-data encoder recovers the signing key; the statement names what was bought."""
    contract, task, evidence = bought
    statement = evidence["delivery"]["payload"]
    message = encode_typed_data(
        {"name": "hire delivery", "version": "1", "chainId": 1},
        {"Delivery": [{"name": name, "type": kind} for name, kind in DELIVERY.fields]},
        statement,
    )
    assert Account.recover_message(message, signature=evidence["delivery"]["signature"]) == SIGNER
    poll = session.poll(contract, task).json()
    assert statement["amount"] == "10000" and statement["execution"] == task
    assert statement["transaction"] == poll["receipt"]["payload"]["transaction"]
    assert [each["checksum"] for each in evidence["outputs"]] == [
        each["checksum"] for each in poll["deliverables"]
    ]
    assert statement["createdAt"] <= statement["startedAt"] <= statement["endedAt"]


def test_evidence_contains_no_credential(
    session: HireSession, bought: tuple[str, str, dict[str, Any]]
) -> None:
    """A third party with the file cannot read the result."""
    contract, task, evidence = bought
    assert contract not in json.dumps(evidence)
    for headers in ({}, {"X-Contract-ID": contract[:-1] + ("y" if contract[-1] == "x" else "x")}):
        url = f"{session.url}/tasks/{task}/evidence"
        assert session.http.get(url, headers=headers, timeout=30).status_code == 404


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from leaves(each, (*path, at))
    else:
        yield path


def test_any_change_is_found(bought: tuple[str, str, dict[str, Any]]) -> None:
    """Every value in the file is covered by a signature or a digest."""
    evidence = bought[2]
    assert check_evidence(evidence)
    for path in leaves(evidence):
        if path[-1] == "format":  # the only supported format
            continue
        changed = copy.deepcopy(evidence)
        place = changed
        for step in path[:-1]:
            place = place[step]
        value = place[path[-1]]
        place[path[-1]] = value + 1 if isinstance(value, int | float) else flipped(str(value))
        with pytest.raises(EvidenceInvalid):
            check_evidence(changed)
            pytest.fail(f"nobody noticed another {path}")


def flipped(text: str) -> str:
    """The text with its middle character replaced by another of the same kind."""
    at = len(text) // 2
    return text[:at] + ("1" if text[at : at + 1] != "1" else "2") + text[at + 1 :]


def test_unfinished_and_unpaid_work_has_no_evidence(session: HireSession) -> None:
    """A running task exposes no digests of its output; a failure has evidence without a payment."""
    contract, task = session.begin("gated", {"gate": "/nowhere"})
    reply = session.http.get(
        f"{session.url}/tasks/{task}/evidence", headers={"X-Contract-ID": contract}, timeout=30
    )
    assert reply.status_code == 409 and reply.json()["error"]["code"] == "EVIDENCE_NOT_READY"
    ended = session.http.delete(
        f"{session.url}/tasks/{task}", headers={"X-Contract-ID": contract}, timeout=30
    )
    assert ended.status_code == 200, ended.text
    evidence = evidence_of(session, contract, ended.json()["links"]["evidence"])
    assert check_evidence(evidence)
    assert (evidence["delivery"]["payload"]["outcome"], evidence["outputs"]) == ("cancelled", [])
    assert "payment" not in evidence


def test_streamed_text_has_its_digest_too(session: HireSession) -> None:
    """Text that was only streamed is listed with its size and checksum."""
    contract, body = session.done("story", {}, terms={"settlement": "before_work"})
    outputs = evidence_of(session, contract, body["links"]["evidence"])["outputs"]
    text = "".join(f"line {number}\n" for number in range(6)).encode()
    checksum = f"sha256:{hashlib.sha256(text).hexdigest()}"
    assert [(each["name"], each["size"], each["checksum"]) for each in outputs] == [
        ("output.txt", len(text), checksum)
    ]


def test_seeker_believes_the_key_that_the_did_document_names(session: HireSession, tmp_path: Path) -> None:
    """A receipt by a separate key is proven by /.well-known/did.json at the worker's address."""
    seeker = Seeker(
        Wallet(session.key), PurchaseStore(tmp_path / "purchases"), limits=SpendLimits(plain_http=True)
    )
    result = seeker.hire(session.url, Order("score"), {"score": 3})
    assert result.doubt is None, result.doubt
    assert result.receipt is not None
