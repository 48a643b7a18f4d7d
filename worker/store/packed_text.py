"""Text in a short stored form, which gives back every byte of it: known words become one character each.

The characters are control characters, which JSON never contains unescaped. The word of a character never
changes, because stores keep texts for years.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Begins every packed text; no JSON does.
PACKED = "\x01"
# Characters from here on stand for words that many texts have, those before for a text's own.
_COMMON = 0x0B
_FIRST_PRINTABLE = 0x20
_CONTROL = re.compile(r"[\x00-\x1f]")

Words = Mapping[str, str]


def common_words(*words: str) -> dict[str, str]:
    """The words of one kind of text, by their characters; a word comes before any that is part of it."""
    if len(words) > _FIRST_PRINTABLE - _COMMON:
        raise ValueError("more words than control characters")
    return {chr(_COMMON + at): word for at, word in enumerate(words)}


def pack(text: str, own: Words, common: Words) -> str:
    # Printable text needs no search, and most is.
    if not text.isprintable() and _CONTROL.search(text):
        return text
    for char, word in (*own.items(), *common.items()):
        if word:
            text = text.replace(word, char)
    return PACKED + text


def unpack(text: str, own: Words, common: Words) -> str:
    """Also of a text that was stored in full."""
    if not text.startswith(PACKED):
        return text
    words = {**common, **own}
    return _CONTROL.sub(lambda found: words.get(found[0], found[0]), text[1:])
