"""The seeker's webhook receiver accepts only calls signed with the manifest's key."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import urllib3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.delivery.webhook_signatures import public_key_text, sign
from worker.seeker.listener import MOST_BODY, Listener, proven

KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
OTHER = Ed25519PrivateKey.from_private_bytes(b"\x08" * 32)
PUBLIC = public_key_text(KEY)
NOW = 1_700_000_000
BODY = b'{"event":"task_completed","contract_id":"c"}'


def headers(
    key: Ed25519PrivateKey = KEY, at: int = NOW, body: bytes = BODY, **changes: str
) -> dict[str, str]:
    signed_headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(at),
        "webhook-signature": sign("msg_1", at, body, ed25519_key=key, secrets=[b"s" * 32]),
    }
    return signed_headers | {name.replace("_", "-"): value for name, value in changes.items()}


def test_valid_webhook_signature_is_accepted() -> None:
    """A call signed by the worker passes, even beside an HMAC that we cannot check."""
    assert proven(headers(), BODY, PUBLIC, NOW)
    assert proven(headers(), BODY, PUBLIC, NOW + 299)


@pytest.mark.parametrize(
    ("signed_headers", "body", "key", "now"),
    [
        (headers(OTHER), BODY, PUBLIC, NOW),
        (headers(), BODY + b" ", PUBLIC, NOW),
        (headers(), BODY, PUBLIC, NOW + 301),
        (headers(), BODY, PUBLIC, NOW - 301),
        (headers(webhook_id="msg_2"), BODY, PUBLIC, NOW),
        (headers(webhook_id=""), BODY, PUBLIC, NOW),
        (headers(webhook_timestamp=str(NOW + 1)), BODY, PUBLIC, NOW),
        (headers(webhook_timestamp="soon"), BODY, PUBLIC, NOW),
        (headers(webhook_signature=""), BODY, PUBLIC, NOW),
        (headers(webhook_signature="v1a,!!!"), BODY, PUBLIC, NOW),
        (headers(webhook_signature=headers()["webhook-signature"].replace("v1a", "v2")), BODY, PUBLIC, NOW),
        (headers(), BODY, "", NOW),
        (headers(), BODY, "whpk_AAAA", NOW),
        ({}, BODY, PUBLIC, NOW),
    ],
)
def test_invalid_webhook_signature_is_refused(
    signed_headers: dict[str, str], body: bytes, key: str, now: int
) -> None:
    """Another key, body, id or time, an old call, a missing or broken signature, no key to check with."""
    assert not proven(signed_headers, body, key, now)


def post(url: str, body: bytes, http_headers: dict[str, str]) -> int:
    return int(urllib3.request("POST", url, body=body, headers=http_headers, retries=False).status)


def test_webhook_reaches_the_waiter_of_its_contract() -> None:
    """A valid call about another contract is ignored; an invalid one is refused and not reported."""
    now = int(time.time())
    mine, other = BODY, BODY.replace(b'"c"', b'"d"')
    with Listener(PUBLIC) as listener:
        assert post(listener.url, mine, headers(OTHER, now)) == 401
        assert post(listener.url.rpartition("/")[0] + "/guess", mine, headers(at=now)) == 404
        assert post(listener.url, b"{", headers(at=now, body=b"{")) == 400
        assert post(listener.url, other, headers(at=now, body=other)) == 204
        assert post(listener.url, mine, headers(at=now)) == 204
        found: Any = listener.wait("c", 5)
        assert found == json.loads(BODY)
        assert listener.wait("c", 0.05) is None


def test_oversized_body_is_not_read() -> None:
    """An oversized body is refused by its length before any of it is read."""
    with Listener(PUBLIC) as listener:
        answer = urllib3.request(
            "POST", listener.url, headers={"Content-Length": str(MOST_BODY + 1)}, body=b"x", retries=False
        )
        assert answer.status == 413
