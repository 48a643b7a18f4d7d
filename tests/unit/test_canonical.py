"""Strict parsing, canonical form, and the hash that both parties sign."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.canonical import canonical, contract_hash, digest, parse
from worker.core.errors import BadRequest, Problem, TooLarge

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
def test_contract_hashes_match_the_vectors(vector):
    """The published contracts have the published canonical text and hash, for 1 and 1.0 alike."""
    contract = vector["unsigned_contract"]
    assert canonical(contract) == vector["canonical_utf8"].encode()
    assert contract_hash(contract) == vector["hash"]


def test_hash_ignores_only_signatures_and_hash():
    """Signatures and the hash itself are excluded; any other field, known or not, changes the hash."""
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
def test_numbers_follow_ecmascript(raw, text):
    """Numbers take the shortest form that JavaScript would print."""
    assert canonical(parse(raw)) == text.encode()


def test_keys_are_sorted_by_utf16_units():
    """A character outside the BMP sorts by its surrogates, before U+FB33, and is not escaped."""
    value = {"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "\r": 4, "1": 5, "\u00f6": 6}
    text = '{"\\r":4,"1":5,"\u00f6":6,"\u20ac":3,"\U0001f600":2,"\ufb33":1}'
    assert canonical(value) == text.encode()


@given(values)
def test_canonical_form_round_trips(value):
    """Canonical text is unchanged after parsing and writing."""
    once = canonical(value)
    assert canonical(parse(once)) == once


@given(st.dictionaries(plain_text, numbers, min_size=2), st.randoms())
def test_key_order_and_whitespace_do_not_matter(value, chance: random.Random):
    """Key order and white space do not change the digest."""
    items = list(value.items())
    chance.shuffle(items)
    shuffled = json.dumps(dict(items), indent=chance.choice([None, 1, 4])).encode()
    assert digest(parse(shuffled)) == digest(value)


@given(values)
def test_parser_reads_other_implementations(value):
    """Ordinary JSON from another writer, escaped or not, gives the same value."""
    for ascii_only in (True, False):
        assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=64) | st.text('{}[]":,\\u0123dD89abEe+-. \n', max_size=64).map(str.encode))
def test_any_bytes_are_parsed_or_refused(raw):
    """Hostile bytes raise nothing but a Problem, and accepted ones have a canonical form."""
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
def test_duplicate_keys_are_refused_with_their_path(raw, field):
    """A duplicate key is refused, even if it is spelled with an escape or has an equal value."""
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
def test_ambiguous_numbers_are_refused(raw, field):
    """Integers beyond 2^53, in any spelling, and non-finite numbers are refused with their path."""
    found = refusal(raw)
    assert isinstance(found, BadRequest)
    assert found.details["field"] == field
    assert len(str(found.details["received"])) < 100


def test_the_largest_safe_integers_are_accepted():
    """2^53 - 1 and its negative are parsed exactly."""
    assert parse(b"[9007199254740991,-9007199254740991]") == [2**53 - 1, -(2**53) + 1]


def test_first_error_in_the_document_is_named():
    """With several errors the path is that of the first."""
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


def test_surrogate_pairs_are_accepted():
    """An escaped pair is one character; an escaped backslash before u is not an escape."""
    assert parse(b'["\\ud83d\\ude00","\\\\ud800"]') == ["\U0001f600", "\\ud800"]


@pytest.mark.parametrize(
    "raw", [b"\xff", b'"\xc0\xaf"', b'"\xed\xa0\x80"', '"é"'.encode("latin-1"), "{}".encode("utf-16")]
)
def test_invalid_utf8_is_refused(raw):
    """Bytes that are not strict UTF-8 are refused, including overlong forms and encoded surrogates."""
    assert refusal(raw).message == "the body is not UTF-8"


@pytest.mark.parametrize(
    "raw",
    [b"", b" ", b"{", b"{}{}", b'{"a":1,}', b"{'a':1}", b"01", b"\xef\xbb\xbf{}", b'"\n"', b"nul", b"[1]]"],
)
def test_invalid_json_is_refused_with_its_position(raw):
    """Invalid JSON is refused with line and column."""
    found = refusal(raw)
    assert found.code == "INVALID_REQUEST"
    assert "line" in found.details["received"]


def test_depth_limit_is_exact():
    """64 levels pass, 65 do not, in arrays and objects alike."""
    assert depth(parse(b"[" * 64 + b"]" * 64)) == 64
    assert depth(parse(b'{"a":' * 64 + b"1" + b"}" * 64)) == 64
    for raw in (b"[" * 65 + b"]" * 65, b'{"a":[' * 33 + b"]}" * 33):
        assert "deep" in refusal(raw).message


@given(values)
def test_brackets_in_strings_do_not_count(value):
    """The limit applies at the real depth, whatever the strings contain."""
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
    """A megabyte of brackets or escapes is refused like any other invalid body."""
    assert isinstance(refusal(raw), BadRequest)


def test_many_shallow_brackets_are_accepted():
    """Ten thousand siblings are two levels."""
    raw = b"[" + b",".join([b"{}"] * 10_000) + b"]"
    assert len(parse(raw)) == 10_000


def test_size_is_bounded():
    """A body above the limit is refused before it is parsed; one at the limit is accepted."""
    found = refusal(b" " * 11 + b"\xff", max_bytes=10)
    assert isinstance(found, TooLarge)
    assert found.details["received"] == 12
    assert parse(b'"12345678"', max_bytes=10) == "12345678"


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**53, pytest.param(10**5000, id="huge"), "\ud800", {"\ud800": 1}, {1: 2}, {2}],
)
def test_non_canonical_values_are_refused(value):
    """A value that JSON cannot represent exactly has no canonical form; the refusal is a Problem."""
    with pytest.raises(BadRequest):
        canonical(value)


def test_deeply_nested_value_is_refused():
    """A value nested too deeply for the writer gives a Problem, not a crash."""
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BadRequest):
        canonical(value)
