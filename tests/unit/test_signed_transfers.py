"""Which transfers of a transaction an authorization moved, from logs as nodes give them."""

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
def test_only_the_transfer_right_after_its_nonce_counts(logs: Any, expected: Any) -> None:
    """A transfer counts for a nonce if it follows at once, by the same payer, in the same asset."""
    assert list(signed_transfers(logs, ASSET)) == expected


def test_bytes_and_letter_case_do_not_matter() -> None:
    """Logs with bytes and with checksummed addresses give the same as logs with lower-case text."""
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
