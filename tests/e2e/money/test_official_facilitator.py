"""Hires, refunds and platform fees settled by the official Python facilitator on the local chain.

Its web3 signer accepts only checksummed addresses, and reserves a nonce before it validates them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.seeker import FEE_WALLET, Hired, decoded, encoded
from tests.fakes.worker_processes import WorkerProcesses
from tests.waiting import eventually
from worker.contracts.signatures import sign_text
from worker.payments.leg import LegKey, LegKind, LegState

PRICE, FEE = 10_000, 100


@pytest.fixture(name="official", scope="module")
def _official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcesses]:
    processes = WorkerProcesses(
        tmp_path_factory.mktemp("official"), official_facilitator=True, FEE_THRESHOLD="0.0001"
    )
    try:
        yield processes.open()
        processes.check_books()
    finally:
        processes.close()


def hire_in_lower_case(processes: WorkerProcesses) -> Hired:
    """A contract with wallets in lower case, without a checksum, as HIRE allows."""
    seeker = processes.seeker()
    draft = seeker.draft()
    for party in draft["parties"].values():
        party["wallet"] = party["wallet"].lower()
    signed = processes.door("POST", "/contracts", draft)
    assert signed.status == 201, signed.content
    document = signed.json
    document["signatures"]["seeker"] = sign_text(document["hash"], seeker.key)
    assert processes.door("PUT", "/contracts", document).status == 200
    assert document["parties"]["worker"]["wallet"] == processes.wallet.lower()
    return Hired(seeker, document)


def in_lower_case(header: str) -> str:
    """The same payment with all addresses in lower case: the signed digest is the same."""
    payment: Any = decoded(header)
    for part, names in (
        (payment["accepted"], ("asset", "payTo")),
        (payment["payload"]["authorization"], ("from", "to")),
    ):
        for name in names:
            part[name] = part[name].lower()
    return encoded(payment)


def test_hire_refund_and_fee_settle(official: WorkerProcesses) -> None:
    """A hire with lower-case wallets is paid, its fee reaches the platform and its refund the seeker."""
    hired = hire_in_lower_case(official)
    fees, held = official.dollars(FEE_WALLET), official.dollars(hired.seeker.wallet)
    offer = hired.offer()
    assert offer["accepts"][0]["payTo"] == official.wallet
    done = hired.execute(None, in_lower_case(hired.sign(offer)))
    assert (done.status, done.json["status"]) == (200, "completed"), done.content
    assert official.dollars(hired.seeker.wallet) == held - PRICE
    id = str(official.execution_of(hired.id))
    assert official.parts.leg_books.owe(id, 1, None, "quality_rejected")[0] == "due"
    eventually(lambda: official.dollars(hired.seeker.wallet) == held, 60, "the refund")
    eventually(lambda: official.dollars(FEE_WALLET) == fees + FEE, 60, "the platform fee")
    eventually(lambda: not official.parts.leg_books.open(), 30, "legs that are known to be settled")
    leg = official.parts.leg_books.get(LegKey(LegKind.REFUND, id, 1))
    assert leg is not None and (leg.state, leg.how) == (LegState.SETTLED, "facilitator")


def test_consecutive_hires_leave_no_nonce_gap(official: WorkerProcesses) -> None:
    """Our calls leave no gap in the facilitator's nonces: all later transactions settle too."""
    for _ in range(3):
        hired = hire_in_lower_case(official)
        done = hired.execute(None, in_lower_case(hired.sign()))
        assert (done.status, done.json["status"]) == (200, "completed"), done.content
        response = json.loads(base64.b64decode(str(done.header("PAYMENT-RESPONSE"))))
        assert response["success"] and response["payer"] == hired.seeker.wallet
