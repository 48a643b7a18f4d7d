"""What the answer to a draft says besides our signature."""

from __future__ import annotations

from tests.fakes.paid_worker import PaidWorker
from worker.contracts.signatures import sign_text
from worker.core.canonical import contract_hash


def test_keys_without_effect_are_signed_and_named(paid_worker: PaidWorker) -> None:
    """HIRE allows further keys: they are part of the signed document, and the answer names them."""
    seeker = paid_worker.seeker()
    draft = {**seeker.draft(terms={"governing_law": "none"}), "memo": {"to": "myself"}}
    drafted = seeker.door("POST", "/contracts", draft)
    assert drafted.status == 201, drafted.content
    document = drafted.json
    assert document["signatures"]["no_effect"] == ["memo", "terms.governing_law"]
    assert document["hash"] == contract_hash(document) and document["terms"]["governing_law"] == "none"
    document["signatures"]["seeker"] = sign_text(document["hash"], seeker.key)
    assert seeker.door("PUT", "/contracts", document).status == 200
    plain = seeker.door("POST", "/contracts", seeker.draft())
    assert "no_effect" not in plain.json["signatures"]
