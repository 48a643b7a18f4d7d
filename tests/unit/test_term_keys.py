"""Contract keys that have no effect here."""

from __future__ import annotations

from worker.contracts.term_keys import first_about_money, unknown_keys

CONTRACT = {
    "version": "HIRE/1.0",
    "hash": "",
    "signatures": {},
    "parties": {"seeker": {"wallet": "0x", "nickname": "s"}},
    "terms": {"price": {"amount": "1", "vat.id": "x"}, "governing_law": "none"},
    "sla": {"max_latency_ms": 1, "uptime": 1},
    "payment_note": "anything",
}


def test_unknown_keys_are_named_with_their_path() -> None:
    """Every level with known keys is checked, but not the content of schemas and webhooks."""
    assert unknown_keys(CONTRACT) == [
        "payment_note",
        "parties.seeker.nickname",
        "terms.governing_law",
        "terms.price.vat.id",
        "sla.uptime",
    ]


def test_only_terms_make_promises_about_money() -> None:
    """A key about money is a promise only in certain places; elsewhere it is a note."""
    assert first_about_money(unknown_keys(CONTRACT)) is None
    assert first_about_money(["payment_note", "sla.Refund"]) == "sla.Refund"
