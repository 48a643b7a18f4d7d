"""Contract ids: ours are unguessable, and guessable ones are estimated low."""

from __future__ import annotations

import re
import secrets
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contracts.ids import ENOUGH_BITS, estimated_bits, is_contract_id, new_contract_id


def test_generated_ids_are_random_and_accepted():
    """New ids match ctr_[a-z0-9]+, never repeat, use the whole alphabet and pass our own estimate."""
    ids = {new_contract_id() for _ in range(500)}
    assert len(ids) == 500
    for contract_id in ids:
        assert re.fullmatch(r"ctr_[a-z0-9]{26}", contract_id)
        assert is_contract_id(contract_id)
        assert estimated_bits(contract_id) >= ENOUGH_BITS
    assert len(set("".join(ids))) == len(set("ctr_abcdefghijklmnopqrstuvwxyz0123456789"))


@pytest.mark.parametrize(
    "contract_id",
    [
        "",
        "ctr_",
        "ctr_abc123",
        "ctr_unique_id",
        "contract-1",
        "ctr_1769769000123456",
        "contract-1769769000123456",
        "2026-01-30-10-30-00-000001",
        "20260130103000000001",
        "my-contract-for-logo-design-2026-01-30",
        "ctr_" + "0" * 100,
        "ctr_" + "0" * 25 + "1",
        "ab" * 30,
        "ctr_abcdefghijklmnopqrstuvwxyz",
        "ctr_zyxwvutsrqponmlkjihgfedcba",
        "ctr_0123456789abcdef",
        "ctr_deadbeefdeadbeefdeadbeef",
        "The-Quick-Brown-Fox-Jumps-Over",
        "-" * 128,
        "_-_-_-_-_-_-_-_-_",
    ],
)
def test_guessable_ids_are_estimated_low(contract_id):
    """Short, repeated, counted, dated and spelled ids stay under 64 bits."""
    assert estimated_bits(contract_id) < ENOUGH_BITS


@pytest.mark.parametrize(
    "contract_id",
    [
        "0b0e8a2e-1c6f-4b1c-9a55-1c2d3e4f5a6b",
        "ctr_9f8e2d7c1b0a4f63e5d8c7b6a1928374",
        "7Q2mXv9KpLr4TzNcW8bYhA",
        "01J8ZQ4M7K3W9XVB2N6T5RHYCD",
        "84620193758264019375",
        "ctr_a7f3c9e1d5b80264",
    ],
)
def test_random_ids_are_estimated_high(contract_id):
    """UUIDs, hex, base62, ULIDs, long random digits and exactly 64 bits of hex are enough."""
    assert estimated_bits(contract_id) >= ENOUGH_BITS


def test_random_ids_of_all_common_kinds_are_enough():
    """None of five hundred UUIDs, with or without hyphens, and 128-bit hex ids is estimated too low."""
    for _ in range(500):
        id = uuid.uuid4()
        for contract_id in (str(id), id.hex, "ctr_" + secrets.token_hex(16)):
            assert estimated_bits(contract_id) >= ENOUGH_BITS


@given(st.text("abcXYZ019_-", max_size=128))
def test_the_estimate_is_bounded(contract_id):
    """Never negative, never above what the alphabet allows; the ctr_ prefix adds nothing."""
    bits = estimated_bits(contract_id)
    assert 0 <= bits <= 6 * len(contract_id)
    assert estimated_bits("ctr_" + contract_id.removeprefix("ctr_")) == bits


@pytest.mark.parametrize(
    "text", ["", "a" * 129, "a b", "ctr_abc\n", "ctr.abc", "ctr/abc", "ctr_\u00e9", "ctr_\u0661", "\0"]
)
def test_id_unfit_for_a_header_is_refused(text):
    """Other characters, blanks, line ends and more than 128 characters are refused."""
    assert not is_contract_id(text)
    assert is_contract_id(secrets.token_urlsafe(16))
