"""Items of a connection's mailbox: a message ready to send, or a reference to its stored content.

Scripts write references, `@kind execution about`, and messages encoded in Python.
"""

from __future__ import annotations

from dataclasses import dataclass

_REFERENCE = b"@"


@dataclass(frozen=True, slots=True)
class MailReference:
    """A message that is read from storage when sent; `about` is a session, a step or a sequence."""

    kind: str
    execution_id: str
    about: str


def message_item(kind: str, body: bytes) -> bytes:
    return kind.encode() + b" " + body


def read_item(item: bytes) -> tuple[str, bytes] | MailReference:
    """Parses an item into the (kind, body) of a message or a reference."""
    if not item.startswith(_REFERENCE):
        kind, _, body = item.partition(b" ")
        return kind.decode(), body
    return MailReference(*item.removeprefix(_REFERENCE).decode().split(" "))
