"""Authentication to a facilitator: a token per call, fixed headers, or none."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

TOKEN_LIFE_S = 120


class Auth(Protocol):
    """Headers for one call, given its method and full URL."""

    def headers(self, method: str, url: str) -> Mapping[str, str]: ...


class StaticAuth:
    """The same headers for every call; none by default."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        self._headers = dict(headers or {})

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        return self._headers


class CdpAuth:
    """Coinbase CDP: a JWT bound to one method and URL, signed with an Ed25519 or P-256 key."""

    def __init__(self, key_id: str, secret: str, now: Callable[[], float] = time.time) -> None:
        """Parse the key once; an unreadable key raises a ValueError that does not show it."""
        from cryptography.hazmat.primitives.asymmetric import ed25519

        self._key_id = key_id
        self._now = now
        self._key = _read_key(secret)
        is_ed25519 = isinstance(self._key, ed25519.Ed25519PrivateKey)
        self._algorithm = "EdDSA" if is_ed25519 else "ES256"

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        return {
            "Authorization": f"Bearer {self.token(method, url)}",
            "Correlation-Context": "sdk_language=python,source=x402,source_version=2.0.0",
        }

    def token(self, method: str, url: str) -> str:
        """Return a token valid for this method and URL only."""
        import jwt

        now = int(self._now())
        where = urlsplit(url)
        claims = {
            "sub": self._key_id,
            "iss": "cdp",
            "nbf": now,
            "exp": now + TOKEN_LIFE_S,
            "uris": [f"{method} {where.netloc}{where.path}"],
        }
        nonce = "".join(str(secrets.randbelow(10)) for _ in range(16))
        headers = {"kid": self._key_id, "nonce": nonce}
        return jwt.encode(claims, self._key, algorithm=self._algorithm, headers=headers)


def _read_key(secret: str) -> ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        if "-----BEGIN" in secret:
            # Single-line settings hold a PEM's line ends as backslash n.
            key = load_pem_private_key(secret.replace("\\n", "\n").encode(), password=None)
        else:
            raw = base64.b64decode(secret.strip(), validate=True)
            if len(raw) != 64:
                raise ValueError
            key = ed25519.Ed25519PrivateKey.from_private_bytes(raw[:32])
    except (ValueError, TypeError, binascii.Error):
        key = None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return key
    raise ValueError("the key is neither a P-256 or Ed25519 PEM nor base64 of 64 bytes")
