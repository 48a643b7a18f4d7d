"""JSON given to a command: in the argument itself, in a file, or on standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from worker.core.canonical import parse
from worker.core.errors import BadRequest


def read_document(text: str, *, name: str) -> Any:
    """Parse JSON from the text itself, from @FILE, or from standard input for `-`."""
    try:
        if text == "-":
            raw = sys.stdin.buffer.read()
        elif text.startswith("@"):
            raw = Path(text[1:]).read_bytes()
        else:
            raw = text.encode()
    except OSError as fault:
        raise BadRequest(
            f"{text[1:]!r} cannot be read", field=name, advice="Name a file that exists."
        ) from fault
    except UnicodeEncodeError as fault:
        raise BadRequest("the text is not UTF-8", field=name) from fault
    try:
        return parse(raw)
    except BadRequest as fault:
        # A command has no body: report the error at the place where the text was given.
        details = {word: fault.details[word] for word in ("expected", "received") if word in fault.details}
        raise BadRequest(fault.message.replace("the body", "the text"), field=name, **details) from fault
