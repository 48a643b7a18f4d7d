"""Contract ids: generates unguessable ids and estimates the entropy of a seeker's id.

Anyone who knows a contract's id can read its result, so short or sequential ids are refused at signing.
Nothing can prove that text is random. The estimate is an upper bound: it catches ids that are short,
repeat few characters, count up, or consist of words, and accepts anything that looks random.
"""

from __future__ import annotations

import math
import re
import secrets

ENOUGH_BITS = 64

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
# 26 characters from an alphabet of 36 carry 134 bits.
_LENGTH = 26
_ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,128}")
_WORD = re.compile(r"[a-z]{1,14}|[A-Z][a-z]{0,13}|[A-Z]{1,14}")
_BITS_OF_A_WORD_LETTER = 1.5
# A number below twenty digits is often a timestamp or a counter, so most of it is known.
_BITS_OF_A_NUMBER = 32.0
_BITS_OF_A_DIGIT = math.log2(10)
_BITS_OF_A_DISTINCT_CHARACTER = 10.0
# Shorter runs such as 789 or aaa occur in random text too.
_RUN = 5


def new_contract_id() -> str:
    """Generates an id that also matches the strict pattern `ctr_[a-z0-9]+`."""
    return "ctr_" + "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))


def is_contract_id(text: str) -> bool:
    """Whether the text is allowed in X-Contract-ID."""
    return _ACCEPTED.fullmatch(text) is not None


def estimated_bits(contract_id: str) -> int:
    """Upper bound for the id's entropy in bits; never a proof of randomness."""
    segments = [part for part in re.split(r"[-_]", contract_id.removeprefix("ctr_")) if part]
    characters = "".join(segments)
    per_character = _bits_per_character(characters)
    bits = 0.0
    for segment in segments:
        left = _without_runs(segment)
        if _WORD.fullmatch(segment):
            bits += left * _BITS_OF_A_WORD_LETTER
        elif segment.isdigit() and len(segment) < 20:
            bits += min(left * _BITS_OF_A_DIGIT, _BITS_OF_A_NUMBER)
        else:
            bits += left * per_character
    return int(min(bits, len(set(characters)) * _BITS_OF_A_DISTINCT_CHARACTER))


def _bits_per_character(characters: str) -> float:
    """Bits for the smallest matching alphabet: digits, hex, one case with digits, both cases with digits."""
    if characters.isdigit():
        return _BITS_OF_A_DIGIT
    if re.fullmatch(r"[0-9a-f]*|[0-9A-F]*", characters):
        return 4.0
    if characters in (characters.lower(), characters.upper()):
        return math.log2(36)
    return math.log2(62)


def _without_runs(segment: str) -> int:
    """Number of characters when runs such as aaaaa, 12345 and edcba count as one."""
    length, run, last_step = len(segment), 1, None
    for before, after in zip(segment, segment[1:], strict=False):
        step = ord(after) - ord(before)
        run = run + 1 if step == last_step and abs(step) <= 1 else 2 if abs(step) <= 1 else 1
        last_step = step
        if run == _RUN:
            length -= _RUN - 1
        elif run > _RUN:
            length -= 1
    return length
