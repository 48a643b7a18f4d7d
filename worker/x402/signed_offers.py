"""Signed offers: the `offer-receipt` extension of a 402, EIP-712 form.

An offer states payee, amount, URL and expiry. It is signed for a time window that all requests share, so a
stranger's request costs no signature. Anybody can verify it: the signer is the payee's wallet, or a key in
the seller's /.well-known/did.json.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from worker.x402.receipts import Sign, signed_statement
from worker.x402.typed_data import Domain, Struct

WINDOW_S = 3_600
_MOST = 1_024

OFFER_DOMAIN = Domain("x402 offer", "1", 1)
OFFER = Struct(
    "Offer",
    (
        ("version", "uint256"),
        ("resourceUrl", "string"),
        ("scheme", "string"),
        ("network", "string"),
        ("asset", "string"),
        ("payTo", "string"),
        ("amount", "string"),
        ("validUntil", "uint256"),
    ),
)
_TERMS = ("scheme", "network", "asset", "payTo", "amount")
_PAYLOAD_FIELDS = {
    name: {"type": "integer" if kind == "uint256" else "string"} for name, kind in OFFER.fields
}
_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "offers": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "format": {"type": "string"},
                    "acceptIndex": {"type": "integer"},
                    "payload": {
                        "type": "object",
                        "properties": _PAYLOAD_FIELDS,
                        "required": [name for name in _PAYLOAD_FIELDS if name != "validUntil"],
                    },
                    "signature": {"type": "string"},
                },
                "required": ["format", "signature"],
            },
        }
    },
    "required": ["offers"],
}


class OfferSigner:
    """Signs each offer once per window and caches it. For catalog prices only: a price that depends on a
    stranger's input would cost a signature per request.
    """

    def __init__(self, sign: Sign, now_s: Callable[[], float]) -> None:
        self._sign = sign
        self._now_s = now_s
        self._signed: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def extension(self, resource_url: str, accepts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return `extensions["offer-receipt"]`, with one signed offer for each way to pay."""
        offers = [
            {"acceptIndex": index, **self._offer(resource_url, terms)} for index, terms in enumerate(accepts)
        ]
        return {"info": {"offers": offers}, "schema": _SCHEMA}

    def _offer(self, resource_url: str, terms: Mapping[str, Any]) -> dict[str, Any]:
        # Valid for one to two windows, so an offer read at the end of a window does not expire at once.
        valid_until = (int(self._now_s()) // WINDOW_S + 2) * WINDOW_S
        key = (resource_url, *(terms[name] for name in _TERMS), valid_until)
        with self._lock:
            known = self._signed.get(key)
        if known is not None:
            return known
        payload = {
            "version": 1,
            "resourceUrl": resource_url,
            **{name: terms[name] for name in _TERMS},
            "validUntil": valid_until,
        }
        offer = signed_statement(OFFER_DOMAIN, OFFER, payload, self._sign)
        with self._lock:
            self._signed[key] = offer
            while len(self._signed) > _MOST:
                self._signed.popitem(last=False)
        return offer
