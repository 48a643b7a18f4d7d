"""How a stored file is answered over HTTP: status, headers and which bytes. Pure; sends nothing.

One file is one immutable representation, so its sha256 is the strong entity tag. Headers that a
request may carry but that cannot apply are ignored, as RFC 9110 asks.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from worker.delivery.filewriter import FileRef
from worker.delivery.names import content_disposition

_TAG = re.compile(r'(?:W/)?"[!#-~\x80-\xff]*"')
_SPEC = re.compile(r"([0-9]*)-([0-9]*)")


@dataclass(frozen=True)
class Reply:
    """What to answer. `span` is the half-open range of bytes to send; None means no body."""

    status: int
    headers: dict[str, str]
    span: tuple[int, int] | None


def reply_for(ref: FileRef, method: str, headers: Mapping[str, str]) -> Reply:
    """Decide the answer to one request for one file that the caller may have."""
    asked = {name.lower(): value for name, value in headers.items()}
    if method not in ("GET", "HEAD"):
        return Reply(405, {"Allow": "GET, HEAD", "Content-Length": "0"}, None)
    tag = f'"{ref.sha256}"'
    common = {
        "ETag": tag,
        "Cache-Control": "private, max-age=3600",
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox",
        # The address is the credential: it must not travel on in a Referer.
        "Referrer-Policy": "no-referrer",
    }
    if "if-match" in asked and not _matches(asked["if-match"], tag, weak=False):
        return Reply(412, common | {"Content-Length": "0"}, None)
    if "if-none-match" in asked and _matches(asked["if-none-match"], tag, weak=True):
        return Reply(304, common, None)
    described = common | {
        "Content-Type": ref.mime,
        "Content-Disposition": content_disposition(ref.name),
        "Repr-Digest": repr_digest(ref.sha256),
    }
    # A Range counts for GET only, and not when If-Range names another version (or a date: we give none).
    fresh = "if-range" not in asked or asked["if-range"].strip() == tag
    wanted = parse_range(asked["range"], ref.size) if method == "GET" and "range" in asked and fresh else None
    if wanted == "unsatisfiable":
        return Reply(416, common | {"Content-Range": f"bytes */{ref.size}", "Content-Length": "0"}, None)
    if wanted is None:
        whole = (0, ref.size) if method == "GET" else None
        return Reply(200, described | {"Content-Length": str(ref.size)}, whole)
    start, end = wanted
    partial = {"Content-Range": f"bytes {start}-{end - 1}/{ref.size}", "Content-Length": str(end - start)}
    return Reply(206, described | partial, wanted)


def parse_range(text: str, size: int) -> tuple[int, int] | Literal["unsatisfiable"] | None:
    """Half-open range for a Range header; None where the header is to be ignored.

    Several ranges in one request are ignored too: the whole file is a correct answer, and cheaper.
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
    """The digest as RFC 9530 writes it, from 64 hex digits."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"


def _matches(text: str, tag: str, *, weak: bool) -> bool:
    if text.strip() == "*":
        return True
    tags = _TAG.findall(text)
    if _TAG.sub("", text).strip(" \t,"):
        return False
    return tag in (each.removeprefix("W/") if weak else each for each in tags)


def _number(digits: str) -> int:
    """A position; whatever is longer than any file becomes a number beyond every file."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= 18 else 10**18
