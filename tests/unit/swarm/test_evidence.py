"""Evidence sent with a candidate, against an independent statement of what a kernel accepts."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.swarm import evidence
from worker.swarm.evidence import prepare
from worker.swarm.wire import DEFAULT_MIMES, ArtifactRef, InlineEvidence, TaskContract

CONTRACT = TaskContract(
    raw={},
    output_schema={},
    time_ms=None,
    expiry_ms=None,
    policy_hash=None,
    max_refs=447,
    max_inline_bytes=65536,
    mimes=DEFAULT_MIMES,
)
REF = ArtifactRef("https://w.example/f/1", "sha256:" + "ab" * 32, 10, "text/plain", 1, "family/model")
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()


def kernel_sees_media(content: str) -> bool:
    """The kernel's media test: data URIs, and runs of 64 or more that decode to a media header."""
    lowered = content.lower()
    if any(f"data:{kind}/" in lowered for kind in ("image", "video", "audio")):
        return True
    for run in re.findall(r"[A-Za-z0-9+/_=-]{64,}", content):
        for altchars in (None, b"-_"):
            for padded in (run, run + "=" * (-len(run) % 4)):
                try:
                    data = base64.b64decode(padded, altchars=altchars, validate=True)
                except (binascii.Error, ValueError):
                    continue
                heads = (
                    b"\x89PNG\r\n\x1a\n",
                    b"\xff\xd8\xff",
                    b"GIF87a",
                    b"GIF89a",
                    b"\x1aE\xdf\xa3",
                    b"OggS",
                )
                if data.startswith((*heads, b"fLaC", b"ID3")) or data[4:8] == b"ftyp":
                    return True
                if data.startswith(b"RIFF") and data[8:12] in (b"WAVE", b"WEBP", b"AVI "):
                    return True
    return False


def kernel_accepts(piece: InlineEvidence, mimes: Sequence[str], limit: int) -> bool:
    if piece.mime.startswith(("image/", "video/", "audio/")) or piece.mime not in mimes:
        return False
    if len(piece.content.encode()) > limit or kernel_sees_media(piece.content):
        return False
    if piece.mime == "application/json":
        try:
            json.loads(piece.content, parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            return False
    return True


def event_size(result: evidence.CandidateEvidence) -> int:
    items = [asdict(item) for item in (*result.inline, *result.refs)]
    return len(json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()) - 2


def only(mime: str, content: str, contract: TaskContract = CONTRACT) -> InlineEvidence:
    [piece] = prepare([InlineEvidence(mime, content)], [], contract).inline
    return piece


@pytest.mark.parametrize("mime", DEFAULT_MIMES)
def test_valid_evidence_is_unchanged(mime: str) -> None:
    """Evidence that a kernel accepts is sent unchanged, without a note."""
    piece = InlineEvidence(mime, '{"a": 1}')
    assert prepare([piece], [REF], CONTRACT) == evidence.CandidateEvidence((piece,), (REF,), ())


@pytest.mark.parametrize(
    ("mime", "content", "sent"),
    [
        ("text/plain; charset=utf-8", "x", "text/plain"),
        ("TEXT/Plain", "x", "text/plain"),
        ("application/json;charset=utf-8", "{}", "application/json"),
        ("application/ld+json", "{}", "application/json"),
        ("application/json", "{not json", "text/plain"),
        ("application/json", '{"a":NaN}', "text/plain"),
        ("application/json", "1e400", "text/plain"),
        ("application/json", "", "text/plain"),
        ("application/json", '"\\ud800"', "text/plain"),
        ("text/html", "<p>", "text/plain"),
        ("text/csv; header=present", "a,b", "text/csv"),
    ],
)
def test_media_types_are_normalised(mime: str, content: str, sent: str) -> None:
    """Parameters, case and JSON or text variants are normalised; JSON that does not parse is sent as text."""
    assert only(mime, content) == InlineEvidence(sent, content)


@pytest.mark.parametrize(
    "mime", ["image/png", "IMAGE/PNG", "video/mp4", "audio/ogg", "application/pdf", "", "x"]
)
def test_binary_types_are_dropped_with_a_note(mime: str) -> None:
    """Even an allowlist that contains an image type does not permit it."""
    allowing = replace(CONTRACT, mimes=(*DEFAULT_MIMES, "image/png", "IMAGE/PNG"))
    result = prepare([InlineEvidence(mime, "x")], [], allowing)
    assert result.inline == ()
    assert len(result.notes) == 1


def test_contract_allowlist_is_applied() -> None:
    """Another type passes if listed; otherwise another text type replaces text/plain, or none."""
    pdf = replace(CONTRACT, mimes=("application/pdf", "text/markdown"))
    assert only("application/pdf", "x", pdf).mime == "application/pdf"
    assert only("text/plain", "x", pdf).mime == "text/markdown"
    assert only("application/json", "{}", pdf).mime == "text/markdown"
    assert prepare([InlineEvidence("text/plain", "x")], [], replace(CONTRACT, mimes=())).inline == ()


def test_the_byte_limit_is_exact_and_cuts_whole_characters() -> None:
    """65536 bytes pass; longer text is cut at a character boundary and marked."""
    assert only("text/plain", "x" * 65536).content == "x" * 65536
    for text in ("x" * 65537, "é" * 40000, "\U0001f600" * 20000, "a" + "€" * 30000):
        piece = only("text/plain", text)
        assert 65500 < len(piece.content.encode()) <= 65536
        assert piece.content.endswith("\n[cut]")
        assert text.startswith(piece.content.removesuffix("\n[cut]"))


def test_truncated_json_becomes_text() -> None:
    """Truncated JSON would not parse, so it is sent as text or not at all."""
    content = json.dumps(["x" * 70000])
    assert only("application/json", content).mime == "text/plain"
    json_only = replace(CONTRACT, mimes=("application/json",))
    assert prepare([InlineEvidence("application/json", content)], [], json_only).inline == ()


@pytest.mark.parametrize(
    "media",
    [
        "data:image/png;base64,AAAA",
        "DATA:Image/svg+xml,<svg>",
        "data:video/mp4;x",
        "data:audio/",
        PNG,
        PNG.rstrip("="),
        PNG.replace("+", "-").replace("/", "_"),
        base64.urlsafe_b64encode(b"\xff\xd8\xff\xfe" + bytes(60)).decode(),
        base64.b64encode(b"GIF89a" + bytes(60)).decode(),
        base64.b64encode(b"\x1aE\xdf\xa3" + bytes(60)).decode(),
        base64.b64encode(b"OggS" + bytes(60)).decode(),
        base64.b64encode(b"fLaC" + bytes(60)).decode(),
        base64.b64encode(b"ID3" + bytes(60)).decode(),
        base64.b64encode(b"RIFF1234WAVE" + bytes(60)).decode(),
        base64.b64encode(b"RIFF1234WEBP" + bytes(60)).decode(),
        base64.b64encode(b"RIFF1234AVI " + bytes(60)).decode(),
        base64.b64encode(b"\x00\x00\x00\x18ftypmp42" + bytes(60)).decode(),
    ],
)
def test_media_inside_text_is_removed(media: str) -> None:
    """Text that the kernel would treat as media is replaced; the surrounding text and JSON stay."""
    assert kernel_sees_media(media)
    piece = only("text/plain", f"before {media} after")
    assert not kernel_sees_media(piece.content)
    assert piece.content.startswith("before [media removed]")
    assert "after" in piece.content
    document = only("application/json", json.dumps({"a": f"{media} ", "b": 1}))
    assert document.mime == "application/json"
    assert json.loads(document.content)["b"] == 1
    assert not kernel_sees_media(document.content)


@pytest.mark.parametrize(
    "text",
    [
        "data: image/png",
        "data:text/plain,x",
        "a" * 64,
        "ab" * 100,
        "=" * 64,
        "a" + "=" * 64,
        "abcde=" + "a" * 64,
        PNG[:63],
        base64.b64encode(b"x" * 60).decode(),
    ],
)
def test_ordinary_long_text_is_kept(text: str) -> None:
    """Hashes, long words, short runs and other base64 are left unchanged."""
    assert only("text/plain", text).content == text


def test_lone_surrogate_is_replaced() -> None:
    """A lone surrogate from an agent is not sent."""
    only("text/plain", "a\ud800b").content.encode()


def test_event_size_limit_holds() -> None:
    """Many whole pieces are sent while they fit, the last is cut, the rest are dropped with notes."""
    pieces = [InlineEvidence("text/plain", "x" * 65536)] * 4
    result = prepare(pieces, [REF], CONTRACT, ["t" * 36, "e" * 43])
    assert 120_000 < event_size(result) <= evidence.MAX_EVENT_BYTES - evidence.EVENT_RESERVE
    assert len(result.inline) == 2
    assert len(result.notes) == 3


def test_escapes_count_towards_the_event_size() -> None:
    """Content that grows sixfold when escaped is cut to what fits."""
    result = prepare([InlineEvidence("text/plain", "\x01" * 65536)] * 3, [], CONTRACT)
    assert result.inline
    assert event_size(result) <= evidence.MAX_EVENT_BYTES - evidence.EVENT_RESERVE


def test_huge_ids_leave_no_room_but_no_error() -> None:
    """If the ids alone fill the event, nothing else is added."""
    result = prepare([InlineEvidence("text/plain", "x" * 100)], [REF], CONTRACT, ["i" * 200_000])
    assert (result.inline, result.refs) == ((), ())


def test_references_obey_the_verify_budget() -> None:
    """The task's verify budget limits the references; without a budget the event size does."""
    refs = [replace(REF, uri=f"u/{i}") for i in range(500)]
    assert len(prepare([], refs, replace(CONTRACT, max_refs=5)).refs) == 5
    assert prepare([], refs, replace(CONTRACT, max_refs=0)).refs == ()
    many = prepare([InlineEvidence("text/plain", "why")], refs * 3, replace(CONTRACT, max_refs=None))
    assert 300 < len(many.refs) < 1500
    assert len(many.inline) == 1
    assert event_size(many) <= evidence.MAX_EVENT_BYTES


@pytest.mark.parametrize(
    "bad",
    [
        replace(REF, digest="  "),
        replace(REF, digest=""),
        replace(REF, size_bytes=-1),
        replace(REF, size_bytes=2**64),
        replace(REF, created_at=-5),
        replace(REF, uri="\ud800"),
    ],
)
def test_unreadable_references_are_dropped(bad: ArtifactRef) -> None:
    """A blank digest, an invalid number or half a character drops one reference, not the candidate."""
    result = prepare([], [bad, REF], CONTRACT)
    assert result.refs == (REF,)
    assert len(result.notes) == 1


_TEXTS = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["data:image/png;base64,", PNG, "x" * 70000, "\x00" * 40000, '{"a":1}', "€" * 30000]),
)
_PIECES = st.builds(
    InlineEvidence,
    st.sampled_from([*DEFAULT_MIMES, "image/png", "text/html", "application/json; v=1", "application/x+json"])
    | st.text(max_size=10),
    st.lists(_TEXTS, max_size=3).map("".join),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_PIECES, max_size=5), st.integers(0, 70000), st.sets(st.sampled_from(DEFAULT_MIMES)))
def test_evidence_is_always_acceptable_to_the_kernel(
    pieces: list[InlineEvidence], limit: int, mimes: set[str]
) -> None:
    """Every piece sent passes the kernel's own rules, and so does the total size."""
    contract = replace(CONTRACT, max_inline_bytes=min(limit, 65536), mimes=tuple(sorted(mimes)))
    result = prepare(pieces, [REF], contract)
    assert all(kernel_accepts(piece, contract.mimes, contract.max_inline_bytes) for piece in result.inline)
    assert event_size(result) <= evidence.MAX_EVENT_BYTES
    assert result.refs == (REF,)
