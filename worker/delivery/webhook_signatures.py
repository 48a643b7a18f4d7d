"""Webhook signatures per Standard Webhooks: always ed25519, plus HMAC if a secret is shared.

The signed content is `id.timestamp.body`, byte for byte as sent. Receivers verify `v1a` with the public
key from the manifest, so no secret needs to be exchanged.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from worker.core.errors import InvalidInput

# No full stop: it separates the signed parts.
_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")
_BASE64 = re.compile(r"([A-Za-z0-9+/]+)={0,2}")


def sign(
    message_id: str,
    timestamp: int,
    body: bytes,
    *,
    ed25519_key: Ed25519PrivateKey,
    secrets: Sequence[bytes] = (),
) -> str:
    """The `webhook-signature` value for one attempt; `timestamp` is its unix time in whole seconds.

    Several secrets (old and new during a rotation) give several signatures.
    """
    if not _ID.fullmatch(message_id):
        raise ValueError("a webhook id has letters, digits, _ and - only")
    if type(timestamp) is not int or timestamp < 0:
        raise ValueError("a webhook timestamp is a whole number of unix seconds")
    content = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    signatures = [f"v1a,{_text(ed25519_key.sign(content))}"]
    signatures += [f"v1,{_text(hmac.digest(secret, content, hashlib.sha256))}" for secret in secrets]
    return " ".join(signatures)


def parse_secret(text: str) -> bytes:
    """The 24 to 64 bytes of a `whsec_…` shared secret."""
    secret = _payload(text, "whsec_")
    if secret is None or not 24 <= len(secret) <= 64:
        raise InvalidInput(
            "the webhook secret cannot be used",
            code="WEBHOOK_SECRET_INVALID",
            field="secret",
            expected="whsec_ and the base64 of 24 to 64 random bytes",
        )
    return secret


def parse_private_key(text: str) -> Ed25519PrivateKey:
    """The key of a `whsk_…`: a 32-byte seed, or seed and public key in 64 bytes."""
    raw = _payload(text, "whsk_")
    if raw is not None and len(raw) in (32, 64):
        key = Ed25519PrivateKey.from_private_bytes(raw[:32])
        if raw[32:] in (b"", key.public_key().public_bytes_raw()):
            return key
    raise InvalidInput(
        "the webhook key cannot be used",
        code="WEBHOOK_KEY_INVALID",
        field="WEBHOOK_KEY",
        expected="whsk_ and the base64 of an ed25519 key (32 or 64 bytes)",
    )


def derive_private_key(worker_key: bytes) -> Ed25519PrivateKey:
    """The default key: deterministic for a worker key, and reveals nothing about it."""
    if len(worker_key) != 32:
        raise ValueError("a worker key has 32 bytes")
    seed = HKDF(SHA256(), 32, salt=None, info=b"hire-worker webhooks ed25519 v1").derive(worker_key)
    return Ed25519PrivateKey.from_private_bytes(seed)


def public_key_text(key: Ed25519PrivateKey) -> str:
    """The `whpk_…` that the manifest publishes."""
    return f"whpk_{_text(key.public_key().public_bytes_raw())}"


def _payload(text: str, prefix: str) -> bytes | None:
    found = _BASE64.fullmatch(text.removeprefix(prefix)) if text.startswith(prefix) else None
    if found is None:
        return None
    try:
        digits = found.group(1)
        return base64.b64decode(digits + "=" * (-len(digits) % 4), validate=True)
    except binascii.Error:
        return None


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
