"""Text taken apart: the pieces of an input that are prose, their sentences, and the words that count."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_TEXT = 200_000
MAX_DEPTH = 8
MAX_SENTENCE = 600

_STOP_TEXT = """
a about above after again against all also am an and any are as at be because been before being
below between both but by can cannot could did do does doing down during each either else etc few
for from further get had has have having he her here hers him his how however i if in into is it its
itself just least less let like made make many may me might more most much must my near neither no
nor not of off often on once one only or other our ours out over own per please same shall she
should since so some such than that the their theirs them then there these they this those through
thus to too under until up upon us use very was we were what when where which while who whom whose
why will with within without would yes yet you your yours der die das und oder ist ein eine nicht
mit von zu auf für im den dem des sich als auch es an werden aus er le la les un une des et ou est
dans que qui pour pas sur au du ce cette avec par plus ne se el los las y en es por con para una del
lo como
"""
_STOP = frozenset(_STOP_TEXT.split())
_ABBREVIATIONS_TEXT = """
mr mrs ms dr prof st vs e.g i.e etc inc ltd co corp no fig al approx dept est u.s
"""
_ABBREVIATIONS = frozenset(_ABBREVIATIONS_TEXT.split())
_END = re.compile(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*\s+|[。！？]+|\n\s*\n|\n(?=\s*(?:[-*•#]|\d+[.)])\s)")
_BULLET = re.compile(r"^\s*(?:[-*•#>]+|\d+[.)])\s+")
_ENGLISH_TEXT = """
the of and to in a is that for it was on are with as by be this has were will not from at have or an but which
their its they we would
"""
_ENGLISH = frozenset(_ENGLISH_TEXT.split())
_ENGLISH_SHARE = 0.12
_LETTERS = re.compile(r"[^\W\d_]+")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_WIDE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Sentence:
    text: str
    words: tuple[str, ...]
    place: int


def split(text: str) -> list[Sentence]:
    """Sentences in order; headings and list items stand for themselves, overlong ones are cut at a word."""
    found: list[Sentence] = []
    for piece in _pieces(text[:MAX_TEXT]):
        plain = _SPACES.sub(" ", _BULLET.sub("", piece)).strip()
        if len(plain) > MAX_SENTENCE:
            plain = cut(plain, MAX_SENTENCE)
        counted = tuple(words(plain))
        if plain and (counted or len(plain) > 1):
            found.append(Sentence(plain, counted, len(found)))
    return found


def words(text: str) -> Iterator[str]:
    """Words that carry meaning, folded; scripts without spaces count by pairs of characters."""
    for match in _WORD.finditer(text.lower()):
        word = match.group()
        if _WIDE.search(word):
            yield from (word[i : i + 2] for i in range(max(1, len(word) - 1)))
        elif word not in _STOP and (len(word) > 2 or word.isdigit()):
            yield _stem(word)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters, ended at a word with an ellipsis where something is left out."""
    if len(text) <= limit:
        return text
    if limit <= 1:
        return text[: max(limit, 0)]
    kept = text[: limit - 1]
    space = kept.rfind(" ")
    return (kept[:space] if space > limit // 2 else kept).rstrip(" ,;:-") + "…"


def prose(value: Any) -> list[str]:
    """Strings anywhere in a JSON value that read like text: at least two words, or long in a wide script.

    Ids, addresses, hashes and links have no spaces and fall out; keys that begin with `_` are the kernel's.
    """
    found: list[str] = []
    queue: deque[tuple[Any, int]] = deque([(value, 0)])
    while queue:
        item, depth = queue.popleft()
        if isinstance(item, str):
            text = item.encode("utf-8", "ignore").decode().replace("\0", "").strip()
            if len(text.split(maxsplit=1)) > 1 or len(_WIDE.findall(text[:100])) > 3:
                found.append(text[:MAX_TEXT])
        elif depth < MAX_DEPTH and isinstance(item, dict):
            queue += [(v, depth + 1) for k, v in item.items() if not str(k).startswith("_")]
        elif depth < MAX_DEPTH and isinstance(item, list):
            queue += [(v, depth + 1) for v in item]
    return found


def english(text: str) -> bool:
    """Whether a text reads like English, by the share of its small words."""
    found = _LETTERS.findall(text[:20_000].lower())
    small = [word for word in found if word in _ENGLISH]
    return bool({"the", "and", "of"} & set(small)) and len(small) >= _ENGLISH_SHARE * len(found)


def _pieces(text: str) -> Iterator[str]:
    """Cut at sentence ends, but not after an abbreviation or a single initial."""
    start = 0
    for match in _END.finditer(text):
        before = text[max(start, match.start() - 12) : match.start()].rsplit(None, 1)
        last = before[-1].lower().lstrip("(\"'") if before else ""
        if text[match.start()] == "." and (last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha())):
            continue
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _stem(word: str) -> str:
    """Enough stemming to bring plural and singular together."""
    word = word.split("'")[0].split("’")[0]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word
