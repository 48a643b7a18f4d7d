"""Whole HTTP requests, and a file of them, each behind its length in four bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def pack(requests: Iterable[bytes], file: Path) -> Path:
    file.write_bytes(b"".join(len(each).to_bytes(4, "big") + each for each in requests))
    return file


def unpack(file: Path) -> list[bytes]:
    content, found, at = file.read_bytes(), [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        found.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return found
