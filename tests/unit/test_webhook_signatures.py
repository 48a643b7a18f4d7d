"""Webhook signatures, verified by the official library and by hand."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import time

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from standardwebhooks import Webhook, WebhookVerificationError

from worker.core.errors import InvalidInput
from worker.delivery.webhook_signatures import (
    derive_private_key,
    parse_private_key,
    parse_secret,
    public_key_text,
    sign,
)

SEED = bytes(range(32))
KEY = Ed25519PrivateKey.from_private_bytes(SEED)
SECRET = b"0123456789abcdef01234567"
BODY = '{"event":"task_completed","data":{"name":"Ünïcode 日本"}}'.encode()


def whsec(secret: bytes) -> str:
    return "whsec_" + base64.b64encode(secret).decode()


def headers(signature: str, timestamp: int, message_id: str = "msg_1") -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature,
    }


class TestSign:
    """The signature header of one attempt."""

    def test_standardwebhooks_library_accepts_signatures(self) -> None:
        """A receiver with the secret verifies with the stock library, even beside the v1a signature."""
        now = int(time.time())
        signature = sign("msg_1", now, BODY, ed25519_key=KEY, secrets=[SECRET])
        assert Webhook(whsec(SECRET)).verify(BODY, headers(signature, now)) == json.loads(BODY)

    @pytest.mark.parametrize("changed", ["body", "id", "timestamp", "secret"])
    def test_standardwebhooks_library_refuses_changes(self, changed: str) -> None:
        """The signature covers body, id, time and secret."""
        now = int(time.time())
        signature = sign("msg_1", now, BODY, ed25519_key=KEY, secrets=[SECRET])
        body = BODY + b" " if changed == "body" else BODY
        sent = headers(signature, now + (changed == "timestamp"), "msg_2" if changed == "id" else "msg_1")
        secret = os.urandom(24) if changed == "secret" else SECRET
        with pytest.raises(WebhookVerificationError):
            Webhook(whsec(secret)).verify(body, sent)

    def test_v1a_signature_is_always_present(self) -> None:
        """Without a secret the only signature is ed25519 over id, time and body, joined by full stops."""
        version, _, encoded = sign("msg_1", 1700000000, BODY, ed25519_key=KEY).partition(",")
        assert version == "v1a"
        public = Ed25519PublicKey.from_public_bytes(
            base64.b64decode(public_key_text(KEY).removeprefix("whpk_"), validate=True)
        )
        public.verify(base64.b64decode(encoded, validate=True), b"msg_1.1700000000." + BODY)
        with pytest.raises(InvalidSignature):
            public.verify(base64.b64decode(encoded), b"msg_1.1700000001." + BODY)

    def test_rotation_signs_with_both_secrets(self) -> None:
        """Each secret gives its own v1, separated by spaces, so that either receiver can verify."""
        old, new = os.urandom(24), os.urandom(64)
        now = int(time.time())
        signature = sign("msg_1", now, BODY, ed25519_key=KEY, secrets=[old, new])
        assert [part.partition(",")[0] for part in signature.split(" ")] == ["v1a", "v1", "v1"]
        for secret in (old, new):
            Webhook(whsec(secret)).verify(BODY, headers(signature, now))

    def test_hmac_matches_a_manual_calculation(self) -> None:
        """The v1 part is base64 of HMAC-SHA256 over the signed content."""
        expected = hmac.new(SECRET, b"msg_1.7." + BODY, hashlib.sha256).digest()
        assert sign("msg_1", 7, BODY, ed25519_key=KEY, secrets=[SECRET]).endswith(
            " v1," + base64.b64encode(expected).decode()
        )

    def test_bodies_are_signed_byte_for_byte(self) -> None:
        """A body that is not text, or looks like a format string, is signed unchanged."""
        body = b"\xff\x00 %d %s {0}"
        signature = base64.b64decode(sign("m", 1, body, ed25519_key=KEY).partition(",")[2])
        KEY.public_key().verify(signature, b"m.1." + body)

    @pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\n", "ü", "a,b", "x" * 256])
    def test_id_cannot_contain_separators(self, message_id: str) -> None:
        """An id with a full stop or anything but plain characters is refused."""
        with pytest.raises(ValueError, match="id"):
            sign(message_id, 1, BODY, ed25519_key=KEY)

    @pytest.mark.parametrize("timestamp", [-1, 1.5, True, "1"])
    def test_timestamp_is_whole_seconds(self, timestamp: object) -> None:
        """Fractions, negatives and texts are the caller's error."""
        with pytest.raises(ValueError, match="timestamp"):
            sign("m", timestamp, BODY, ed25519_key=KEY)  # type: ignore[arg-type]


class TestSecrets:
    """Shared secrets in the format that seekers use."""

    @pytest.mark.parametrize("length", [24, 25, 26, 32, 64])
    def test_secret_round_trips(self, length: int) -> None:
        """Secrets of 24 to 64 bytes are parsed, with or without padding."""
        secret = os.urandom(length)
        assert parse_secret(whsec(secret)) == secret
        assert parse_secret(whsec(secret).rstrip("=")) == secret

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "whsec_",
            whsec(b"x" * 23),
            whsec(b"x" * 65),
            whsec(SECRET).removeprefix("whsec_"),
            whsec(SECRET).replace("whsec_", "whsk_"),
            whsec(SECRET) + "\n",
            " " + whsec(SECRET),
            whsec(b"\xfb\xff\xfe" * 8).replace("+", "-").replace("/", "_"),
            "whsec_" + "A" * 33,
            "whsec_" + "A" * 31 + "é",
            "whsec_" + "=" * 40,
        ],
    )
    def test_invalid_secret_is_refused_without_echoing_it(self, text: str) -> None:
        """The refusal names field and format, and never shows the secret."""
        with pytest.raises(InvalidInput) as refusal:
            parse_secret(text)
        assert refusal.value.code == "WEBHOOK_SECRET_INVALID"
        assert refusal.value.details["field"] == "secret"
        assert "received" not in refusal.value.details
        payload = text.strip().removeprefix("whsec_")
        assert not payload or payload not in str(refusal.value) + repr(refusal.value.details)


class TestKeys:
    """The worker's webhook key."""

    def test_seed_and_key_pair_are_equivalent(self) -> None:
        """A key of 32 bytes and one with its public half are equivalent."""
        pair = SEED + KEY.public_key().public_bytes_raw()
        for raw in (SEED, pair):
            key = parse_private_key("whsk_" + base64.b64encode(raw).decode())
            assert public_key_text(key) == public_key_text(KEY)

    @pytest.mark.parametrize("raw", [b"", SEED[:31], SEED + b"x", SEED + b"\x00" * 32, SEED * 3], ids=len)
    def test_invalid_key_is_refused(self, raw: bytes) -> None:
        """A wrong length, or another key's public half, is refused without showing the key."""
        text = "whsk_" + base64.b64encode(raw).decode()
        with pytest.raises(InvalidInput) as refusal:
            parse_private_key(text)
        assert refusal.value.code == "WEBHOOK_KEY_INVALID"
        payload = text.removeprefix("whsk_")
        assert not payload or payload not in str(refusal.value) + repr(refusal.value.details)

    def test_public_key_format(self) -> None:
        """`whpk_` and the base64 of RFC 8032's public key for its first test seed."""
        seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
        public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
        assert public_key_text(Ed25519PrivateKey.from_private_bytes(seed)) == (
            "whpk_" + base64.b64encode(public).decode()
        )

    def test_default_key_is_stable_and_derived(self) -> None:
        """One worker key always gives the same webhook key, which differs from the worker key."""
        first, again = derive_private_key(SEED), derive_private_key(SEED)
        assert public_key_text(first) == public_key_text(again)
        assert first.private_bytes_raw() != SEED
        assert public_key_text(derive_private_key(bytes(32))) != public_key_text(first)
        # Receivers pin this key: the derivation must never change.
        assert public_key_text(first) == "whpk_frHhyIbVX+ux6U3ykOtzkTRKURCIwcJTl9eUxD/vJ24="

    def test_derivation_needs_a_full_key(self) -> None:
        """A worker key of another length is refused, not derived into a weaker key."""
        with pytest.raises(ValueError, match="32"):
            derive_private_key(b"short")
