"""Strict reading, canonical writing, and the hash both parties sign."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contracts.canonical import canonical, contract_hash, digest, parse
from worker.errors import BadRequest, Problem, TooLarge

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "hire-contracts.json").read_text("utf-8"))

plain_text = st.text(st.characters(codec="utf-8"))
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: not 2**53 - 1 < abs(number) < 1e21
)
values = st.recursive(
    st.none() | st.booleans() | numbers | plain_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=20,
)


def refusal(raw: bytes, **limits: int) -> Problem:
    with pytest.raises(Problem) as caught:
        parse(raw, **limits)
    return caught.value


def depth(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 0


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_contract_vectors(vector):
    """The published contracts have the published canonical text and hash, 1 and 1.0 alike."""
    contract = vector["unsigned_contract"]
    assert canonical(contract) == vector["canonical_utf8"].encode()
    assert contract_hash(contract) == vector["hash"]


def test_hash_ignores_only_signatures_and_hash():
    """Signatures and the hash itself are left out; any other field, known or not, changes the hash."""
    contract = VECTORS["vectors"][0]["unsigned_contract"]
    signed = {**contract, "hash": "sha256:00", "signatures": {"worker": "0x"}}
    assert contract_hash(signed) == contract_hash(contract)
    assert contract_hash({**contract, "extension": None}) != contract_hash(contract)
    nested = {**contract, "task": {**contract["task"], "hash": "x"}}
    assert contract_hash(nested) != contract_hash(contract)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"0", "0"),
        (b"-0.0", "0"),
        (b"5e-324", "5e-324"),
        (b"1.7976931348623157e308", "1.7976931348623157e+308"),
        (b"1e21", "1e+21"),
        (b"999999999999999.9", "999999999999999.9"),
        (b"1e-7", "1e-7"),
        (b"0.000001", "0.000001"),
        (b"333333333.33333329", "333333333.3333333"),
        (b"1E30", "1e+30"),
        (b"4.50", "4.5"),
        (b"2e-3", "0.002"),
    ],
)
def test_numbers_are_written_as_ecmascript_does(raw, text):
    """Numbers take the shortest form that JavaScript would print."""
    assert canonical(parse(raw)) == text.encode()


def test_keys_are_sorted_by_utf16_units():
    """A character outside the BMP sorts by its surrogates, before U+FB33, and is not escaped."""
    value = {"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "\r": 4, "1": 5, "\u00f6": 6}
    text = '{"\\r":4,"1":5,"\u00f6":6,"\u20ac":3,"\U0001f600":2,"\ufb33":1}'
    assert canonical(value) == text.encode()


@given(values)
def test_canonical_text_reads_back_to_itself(value):
    """Parsing canonical text and writing it again changes no byte."""
    once = canonical(value)
    assert canonical(parse(once)) == once


@given(st.dictionaries(plain_text, numbers, min_size=2), st.randoms())
def test_order_and_blanks_do_not_matter(value, chance: random.Random):
    """Whatever the order of keys and the white space, the digest is the same."""
    items = list(value.items())
    chance.shuffle(items)
    shuffled = json.dumps(dict(items), indent=chance.choice([None, 1, 4])).encode()
    assert digest(parse(shuffled)) == digest(value)


@given(values)
def test_parse_reads_what_others_write(value):
    """Ordinary JSON from another writer, escaped or not, gives the same value."""
    for ascii_only in (True, False):
        assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=64) | st.text('{}[]":,\\u0123dD89abEe+-. \n', max_size=64).map(str.encode))
def test_any_bytes_end_in_a_value_or_a_refusal(raw):
    """Hostile bytes never raise anything but a Problem, and what is accepted has a canonical form."""
    try:
        value = parse(raw)
    except Problem:
        return
    assert parse(canonical(value)) == value


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"terms":{"price":{"amount":"1","amount":"9"}}}', "terms.price.amount"),
        (b'[0,{"x y":1,"x y":2}]', '[1]["x y"]'),
        (b'{"a":{"b":1,"\\u0062":2}}', "a.b"),
    ],
)
def test_repeated_keys_are_refused_with_their_path(raw, field):
    """A key given twice is refused, also when it is spelled with an escape or has an equal value."""
    found = refusal(raw)
    assert isinstance(found, BadRequest)
    assert found.details["field"] == field
    assert "twice" in found.message


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"[9007199254740992]", "[0]"),
        (b'{"n":-9007199254740992}', "n"),
        (b'{"a":[1,{"n":123456789012345678901234567890}]}', "a[1].n"),
        (b'{"n":' + b"9" * 20_000 + b"}", "n"),
        (b'{"n":9007199254740992.0}', "n"),
        (b'{"n":1e18}', "n"),
        (b'{"n":1e400}', "n"),
        (b'{"n":-1e999999999}', "n"),
        (b'{"n":NaN}', "n"),
        (b"[1,Infinity]", "[1]"),
        (b"-Infinity", "$"),
    ],
)
def test_numbers_that_readers_disagree_about_are_refused(raw, field):
    """Integers beyond 2^53, in any spelling, and numbers that are no finite double are refused by name."""
    found = refusal(raw)
    assert isinstance(found, BadRequest)
    assert found.details["field"] == field
    assert len(str(found.details["received"])) < 100


def test_the_largest_safe_integers_are_accepted():
    """2^53 - 1 and its negative are read exactly."""
    assert parse(b"[9007199254740991,-9007199254740991]") == [2**53 - 1, -(2**53) + 1]


def test_the_first_fault_in_the_document_is_the_one_named():
    """With several faults the path is that of the first."""
    assert refusal(b'{"a":{"b":NaN},"c":1e400,"d":{"e":1,"e":2}}').details["field"] == "a.b"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'"\\ud800"', "$"),
        (b'{"a":["x","\\udc00\\ud800"]}', "a[1]"),
        (b'{"a":{"\\uDFFF":1}}', "a"),
        (b'{"a":"\\ud83d\\u0061"}', "a"),
    ],
)
def test_lone_surrogates_are_refused_with_their_path(raw, field):
    """Half a surrogate pair, in a value or a key, is refused, and the refusal itself can be sent."""
    found = refusal(raw)
    assert found.details["field"] == field
    json.dumps(found.details, ensure_ascii=False).encode("utf-8")


def test_whole_surrogate_pairs_are_accepted():
    """An escaped pair is one character; an escaped backslash before u is no escape at all."""
    assert parse(b'["\\ud83d\\ude00","\\\\ud800"]') == ["\U0001f600", "\\ud800"]


@pytest.mark.parametrize(
    "raw", [b"\xff", b'"\xc0\xaf"', b'"\xed\xa0\x80"', '"é"'.encode("latin-1"), "{}".encode("utf-16")]
)
def test_bad_utf8_is_refused(raw):
    """Bytes that are not strict UTF-8 are refused, overlong forms and encoded surrogates included."""
    assert refusal(raw).message == "the body is not UTF-8"


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"{", b"{}{}", b'{"a":1,}', b"{'a':1}", b"01", b"\xef\xbb\xbf{}", b'"\n"', b"nul", b"[1]]"],
)
def test_what_is_not_json_is_refused_with_a_position(raw):
    """Broken JSON is refused by line and column."""
    found = refusal(raw)
    assert found.code == "INVALID_REQUEST"
    assert "line" in found.details["received"]


def test_depth_is_exact():
    """Sixty-four levels pass, sixty-five do not, in arrays and objects alike."""
    assert depth(parse(b"[" * 64 + b"]" * 64)) == 64
    assert depth(parse(b'{"a":' * 64 + b"1" + b"}" * 64)) == 64
    for raw in (b"[" * 65 + b"]" * 65, b'{"a":[' * 33 + b"]}" * 33):
        assert "deep" in refusal(raw).message


@given(values)
def test_depth_counts_levels_and_not_brackets_in_strings(value):
    """The limit bites exactly at the real depth, whatever the strings contain."""
    wrapped = ['"[[[[\\', {']}{\\"[': [value]}, "{" * 9]
    raw = json.dumps(wrapped, ensure_ascii=False).encode()
    deep = depth(wrapped)
    assert parse(raw, max_depth=deep) == wrapped
    assert "deep" in refusal(raw, max_depth=deep - 1).message


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'["' + b'\\"' * 400_000 + b"[" * 100,
        b"[" * 65 + b'"',
        b"[" * 400_000 + b"]" * 400_000,
    ],
)
def test_hostile_nesting_is_refused_without_recursion(raw):
    """A megabyte of brackets or escapes is refused like any other bad body."""
    assert isinstance(refusal(raw), BadRequest)


def test_many_shallow_brackets_are_not_deep():
    """Ten thousand siblings are two levels."""
    raw = b"[" + b",".join([b"{}"] * 10_000) + b"]"
    assert len(parse(raw)) == 10_000


def test_size_is_bounded():
    """A body over the limit is refused before it is read, one at the limit is not."""
    found = refusal(b" " * 11 + b"\xff", max_bytes=10)
    assert isinstance(found, TooLarge)
    assert found.details["received"] == 12
    assert parse(b'"12345678"', max_bytes=10) == "12345678"


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**53, pytest.param(10**5000, id="huge"), "\ud800", {"\ud800": 1}, {1: 2}, {2}],
)
def test_values_without_canonical_form_are_refused(value):
    """What JSON cannot carry exactly has no canonical form, and the refusal is a Problem."""
    with pytest.raises(BadRequest):
        canonical(value)


def test_a_value_nested_without_end_is_refused():
    """A value that was built too deep for the writer ends in a Problem, not in a crash."""
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BadRequest):
        canonical(value)
