"""Which name a logo is for: read from a brief written in free words."""

from __future__ import annotations

import re
import unicodedata

MAX_NAME = 26
MAX_WORDS = 3
FALLBACK = "Logo"

_SUFFIXES_TEXT = """
inc incorporated ltd limited llc gmbh corp corporation co company ag sa bv plc
"""
_SUFFIXES = frozenset(_SUFFIXES_TEXT.split())
_ASIDE_TEXT = """
a an and any are as at be brand by called can company create design draw for from give i identity in
is it just like logo logotype logos looking make mark me minimal minimalist minimalistic modern my
named need new of on or our please product project simple something startup that the their this to
us want we wordmark with you your build bold clean elegant flat fresh playful professional based
using use colors colours
"""
_ASIDE = frozenset(_ASIDE_TEXT.split())
_QUOTED = re.compile(r"[\"“”«»„](.{1,40}?)[\"“”«»]|(?<!\w)['‘](\w.{0,38}?)['’](?!\w)")
_LEAD = re.compile(r"\b(?:called|named|titled|for|of|by)\s+(?=\S)", re.IGNORECASE)
_WORD = re.compile(r"[^\W_][\w&.'’+-]*|&(?= )")
_CAMEL = re.compile(r"[^\W\d_]?[^\WA-Z_]+|[A-Z]+(?![a-z])|\d+")


def clean(text: str) -> str:
    """The text without control, format, private and unpaired characters, on one line."""
    kept = (" " if unicodedata.category(c)[0] in "CZ" else c for c in unicodedata.normalize("NFC", text))
    return " ".join("".join(kept).split())


def brand_name(brief: str) -> str:
    """The name in a brief: what is quoted, else what is capitalised after "for", else its first real word."""
    text = clean(brief)
    for match in _QUOTED.finditer(text):
        name = _trim(_WORD.findall(match.group(1) or match.group(2) or ""))
        if name:
            return name
    for match in _LEAD.finditer(text):
        name = _trim(_capitalised(text[match.end() :]))
        if name:
            return name
    words = _WORD.findall(text)
    for index, word in enumerate(words):
        if word[0].isupper() and word.lower() not in _ASIDE:
            return _trim(_capitalised(" ".join(words[index:]))) or FALLBACK
    for match in _LEAD.finditer(text):
        name = _trim(_real(_WORD.findall(text[match.end() :])[:4])[:2])
        if name:
            return name
    return _trim(_real(words)[:1]) or _trim(words[:1]) or FALLBACK


def initials(name: str) -> str:
    """One or two capitals: of the words, else of the humps of a single word."""
    words = name.split()
    parts = words if len(words) > 1 else humps(name)
    letters = [part[0].upper()[:1] for part in parts if part[0].isalnum()]
    return "".join(letters[:2]) or name[:1].upper()


def humps(word: str) -> list[str]:
    """`TechStartup` as `Tech`, `Startup`; the parts always join to the word again."""
    parts: list[str] = []
    end = 0
    for match in _CAMEL.finditer(word):
        parts.append(word[end : match.end()])
        end = match.end()
    if end < len(word):
        parts.append(word[end:])
    return parts or [word]


def lines(name: str) -> list[str]:
    """The name on one line, or on two when it has several words and is long."""
    words = name.split()
    if len(words) < 2 or len(name) <= 12:
        return [name]
    cut = min(range(1, len(words)), key=lambda i: max(len(" ".join(words[:i])), len(" ".join(words[i:]))))
    return [" ".join(words[:cut]), " ".join(words[cut:])]


def _capitalised(text: str) -> list[str]:
    """The run of capitalised words at the start, past one article or describing word."""
    run: list[str] = []
    skipped = 0
    for match in _WORD.finditer(text):
        word = match.group()
        gap = text[: match.start()].rstrip()[-1:] if run else ""
        if run and gap in {",", ";", ":", "(", "."}:
            break
        if (run and word == "&") or (
            (word[0].isupper() or word[0].isdigit()) and (run or word.lower() not in _ASIDE)
        ):
            run.append(word)
        elif run or skipped >= 2:
            break
        else:
            skipped += 1
    return run


def _real(words: list[str]) -> list[str]:
    return [word for word in words if word.lower() not in _ASIDE and len(word) > 1]


def _trim(words: list[str]) -> str:
    """At most three words and 26 characters, without the company's legal form."""
    words = [word if word == "&" else word.strip(".'’-+&") for word in words]
    words = [word for word in words if word]
    while words and words[0] == "&":
        del words[0]
    kept = words[: MAX_WORDS + ("&" in words)]
    while len(kept) > 1 and len(" ".join(kept)) > MAX_NAME:
        kept.pop()
    while len(kept) > 1 and (kept[-1] == "&" or kept[-1].lower() in _SUFFIXES | _ASIDE):
        kept.pop()
    return " ".join(kept)[:MAX_NAME].rstrip()
