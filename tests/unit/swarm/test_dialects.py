"""Which dialect a request uses, and how each is answered."""

from __future__ import annotations

import pytest

from worker.swarm import dialects
from worker.swarm.dialects import Dialect


@pytest.mark.parametrize(
    ("stage", "policy_hash", "expected"),
    [
        ("EXPLORE", "ab" * 32, Dialect.KERNEL),
        ("DECIDE", None, Dialect.KERNEL),
        ("DIVERGE_MODE", "sha256:x", Dialect.KERNEL),
        ("explore", "ab" * 32, Dialect.DOCUMENTS),
        ("verify", None, Dialect.DOCUMENTS),
        ("finalize", "sha256:x", Dialect.DOCUMENTS),
        ("", "sha256:x", Dialect.DOCUMENTS),
        ("Explore", "ab" * 32, Dialect.KERNEL),
        ("Explore", "sha256:x", Dialect.DOCUMENTS),
        ("", None, Dialect.KERNEL),
        ("1", None, Dialect.KERNEL),
    ],
)
def test_stage_selects_the_execution_dialect(stage: str, policy_hash: str | None, expected: Dialect) -> None:
    """Upper case: kernel; lower case: specification; otherwise the hash decides; default: kernel."""
    assert dialects.of_execute(stage, policy_hash) is expected


def test_policy_hash_prefix_selects_the_verification_dialect() -> None:
    """Only the exact lower-case prefix selects the specification's dialect."""
    assert dialects.of_verify("sha256:") is Dialect.DOCUMENTS
    for other in ("ab" * 32, "SHA256:ab", " sha256:ab", ""):
        assert dialects.of_verify(other) is Dialect.KERNEL


def test_clean_pass_has_no_codes_in_the_specification_dialect() -> None:
    """The specification wants an empty list on a pass, a kernel refuses one; both show codes on a failure."""
    assert dialects.spell_codes(Dialect.DOCUMENTS, True, (100,)) == []
    assert dialects.spell_codes(Dialect.KERNEL, True, (100,)) == [100]
    for reading in Dialect:
        assert dialects.spell_codes(reading, False, (100, 102)) == [100, 102]


def test_hashes_and_statuses_follow_the_dialect() -> None:
    """The specification: prefix, 400 for a bad answer. A kernel: bare hex, a status that it retries."""
    assert dialects.spell_hash(Dialect.DOCUMENTS, "ab") == "sha256:ab"
    assert dialects.spell_hash(Dialect.KERNEL, "ab") == "ab"
    assert dialects.bad_answer_status(Dialect.DOCUMENTS) == 400
    assert dialects.bad_answer_status(Dialect.KERNEL) == 502
