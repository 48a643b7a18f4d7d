"""Matching transfers to authorizations in a transaction's logs, as nodes return them."""

from __future__ import annotations

from typing import Any

import pytest

from worker.payments.chain import AUTHORIZATION_USED, TRANSFER, signed_transfers

ASSET, OTHER = "0x" + "aa" * 20, "0x" + "bb" * 20
PAYER, PAYEE, STRANGER = ("0x" + each * 20 for each in ("11", "22", "33"))
NONCE = "0x" + "0c" * 32


def word(address: str) -> str:
    return "0x" + "00" * 12 + address[2:]


def used(index: int, payer: str = PAYER, asset: str = ASSET) -> dict[str, Any]:
    topics = [AUTHORIZATION_USED, word(payer), NONCE]
    return {"address": asset, "topics": topics, "data": "0x", "logIndex": index}


def moved(index: int, payer: str = PAYER, asset: str = ASSET, amount: int = 7) -> dict[str, Any]:
    topics = [TRANSFER, word(payer), word(PAYEE)]
    return {"address": asset, "topics": topics, "data": f"0x{amount:064x}", "logIndex": index}


PAID = (PAYER, NONCE, PAYEE, 7)


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        ([used(3), moved(4)], [(4, PAID)]),
        ([moved(0), used(1), moved(2)], [(2, PAID)]),
        ([used(0), moved(1), moved(2)], [(1, PAID)]),
        ([used(0), moved(1), used(2), moved(3)], [(1, PAID), (3, PAID)]),
        ([moved(0), used(1)], []),
        ([used(0)], []),
        ([moved(0)], []),
        ([used(0), moved(1, payer=STRANGER)], []),
        ([used(0, payer=STRANGER), moved(1)], []),
        ([used(0), moved(1, asset=OTHER), moved(2)], []),
        ([used(0, asset=OTHER), moved(1)], []),
        ([used(0), moved(1, asset=OTHER)], []),
        ([used(0, asset=OTHER), moved(1, asset=OTHER)], []),
        ([used(0), moved(1) | {"topics": [TRANSFER]}], []),
        ([used(0), {"address": ASSET, "topics": [], "data": "0x", "logIndex": 1}, moved(2)], []),
    ],
)
def test_transfer_must_follow_its_authorization_event(logs: Any, expected: Any) -> None:
    """A transfer belongs to a nonce if it follows directly, by the same payer, in the same asset."""
    assert list(signed_transfers(logs, ASSET)) == expected


def test_bytes_and_case_do_not_matter() -> None:
    """Logs with bytes or checksummed addresses give the same result as lower-case text."""
    raw = [
        each
        | {
            "address": each["address"].upper().replace("0X", "0x"),
            "topics": [bytes.fromhex(topic[2:]) for topic in each["topics"]],
            "data": bytes.fromhex(each["data"][2:]),
        }
        for each in (used(0), moved(1))
    ]
    assert list(signed_transfers(raw, ASSET.upper().replace("0X", "0x"))) == [(1, PAID)]
