"""Rules about lines and comments as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

from worker.shipped.review.rules import rule
from worker.shipped.review.source import SourceCode, short

Hits = Iterator[tuple[int, str]]

MAX_WIDTH = 120

_NOTE = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b[:\s]*(.*)")


@rule("long-line", "info", "style")
def long_line(source: SourceCode) -> Hits:
    for number, line in enumerate(source.lines, 1):
        if len(line) > MAX_WIDTH and " " in line.strip():
            yield number, f"{len(line)} characters wide, over {MAX_WIDTH}"


@rule("open-note", "info", "style")
def open_note(source: SourceCode) -> Hits:
    for line, comment in source.comments:
        match = _NOTE.search(comment[:500])
        if match:
            yield line, f"an open note: {short((match.group(1) + ' ' + match.group(2)).strip())}"


@rule("mixed-indent", "info", "style")
def mixed_indent(source: SourceCode) -> Hits:
    indents = [(n, line[: len(line) - len(line.lstrip(" \t"))]) for n, line in enumerate(source.lines, 1)]
    tabbed = [n for n, indent in indents if "\t" in indent]
    if tabbed and any(indent and "\t" not in indent for _, indent in indents):
        yield tabbed[0], "some lines are indented with tabs, others with spaces"
