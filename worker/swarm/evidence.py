"""Evidence beside a candidate: inline pieces and references, cut or converted to what a kernel accepts.

A kernel rejects the whole candidate for one bad piece, and never reports the reason to us. So whatever cannot
be made acceptable is dropped, with a note in our own log.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from worker.swarm import serde
from worker.swarm.wire import ArtifactRef, InlineEvidence, TaskContract

# A kernel's limit for the stored event: ids, the output's reference, inline pieces, references; no output.
MAX_EVENT_BYTES = 131_072
# What the event holds besides evidence: an envelope, node ids, the output's reference.
EVENT_RESERVE = 4096
# Share for references, so that a long list still leaves room for inline evidence.
MAX_REFS_BYTES = 98_304

_JSON = "application/json"
_TEXT = "text/plain"
_MEDIA = ("image/", "video/", "audio/")
_CUT_MARK = "\n[cut]"
_REMOVED = "[media removed]"
_DATA_URI = re.compile(r"data:(?:image|video|audio)/[^\s\"'<>()\\]*", re.IGNORECASE)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]{64,}")
_URL_SAFE = str.maketrans("-_", "+/")
_MAGIC = (
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"\x1aE\xdf\xa3", b"OggS", b"fLaC", b"ID3",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CandidateEvidence:
    """The evidence to send, and what was changed or dropped."""

    inline: tuple[InlineEvidence, ...]
    refs: tuple[ArtifactRef, ...]
    notes: tuple[str, ...]


def prepare(
    pieces: Sequence[InlineEvidence],
    refs: Iterable[ArtifactRef],
    contract: TaskContract,
    ids: Sequence[str] = (),
) -> CandidateEvidence:
    """Make evidence acceptable under the contract. `ids` are the request's ids, which the event repeats."""
    notes: list[str] = []
    room = MAX_EVENT_BYTES - EVENT_RESERVE - sum(3 * _size(text) for text in ids)
    kept_refs: list[ArtifactRef] = []
    refs_room = min(room, MAX_REFS_BYTES)
    for ref in refs:
        why = _ref_refusal(ref)
        size = 0 if why else _size(asdict(ref)) + 1
        if why is None and contract.max_refs is not None and len(kept_refs) >= contract.max_refs:
            why = "over the task's verify budget"
        if why is None and size > refs_room:
            why = "no room in the event"
        if why is not None:
            notes.append(f"reference left out: {why}")
            continue
        kept_refs.append(ref)
        refs_room -= size
        room -= size
    inline: list[InlineEvidence] = []
    for piece in pieces:
        fitted, note = _fit(piece, contract, room)
        if note:
            notes.append(note)
        if fitted is not None:
            inline.append(fitted)
            room -= _size(asdict(fitted)) + 1
    return CandidateEvidence(tuple(inline), tuple(kept_refs), tuple(notes))


def without_media(content: str) -> str:
    """The text with every run of media replaced by a remark."""
    text = _DATA_URI.sub(_REMOVED, content)
    return _RUN.sub(lambda match: _REMOVED if _is_media(match.group()) else match.group(), text)


def cut(content: str, limit: int) -> str:
    """Cut to at most `limit` UTF-8 bytes, at a character boundary, with a mark where text was cut."""
    data = content.encode()
    if len(data) <= limit:
        return content
    mark = _CUT_MARK if limit > 4 * len(_CUT_MARK) else ""
    return data[: max(0, limit - len(mark))].decode("utf-8", "ignore") + mark


def _fit(
    piece: InlineEvidence, contract: TaskContract, room: int
) -> tuple[InlineEvidence | None, str | None]:
    content = piece.content.encode("utf-8", "replace").decode()
    clean = without_media(content)
    mime = _mime_for(piece.mime, clean, contract.mimes)
    if mime is None:
        return None, f"inline piece left out: no accepted type for {piece.mime[:60]!r}"
    fitted = _shrink(mime, clean, contract, room)
    if fitted is None:
        return None, "inline piece left out: no room"
    changes = []
    if clean != content:
        changes.append("media removed")
    if fitted.mime != piece.mime:
        changes.append(f"type {piece.mime[:60]!r} sent as {fitted.mime!r}")
    if fitted.content != clean:
        changes.append("cut")
    return fitted, f"inline piece changed: {', '.join(changes)}" if changes else None


def _shrink(mime: str, content: str, contract: TaskContract, room: int) -> InlineEvidence | None:
    limit = contract.max_inline_bytes
    whole = InlineEvidence(mime, content)
    if len(content.encode()) <= limit and _size(asdict(whole)) < room:
        return whole
    # Truncated JSON is no longer JSON.
    text_mime = _plain(contract.mimes) if mime == _JSON else mime
    if text_mime is None:
        return None
    limit = min(limit, room)
    while limit >= 64:
        piece = InlineEvidence(text_mime, cut(content, limit))
        size = _size(asdict(piece))
        if size < room:
            return piece
        # Escapes make the event's text longer than the content.
        limit = min(limit - 1, limit * room // size)
    return None


def _mime_for(mime: str, content: str, allowed: Sequence[str]) -> str | None:
    """The allowed type to send, byte for byte as in the allowlist; None for media and binary types."""
    base = mime.partition(";")[0].strip().lower()
    if base.startswith(_MEDIA):
        return None
    wanted = _JSON if base.endswith("+json") else base
    if wanted == _JSON and not _is_json(content):
        wanted = _TEXT
    if mime in allowed and mime != _JSON:
        return mime
    if wanted in allowed and not wanted.startswith(_MEDIA):
        return wanted
    if wanted == _JSON or wanted.startswith("text/"):
        return _plain(allowed)
    return None


def _plain(allowed: Sequence[str]) -> str | None:
    if _TEXT in allowed:
        return _TEXT
    return next((mime for mime in allowed if mime.startswith("text/")), None)


def _is_json(content: str) -> bool:
    try:
        serde.reread(content)
    except serde.NotSerdeJson:
        return False
    return True


def _ref_refusal(ref: ArtifactRef) -> str | None:
    try:
        serde.response(asdict(ref))
    except serde.NotSerdeJson:
        return "not JSON"
    if not ref.digest.strip():
        return "blank digest"
    counts = (ref.size_bytes, ref.created_at)
    if not all(serde.is_integer(value) and value >= 0 for value in counts):
        return "size and time must be whole numbers, zero or more"
    return None


def _is_media(run: str) -> bool:
    # Checks the first bytes only: broader than the kernel's test, which also needs the whole run to decode.
    head = run[:24].translate(_URL_SAFE)
    if "=" in head:
        return False
    data = base64.b64decode(head)
    riff = data[:4] == b"RIFF" and data[8:12] in (b"WAVE", b"WEBP", b"AVI ")
    return data.startswith(_MAGIC) or riff or data[4:8] == b"ftyp"


def _size(value: object) -> int:
    return len(serde.compact(value))
