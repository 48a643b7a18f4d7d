"""Rendering and parsing JSON as the kernel does."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.swarm import serde


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("18446744073709551615", "18446744073709551615"),
        ("18446744073709551616", "1.8446744073709552e+19"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("-9223372036854775809", "-9.223372036854776e+18"),
        ("123456789012345678901234567890", "1.2345678901234568e+29"),
        ("0", "0"),
        ("-0", "-0.0"),
        ("-0.0", "-0.0"),
        ("0.0", "0.0"),
        ("1.0", "1.0"),
        ("1e2", "100.0"),
        ("0.93", "0.93"),
        ("1e15", "1000000000000000.0"),
        ("1e16", "1e+16"),
        ("1.5e16", "1.5e+16"),
        ("1e100", "1e+100"),
        ("0.001", "0.001"),
        ("1e-4", "0.0001"),
        ("1e-5", "0.00001"),
        ("1.25e-5", "0.0000125"),
        ("-2e-5", "-0.00002"),
        ("1e-6", "1e-6"),
        ("-1.5e-7", "-1.5e-7"),
        ("1e-10", "1e-10"),
        ("5e-324", "5e-324"),
        ("1e-400", "0.0"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
    ],
)
def test_numbers_are_rendered_as_rust_prints_them(text: str, rendered: str) -> None:
    """Integers stay integers within i64 and u64; floats are shortest, with signed, unpadded exponents."""
    assert serde.compact(serde.loads(text)) == rendered.encode()
    assert serde.compact(serde.loads(f'{{"a":[{text}]}}')) == f'{{"a":[{rendered}]}}'.encode()


def test_integers_of_an_agent_beyond_u64_become_floats() -> None:
    """A Python integer outside the kernel's range is rendered as the float that the kernel would read."""
    assert serde.compact([2**64, -(2**63) - 1, 2**64 - 1]) == (
        b"[1.8446744073709552e+19,-9.223372036854776e+18,18446744073709551615]"
    )


def test_keys_are_sorted_by_code_point_not_by_utf16() -> None:
    """An astral key sorts after its U+FFFF neighbours, as in UTF-8 byte order."""
    assert serde.compact({"\U0001f600": 1, "\uffee": 2, "b": 3, "a": 4, "B": 5}) == (
        '{"B":5,"a":4,"b":3,"\uffee":2,"\U0001f600":1}'.encode()
    )


@pytest.mark.parametrize("odd", [False, True])
def test_strings_are_escaped_like_serde(odd: bool) -> None:
    """Only quotes, backslashes and control characters are escaped, on the fast and on the exact path."""
    text = '"\\/\x7f\u2028é\b\t\n\f\r\x00\x1f'
    expected = '"\\"\\\\/\x7f\u2028é\\b\\t\\n\\f\\r\\u0000\\u001f"'
    value = {"s": text, "z": 1e-7} if odd else {"s": text}
    tail = ',"z":1e-7}' if odd else "}"
    assert serde.compact(value) == f'{{"s":{expected}{tail}'.encode()


def test_text_resembling_a_special_number_stays_text() -> None:
    """Such a string selects the exact path, which leaves it unchanged."""
    assert serde.compact({"e": "1e-07 12345678901234567890", "k": [None, True, False, {}, []]}) == (
        b'{"e":"1e-07 12345678901234567890","k":[null,true,false,{},[]]}'
    )


def test_digest_matches_the_kernels_vector() -> None:
    """The output of the kernel's own candidate vector gives the kernel's digest and size."""
    output = {"answer": "ok"}
    assert serde.digest(output) == "2b82c37965faf7db40dae134cc94675e0f6dac048a0173a1861b6ed1b8db7d5b"
    assert len(serde.compact(output)) == 15


def test_candidate_hash_is_reproducible() -> None:
    """`response` keeps the key order and reproduces the kernel's candidate hash."""
    candidate = {
        "candidate_id": "c1",
        "execution_id": "e1",
        "output_ref": {
            "uri": "artifact://reference/c1",
            "digest": "sha256:2b82c37965faf7db40dae134cc94675e0f6dac048a0173a1861b6ed1b8db7d5b",
            "size_bytes": 15,
            "mime": "application/json",
            "created_at": 1,
            "producer": "test-producer",
        },
        "evidence_inline": [],
        "evidence_refs": [],
    }
    assert hashlib.sha256(serde.response(candidate)).hexdigest() == (
        "115ef8c392ac409c4e15b99bafa0b683d30e7f03b826136117a6fe4559701d3d"
    )


@pytest.mark.parametrize(
    "text",
    [
        "NaN", "[Infinity]", "-Infinity", "1e400", "-1e400", "1" * 400, '"\\ud800"', '{"\\udc00":1}',
        '"\\ud800x"', "", " ", "{", "[1,]", "01", "1.", ".5", "+1", "{'a':1}", '{"a":1}x', '"\n"',
        "[" * 128 + "]" * 128, "[" * 100_000, '{"a":' * 128 + "1" + "}" * 128, "\ufeff{}",
    ],
)  # fmt: skip
def test_json_refused_by_the_kernel_is_refused(text: str) -> None:
    """NaN, overflow, lone surrogates, deep nesting and plain syntax errors all raise NotJson."""
    for read in (serde.loads, serde.reread):
        with pytest.raises(serde.NotSerdeJson):
            read(text)
        with pytest.raises(serde.NotSerdeJson):
            read(text.encode())


def test_bytes_that_are_not_utf8_are_refused() -> None:
    """Latin-1, UTF-16 and a byte order mark are refused, not guessed at."""
    for raw in (b'"\xe9"', '{"a":1}'.encode("utf-16"), b"\xef\xbb\xbf{}", b'"\xed\xa0\x80"'):
        with pytest.raises(serde.NotSerdeJson):
            serde.loads(raw)


def test_json_accepted_by_the_kernel_is_accepted() -> None:
    """The deepest allowed nesting, paired surrogates, long numbers and repeated keys are read."""
    assert serde.depth(serde.loads("[" * 127 + "]" * 127)) == 127
    assert serde.loads("[" + "[]," * 500 + "[]]") == [[]] * 501
    assert serde.loads('"\\ud83d\\ude00"') == "\U0001f600"
    assert serde.loads('{"a":1,"a":2}') == {"a": 2}
    assert serde.loads("0." + "1" * 10_000) == pytest.approx(1 / 9)
    assert serde.loads("1" + "0" * 308) == 1e308


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf], {"a": math.nan}, "\ud800", {"\udfff": 1}])
def test_answers_contain_no_nan_or_lone_surrogates(value: object) -> None:
    """Both renderings refuse values that would break the reader."""
    for render in (serde.response, serde.compact):
        with pytest.raises(serde.NotSerdeJson):
            render(value)


def test_non_json_values_are_refused() -> None:
    """Bytes, sets, objects and cycles are refused on the fast and on the exact path."""
    circle: list[object] = []
    circle.append(circle)
    for value in (b"x", {1, 2}, object(), circle, [1e-7, b"x"]):
        with pytest.raises(serde.NotSerdeJson):
            serde.compact(value)
        with pytest.raises(serde.NotSerdeJson):
            serde.response(value)


def test_kernel_float_parser_known_inaccuracies() -> None:
    """The known value is read one digit lower by the kernel, and exactly by our parser."""
    assert serde.compact(serde.reread("123456789012345680000")) == b"1.2345678901234567e+20"
    assert serde.compact(serde.loads("123456789012345680000")) == b"1.2345678901234568e+20"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.93", 0.93),
        ("-0", -0.0),
        ("-0.0", -0.0),
        ("1e-5", 1e-5),
        ("5e-324", 5e-324),
        ("1e-99999999999", 0.0),
        ("0e99999999999", 0.0),
        ("-0e99999999999", -0.0),
        ("1e-700", 0.0),
        ("0e400", 0.0),
        ("1e308", 1e308),
        ("0.30000000000000004", 0.30000000000000004),
        ("1" + "0" * 30 + ".5", 1e30),
        ("0." + "0" * 30 + "1", 1e-31),
        ("18446744073709551616.0", 18446744073709551616.0),
    ],
)
def test_kernel_float_parser_reads_ordinary_numbers(text: str, value: float) -> None:
    """Values, signed zeros, underflow and long tails match the kernel."""
    read = serde.reread(text)
    assert read == value
    assert math.copysign(1, read) == math.copysign(1, value)


@pytest.mark.parametrize("text", ["1e309", "1e99999999999", "18e307999", "2e308"])
def test_kernel_float_parser_refuses_overflow(text: str) -> None:
    """A number beyond the float range is refused."""
    with pytest.raises(serde.NotSerdeJson):
        serde.reread(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rendered_float_round_trips(value: float) -> None:
    """The shortest form is lossless, unpadded, and always recognisable as a float."""
    text = serde.float_text(value)
    back = serde.loads(text)
    assert back == value
    assert isinstance(back, float)
    assert "e-0" not in text
    assert "e+0" not in text
    exponent = 0 if value == 0 else int(f"{value:.16e}".partition("e")[2])
    assert ("e" in text) == (exponent < -5 or exponent > 15)


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_kernel_float_parser_is_never_far_off(value: float) -> None:
    """Parsing as the kernel does differs from the exact value in the last digits only."""
    read = serde.reread(serde.float_text(value))
    assert math.isclose(read, value, rel_tol=1e-15)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(_JSON)
def test_compact_rendering_round_trips(value: object) -> None:
    """Any JSON value round-trips; without unusual floats the bytes equal a plain sorted dump."""
    raw = serde.compact(value)
    assert serde.loads(raw) == value
    plain = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    if "e-0" not in plain:
        assert raw == plain.encode()
    assert serde.loads(serde.response(value)) == value


@pytest.mark.parametrize(
    ("raw", "fits"),
    [
        (r'{"a":"\ud800","a":1}', False),
        (r'{"a":{"b":["\udfff"]},"a":1}', False),
        (r'{"\ud800":1,"\ud800":2}', False),
        (r'["\ud83dx"]', False),
        (r'["\ude00\ud83d"]', False),
        (r'["\uD83D\uDE00\ud83d"]', False),
        (r'["\\\ud800"]', False),
        (r'["\uD83D\uDE00"]', True),
        (r'["\\ud800"]', True),
        (r'["\\\\ud800"]', True),
    ],
)
def test_lone_surrogates_are_refused_everywhere(raw: str, fits: bool) -> None:
    """Even in a value that a later duplicate key replaces; an escaped backslash is allowed."""
    if fits:
        assert serde.loads(raw.encode()) == json.loads(raw)
    else:
        with pytest.raises(serde.NotSerdeJson):
            serde.loads(raw.encode())
