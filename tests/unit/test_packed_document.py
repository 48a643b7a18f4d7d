"""Contracts' documents in their short stored form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.contracts.packed_document import pack_document, unpack_document

HASH = "sha256:" + "ef" * 32
WALLET = "0x189149B74f3A82B8Df02c9964dC46A07682E8a29"
SIGNATURE = "0x" + "a9" * 65
TERMS = {
    "price": {"amount": "0.01", "currency": "USDC", "network": "base"},
    "deadline": "2026-11-19T11:10:49Z",
    "payment_trigger": "on_delivery",
    "platform_fee": {"percentage": 1, "wallet": WALLET},
    "settlement": "before_work",
}
DOCUMENT: dict[str, Any] = {
    "version": "HIRE/1.0",
    "created_at": "2026-11-19T05:10:49Z",
    "parties": {
        "seeker": {"agent_id": "agent_seeker", "wallet": WALLET},
        "worker": {"agent_id": "agent_worker", "wallet": WALLET},
    },
    "task": {"description": "a test", "capability": "echo"},
    "terms": TERMS,
    "contract_id": "ctr_2viszsiq8mwlbx2ximuh95rx90",
    "sla": {"retry_policy": "2 attempts"},
    "signatures": {
        "worker": SIGNATURE,
        "timestamp": "2026-11-19T05:10:49Z",
        "scheme": "eip191",
        "canonicalization": "RFC8785",
        "seeker": SIGNATURE,
    },
    "hash": HASH,
}
DOCUMENTS: dict[str, Any] = {
    "ours": DOCUMENT,
    "turned": dict(reversed(DOCUMENT.items())),
    "in another language": DOCUMENT
    | {"task": {"description": "Grüße, \u2028 水 \x01\x0b\x1f", "capability": "echo"}},
    "a purchase": {"version": "x402/2", "terms": {"price": TERMS["price"]}},
    "nothing": {},
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
@pytest.mark.parametrize("escaped", [True, False])
def test_document_comes_back_byte_for_byte(document: Any, escaped: bool) -> None:
    """Its hash and both signatures are over these bytes' content."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=escaped)
    assert unpack_document(pack_document(text, HASH), HASH) == text
    assert unpack_document(text, HASH) == text


def test_stored_document_stays_readable() -> None:
    """A document that a store holds already: no character's word may ever change."""
    wallet, signature = WALLET[2:], SIGNATURE[2:]
    stored = (
        '\x01\x0b\x0c2026-11-19T05:10:49Z",\ragent_seeker\x0f'
        + wallet
        + '"},\x0eagent_worker\x0f'
        + wallet
        + '"}},\x10a test\x11echo"},\x120.01\x13\x142026-11-19T11:10:49Z\x15\x161\x17'
        + wallet
        + '"}\x1dbefore_work"},\x18ctr_2viszsiq8mwlbx2ximuh95rx90",\x1e2 attempts"},\x19'
        + signature
        + '",\x1a2026-11-19T05:10:49Z\x1b\x1c'
        + signature
        + '"},\x1f\x02"}'
    )
    assert json.loads(unpack_document(stored, HASH)) == DOCUMENT
    assert len(stored) < len(json.dumps(DOCUMENT)) * 0.6
