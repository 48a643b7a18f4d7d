"""The key of a payment, which no chain accepts twice."""

from __future__ import annotations

from typing import NamedTuple


class PaymentKey(NamedTuple):
    """Network (CAIP-2), asset, payer and nonce; written in lower case with slashes between them."""

    network: str
    asset: str
    payer: str
    nonce: str

    def __str__(self) -> str:
        return "/".join(self).lower()

    @classmethod
    def parse(cls, text: str) -> PaymentKey:
        """Missing parts are empty."""
        network, asset, payer, nonce, *_ = (*text.split("/", 3), "", "", "", "")
        return cls(network, asset, payer, nonce)
