"""HTTP answer for a stored file: status, headers and byte range. Pure; sends nothing.

A file is one immutable representation, so its sha256 is the strong ETag. Request headers that do not
apply are ignored, per RFC 9110.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from worker.files.names import content_disposition
from worker.files.writer import FileRef

_TAG = re.compile(r'(?:W/)?"[!#-~\x80-\xff]*"')
_SPEC = re.compile(r"([0-9]*)-([0-9]*)")


@dataclass(frozen=True)
class FileAnswer:
    """The answer. `span` is the half-open range of bytes to send; None means no body."""

    status: int
    headers: dict[str, str]
    span: tuple[int, int] | None


def reply_for(ref: FileRef, method: str, headers: Mapping[str, str]) -> FileAnswer:
    """Build the answer to a request for a file that the caller may read."""
    asked = {name.lower(): value for name, value in headers.items()}
    if method not in ("GET", "HEAD"):
        return FileAnswer(405, {"Allow": "GET, HEAD", "Content-Length": "0"}, None)
    tag = f'"{ref.sha256}"'
    common = {
        "ETag": tag,
        "Cache-Control": "private, max-age=3600",
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        # The URL is the credential, so it must not leak in a Referer.
        "Referrer-Policy": "no-referrer",
    }
    if "if-match" in asked and not _matches(asked["if-match"], tag, weak=False):
        return FileAnswer(412, common | {"Content-Length": "0"}, None)
    if "if-none-match" in asked and _matches(asked["if-none-match"], tag, weak=True):
        return FileAnswer(304, common, None)
    described = common | {
        "Content-Type": ref.mime,
        "Content-Disposition": content_disposition(ref.name),
        "Repr-Digest": repr_digest(ref.sha256),
    }
    # Range applies to GET only, and not if If-Range names another version (or a date: we send none).
    fresh = "if-range" not in asked or asked["if-range"].strip() == tag
    wanted = parse_range(asked["range"], ref.size) if method == "GET" and "range" in asked and fresh else None
    if wanted == "unsatisfiable":
        return FileAnswer(416, common | {"Content-Range": f"bytes */{ref.size}", "Content-Length": "0"}, None)
    if wanted is None:
        whole = (0, ref.size) if method == "GET" else None
        return FileAnswer(200, described | {"Content-Length": str(ref.size)}, whole)
    start, end = wanted
    partial = {"Content-Range": f"bytes {start}-{end - 1}/{ref.size}", "Content-Length": str(end - start)}
    return FileAnswer(206, described | partial, wanted)


def parse_range(text: str, size: int) -> tuple[int, int] | Literal["unsatisfiable"] | None:
    """Half-open range for a Range header; None if the header must be ignored.

    Multiple ranges are ignored too: the whole file is a correct answer, and cheaper.
    """
    unit, equals, rest = text.partition("=")
    specs = [spec.strip(" \t") for spec in rest.split(",") if spec.strip(" \t")]
    if unit.strip(" \t").lower() != "bytes" or not equals or len(specs) != 1:
        return None
    found = _SPEC.fullmatch(specs[0])
    if found is None or found.group() == "-":
        return None
    first, last = found.groups()
    if not first:
        length = min(_number(last), size)
        if size == 0 and _number(last) > 0:
            return None
        return (size - length, size) if length else "unsatisfiable"
    start, stop = _number(first), _number(last) if last else size
    if last and stop < start:
        return None
    return (start, min(stop + 1, size)) if start < size else "unsatisfiable"


def repr_digest(sha256: str) -> str:
    """The RFC 9530 form of a digest given as 64 hex digits."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def _matches(text: str, tag: str, *, weak: bool) -> bool:
    if text.strip() == "*":
        return True
    tags = _TAG.findall(text)
    if _TAG.sub("", text).strip(" \t,"):
        return False
    return tag in (each.removeprefix("W/") if weak else each for each in tags)


def _number(digits: str) -> int:
    """A byte position; very long numbers become one beyond the end of any file."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 18 else 10**18
