"""Keyed hashes (HMAC) with the operator's secret; hashes with other accepted secrets verify too."""

from __future__ import annotations

import hmac
from collections.abc import Sequence


def keyed_hash(secret: str, text: str) -> str:
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()[:32]


def is_keyed_hash(secrets: Sequence[str], text: str, received: str) -> bool:
    """Whether `received` is the text's hash with any of the secrets."""
    found = [hmac.compare_digest(keyed_hash(secret, text).encode(), received.encode()) for secret in secrets]
    return any(found)
