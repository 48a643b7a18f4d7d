"""Which reading a request speaks, and how each is answered."""

from __future__ import annotations

import pytest

from worker.swarm import readings
from worker.swarm.readings import Reading


@pytest.mark.parametrize(
    ("stage", "policy_hash", "expected"),
    [
        ("EXPLORE", "ab" * 32, Reading.KERNEL),
        ("DECIDE", None, Reading.KERNEL),
        ("DIVERGE_MODE", "sha256:x", Reading.KERNEL),
        ("explore", "ab" * 32, Reading.DOCUMENTS),
        ("verify", None, Reading.DOCUMENTS),
        ("finalize", "sha256:x", Reading.DOCUMENTS),
        ("", "sha256:x", Reading.DOCUMENTS),
        ("Explore", "ab" * 32, Reading.KERNEL),
        ("Explore", "sha256:x", Reading.DOCUMENTS),
        ("", None, Reading.KERNEL),
        ("1", None, Reading.KERNEL),
    ],
)
def test_the_stage_tells_the_reading_of_an_execution(
    stage: str, policy_hash: str | None, expected: Reading
) -> None:
    """Upper case is a kernel, lower case the documents, else the hash decides; doubt means a kernel."""
    assert readings.of_execute(stage, policy_hash) is expected


def test_the_prefix_of_the_policy_hash_tells_the_reading_of_a_verification() -> None:
    """Only the exact lower-case prefix is the documents' spelling."""
    assert readings.of_verify("sha256:") is Reading.DOCUMENTS
    for other in ("ab" * 32, "SHA256:ab", " sha256:ab", ""):
        assert readings.of_verify(other) is Reading.KERNEL


def test_a_clean_pass_has_no_codes_in_the_documents_form_only() -> None:
    """The documents want an empty list on a pass, a kernel refuses one; a failure shows its codes in both."""
    assert readings.spell_codes(Reading.DOCUMENTS, True, (100,)) == []
    assert readings.spell_codes(Reading.KERNEL, True, (100,)) == [100]
    for reading in Reading:
        assert readings.spell_codes(reading, False, (100, 102)) == [100, 102]


def test_hashes_and_statuses_follow_the_reading() -> None:
    """The documents get a prefix and 400 for a bad answer, a kernel bare hex and a status it retries."""
    assert readings.spell_hash(Reading.DOCUMENTS, "ab") == "sha256:ab"
    assert readings.spell_hash(Reading.KERNEL, "ab") == "ab"
    assert readings.bad_answer_status(Reading.DOCUMENTS) == 400
    assert readings.bad_answer_status(Reading.KERNEL) == 502
