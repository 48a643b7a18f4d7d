"""The short stored form of a settled payment's JSON texts, which gives back every byte of them.

A word that is the same in every payment, or that another field of the payment has, is replaced by one
character that no such text contains. The word of a character never changes, because stores keep texts for
years; new ones go to the end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from worker.core.evm import checksum_address, is_address
from worker.x402.payment_keys import PaymentKey
from worker.x402.receipts import RECEIPT_SCHEMA

# Begins every packed text; a plain one begins with a brace.
_PACKED = "\x01"
# Characters of the words that are the payment's own.
_REQUIREMENTS, _NETWORK, _ASSET, _ASSET_LOWER, _PAYER, _PAYER_LOWER, _NONCE, _TRANSACTION, _PAY_TO = map(
    chr, range(0x02, 0x0B)
)


def _fixed(*words: str) -> dict[str, str]:
    return {chr(0x0B + at): word for at, word in enumerate(words)}


_IN_RESPONSES = _fixed(
    f'"}}}},"schema":{json.dumps(RECEIPT_SCHEMA, separators=(",", ":"))}}}}}}}',
    '{"success":true,"transaction":"',
    '","network":"',
    '","payer":"',
    '","extensions":{"offer-receipt":{"info":{"receipt":{"format":"eip712","payload":{"version":1,"network":"',
    '","resourceUrl":"',
    '","issuedAt":',
    ',"transaction":"',
    '"},"signature":"0x',
)
_IN_REQUESTS = _fixed(
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
        payload = _packed(self.payload, _of_requirements(self.requirements) | words, _IN_REQUESTS)
        return SentPayment(payload, _packed(self.requirements, words, _IN_REQUESTS), self.key)

    def plain(self) -> SentPayment:
        if not any(text.startswith(_PACKED) for text in (self.payload, self.requirements)):
            return self
        words = _words(self.key)
        requirements = _plain(self.requirements, words, _IN_REQUESTS)
        payload = _plain(self.payload, _of_requirements(requirements) | words, _IN_REQUESTS)
        return SentPayment(payload, requirements, self.key)


def pack_response(response: str, key: str, transaction: str) -> str:
    """A PAYMENT-RESPONSE; the payment's key and its transaction are fields of their own."""
    return _packed(response, {_TRANSACTION: transaction} | _words(key), _IN_RESPONSES)


def unpack_response(response: str, key: str, transaction: str) -> str:
    if not response.startswith(_PACKED):
        return response
    return _plain(response, {_TRANSACTION: transaction} | _words(key), _IN_RESPONSES)


def _words(key: str) -> dict[str, str]:
    network, asset, payer, nonce = PaymentKey.parse(key)
    words = {_NONCE: nonce, _PAYER_LOWER: payer, _ASSET_LOWER: asset, _NETWORK: network}
    if is_address(asset) and is_address(payer):
        words |= {_ASSET: checksum_address(asset), _PAYER: checksum_address(payer)}
    return words


def _of_requirements(requirements: str) -> dict[str, str]:
    return {_REQUIREMENTS: requirements, _PAY_TO: str(json.loads(requirements).get("payTo", ""))}


def _packed(text: str, own: Mapping[str, str], fixed: Mapping[str, str]) -> str:
    if not (text.isascii() and text.isprintable()):
        return text
    for char, word in (*own.items(), *fixed.items()):
        if word:
            text = text.replace(word, char)
    return _PACKED + text


def _plain(text: str, own: Mapping[str, str], fixed: Mapping[str, str]) -> str:
    if not text.startswith(_PACKED):
        return text
    return text[1:].translate({ord(char): word for char, word in (*own.items(), *fixed.items())})
