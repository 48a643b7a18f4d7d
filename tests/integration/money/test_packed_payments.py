"""Settled payments are kept in short form where no older release can use the store, and in full elsewhere."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.paid_door import PaidDoor
from tests.fakes.paid_worker import PaidWorker
from tests.integration.money.test_kept_answers import completed
from worker.hiring.evidence_check import check_evidence
from worker.parts import Parts
from worker.store.data_version import DATA, PACKED


def kept(parts: Parts, id: str) -> list[str]:
    values: Any = parts.client.hmget(parts.keys.money(id), "1 payload", "1 requirements", "1 response")
    return [value.decode() for value in values]


def test_packed_payment_is_shown_as_it_was(paid_worker: PaidWorker) -> None:
    """The facilitator's copy, the PAYMENT-RESPONSE and the evidence, by this process and by another one."""
    hired, parts = paid_worker.seeker().hire(), paid_worker.parts
    first = hired.pay()
    id = first.json["task_id"]
    assert all(text.startswith("\x01") for text in kept(parts, id))
    [call] = paid_worker.calls("settle", hired.seeker.wallet)
    sent = [json.loads(text) for text in parts.ledger.payload(id, 1)]
    assert sent == [call["body"]["paymentPayload"], call["body"]["paymentRequirements"]]
    money = parts.ledger.money(id)
    assert money is not None and json.loads(money.payments[0].response) == first.payment_response
    for again in (hired.execute(), hired.poll(id)):
        assert again.header("PAYMENT-RESPONSE") == first.header("PAYMENT-RESPONSE")
    evidence = hired.seeker.door("GET", f"/tasks/{id}/evidence", None, {"X-Contract-ID": hired.id}).json
    assert any("receipt is signed" in line for line in check_evidence(evidence))
    assert any("the payer authorized 10000 atomic units" in line for line in check_evidence(evidence))


def test_older_release_finds_payments_in_full(paid_door: PaidDoor) -> None:
    """In a store that it may use, whatever this release writes beside it."""
    parts = paid_door.parts
    parts.client.set(parts.keys.data_version, f"{DATA} {PACKED - 1}")
    _, id = completed(paid_door)
    assert all(json.loads(text) for text in kept(parts, id))


def test_payment_settles_packed_where_no_older_release_is_left(paid_door: PaidDoor) -> None:
    """Its outcome is then the same."""
    parts = paid_door.parts
    parts.client.set(parts.keys.data_version, f"{DATA} {PACKED}")
    deal, id = completed(paid_door)
    assert all(text.startswith("\x01") for text in kept(parts, id))
    assert deal.execute({"do": "ok"}).final and paid_door.parts.ledger.sums()["settled"] == 10_000
