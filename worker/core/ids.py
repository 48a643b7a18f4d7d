"""Identifiers: UUIDv7 for objects, and event ids derived from the event's position in its log."""

from __future__ import annotations

import hashlib
import os
import re
import time

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    """Returns a UUIDv7: sorts by time, has 74 random bits."""
    return _uuid7(time.time_ns() // 1_000_000, int.from_bytes(os.urandom(10), "big"))


def session_id(epoch: str) -> str:
    """Returns a new id with the same ending as the connection's epoch, so that the epoch can be found."""
    return new_id()[:24] + epoch[24:]


def event_id(execution_id: str, sequence: int) -> str:
    """Returns an event's UUIDv7. Derived from its position, so it sorts like it and need not be stored."""
    seed = hashlib.blake2b(f"{execution_id}:{sequence}".encode(), digest_size=8).digest()
    random = sequence << 58 | int.from_bytes(seed, "big") >> 6
    return _uuid7(int(execution_id[:8] + execution_id[9:13], 16), random)


def is_id(text: str) -> bool:
    return bool(_UUID.fullmatch(text))


def _uuid7(ms: int, random: int) -> str:
    value = (ms & (2**48 - 1)) << 80
    value |= 0x7 << 76 | (random >> 62 & 0xFFF) << 64
    value |= 0b10 << 62 | (random & (2**62 - 1))
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
