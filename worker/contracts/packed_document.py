"""The short stored form of a contract's document; its hash is a field of its own."""

from __future__ import annotations

from worker.store.packed_text import common_words, pack, unpack

_HASH = "\x02"
_IN_DOCUMENTS = common_words(
    '{"version":"HIRE/1.0",',
    '"created_at":"',
    '"parties":{"seeker":{"agent_id":"',
    '"worker":{"agent_id":"',
    '","wallet":"0x',
    '"task":{"description":"',
    '","capability":"',
    '"terms":{"price":{"amount":"',
    '","currency":"USDC","network":"base"}',
    ',"deadline":"',
    '","payment_trigger":"on_delivery"',
    ',"platform_fee":{"percentage":',
    ',"wallet":"0x',
    '"contract_id":"',
    '"signatures":{"worker":"0x',
    '"timestamp":"',
    '","scheme":"eip191","canonicalization":"RFC8785"',
    ',"seeker":"0x',
    ',"settlement":"',
    '"sla":{"retry_policy":"',
    '"hash":"',
)


def pack_document(document: str, hash: str) -> str:
    return pack(document, {_HASH: hash}, _IN_DOCUMENTS)


def unpack_document(stored: str, hash: str) -> str:
    return unpack(stored, {_HASH: hash}, _IN_DOCUMENTS)
