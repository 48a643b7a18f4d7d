"""The short stored form of a settled payment: what was sent to the facilitator, and the PAYMENT-RESPONSE."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from worker.core.evm import checksum_address, is_address
from worker.store.packed_text import PACKED, Words, common_words, pack, unpack
from worker.x402.payment_keys import PaymentKey
from worker.x402.receipts import RECEIPT_SCHEMA

# Characters of the words that are the payment's own.
_REQUIREMENTS, _NETWORK, _ASSET, _ASSET_LOWER, _PAYER, _PAYER_LOWER, _NONCE, _TRANSACTION, _PAY_TO = map(
    chr, range(0x02, 0x0B)
)


# What every response ends with.
_SCHEMA = f'"}}}},"schema":{json.dumps(RECEIPT_SCHEMA, separators=(",", ":"))}}}}}}}'
_IN_RESPONSES = common_words(
    _SCHEMA,
    '{"success":true,"transaction":"',
    '","network":"',
    '","payer":"',
    '","extensions":{"offer-receipt":{"info":{"receipt":{"format":"eip712","payload":{"version":1,"network":"',
    '","resourceUrl":"',
    '","issuedAt":',
    ',"transaction":"',
    '"},"signature":"0x',
)
[_SCHEMA_CHAR] = [char for char, word in _IN_RESPONSES.items() if word == _SCHEMA]
_IN_REQUESTS = common_words(
    '{"x402Version":2,',
    '"payload":{',
    '"signature":"0x',
    '"authorization":{"from":"',
    '","to":"',
    '","value":"',
    '","validAfter":"',
    '","validBefore":"',
    '","nonce":"',
    '"accepted":',
    '{"scheme":"exact","network":"',
    '","amount":"',
    '","asset":"',
    '","payTo":"',
    '","maxTimeoutSeconds":',
    ',"extra":{"name":"USDC","version":"2"}}',
    ',"extra":{"name":"USD Coin","version":"2"}}',
    '"resource":{"url":"',
    '","description":"',
    '","mimeType":"application/json"}',
)


@dataclass(frozen=True, slots=True)
class SentPayment:
    """What was sent to the facilitator, as JSON, and the payment's key, which is a field of its own."""

    payload: str
    requirements: str
    key: str

    def packed(self) -> SentPayment:
        words = _words(self.key)
        payload = pack(self.payload, {**_of_requirements(self.requirements), **words}, _IN_REQUESTS)
        return SentPayment(payload, pack(self.requirements, words, _IN_REQUESTS), self.key)

    def plain(self) -> SentPayment:
        if not any(text.startswith(PACKED) for text in (self.payload, self.requirements)):
            return self
        words = _words(self.key)
        requirements = unpack(self.requirements, words, _IN_REQUESTS)
        payload = unpack(self.payload, {**_of_requirements(requirements), **words}, _IN_REQUESTS)
        return SentPayment(payload, requirements, self.key)


def pack_response(response: str, key: str, transaction: str) -> str:
    """A PAYMENT-RESPONSE; the payment's key and its transaction are fields of their own."""
    # The schema, most of it and with none of the other words, is searched for none.
    rest = response.removesuffix(_SCHEMA)
    packed = pack(rest, {_TRANSACTION: transaction, **_words(key)}, _IN_RESPONSES)
    if packed is rest:
        return response
    return packed + _SCHEMA_CHAR if len(rest) < len(response) else packed


def unpack_response(response: str, key: str, transaction: str) -> str:
    if not response.startswith(PACKED):
        return response
    return unpack(response, {_TRANSACTION: transaction, **_words(key)}, _IN_RESPONSES)


# One payment's words are asked for when it is packed, when its response is, and when that is read.
@lru_cache(maxsize=64)
def _words(key: str) -> Words:
    network, asset, payer, nonce = PaymentKey.parse(key)
    words = {_NONCE: nonce, _PAYER_LOWER: payer, _ASSET_LOWER: asset, _NETWORK: network}
    if is_address(asset) and is_address(payer):
        words |= {_ASSET: checksum_address(asset), _PAYER: checksum_address(payer)}
    return words


@lru_cache(maxsize=64)
def _of_requirements(requirements: str) -> Words:
    return {_REQUIREMENTS: requirements, _PAY_TO: str(json.loads(requirements).get("payTo", ""))}
