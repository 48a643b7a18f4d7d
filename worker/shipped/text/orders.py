"""Which prompts ask for a plain summary, and nothing but that.

The list is closed on purpose. A prompt that also wants another language, a verdict, a topic or a format is
another task, and a summary would be a wrong answer to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBERS_TEXT = """
one two three four five six seven eight nine ten
"""
_NUMBERS = {word: number for number, word in enumerate(_NUMBERS_TEXT.split(), 1)}
_TEXTS = """
text texts report reports article articles document documents proposal proposals paper papers plan plans
email emails message messages letter letters note notes minutes memo story passage passages paragraph
paragraphs chapter page pages post posts thread discussion conversation meeting transcript speech content
contents essay material input it this that
"""
_NOUN = "|".join(_TEXTS.split())
_WHAT = (
    r"(?:\s+(?:the|this|these|that|those|my|our|all))?"
    r"(?:\s+(?:following|attached|enclosed|given|provided|whole|full|entire|short|long))*"
    rf"(?:\s+(?:{_NOUN}))?"
    r"(?:\s+(?:below|above|attached|here))?"
)
_HOW = r"(?:\s+(?:briefly|shortly|concisely|please|for me))*"
_COUNT = rf"(?P<count>\d{{1,2}}|{'|'.join(_NUMBERS)})"
_LENGTH = rf"(?:\s+in\s+(?:(?:at most|no more than|about)\s+)?(?:a few|{_COUNT})\s+(?:short\s+)?sentences?)?"
_ORDER = re.compile(
    r"\s*(?:(?:please|kindly|briefly)\s+)*"
    r"(?:(?:summari[sz]e|condense|shorten|sum\s+up|give\s+(?:me\s+)?the\s+gist\s+of)"
    r"|(?:(?:give|write|make)\s+(?:me\s+)?)?(?:a|the)?\s*(?:short\s+|brief\s+|concise\s+)*summary(?:\s+of|(?=\s*[.:]))"
    r"|tl;?dr)"
    rf"{_WHAT}{_HOW}{_LENGTH}{_HOW}\s*(?P<end>[.!]?\s*$|[.!:]?\s*\n|:)",
    re.IGNORECASE,
)
_MORE = re.compile(
    r"\?[\"'”’)]*$|(?:^|[.!?:]\s|\n)\s*(?:(?:please|then|now|and|finally)[\s,]+)*"
    r"(?:answer|reply|respond|vote|decide|return|output|translate|choose|pick|classify|rate|score|judge)\b"
    r"[^.!?]*[.!]?$",
    re.IGNORECASE,
)
_CAPABILITIES = frozenset({"brief", "summary", "summarize", "summarise", "summarization", "summarisation"})


@dataclass(frozen=True)
class SummaryOrder:
    """An order to summarise: the text that stands behind it in the prompt, and the sentences wanted."""

    text: str = ""
    sentences: int | None = None


def read(prompt: str) -> SummaryOrder | None:
    """The order in a prompt; None when the prompt asks for anything else."""
    match = _ORDER.match(prompt[:400])
    if match is None:
        return None
    count = (match["count"] or "").lower()
    wanted = _NUMBERS.get(count) or (int(count) if count.isdigit() else None)
    return SummaryOrder(prompt[match.end() :].strip(), wanted or None)


def asks_more(text: str) -> bool:
    """Whether a text ends in a question or a further order: then a summary is not all that is wanted."""
    return _MORE.search(text[-400:].rstrip()) is not None


def named(capability: object) -> SummaryOrder | None:
    """The order in a request from agent to agent, which names a capability instead of having a prompt."""
    return SummaryOrder() if isinstance(capability, str) and capability.lower() in _CAPABILITIES else None
