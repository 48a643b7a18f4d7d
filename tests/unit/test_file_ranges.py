"""Responses to file requests, header by header."""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.files.names import content_disposition, safe_name
from worker.files.ranges import FileAnswer, parse_range, reply_for, repr_digest
from worker.files.writer import FileRef

BODY = b"0123456789"
SHA = hashlib.sha256(BODY).hexdigest()
REF = FileRef("0" * 40, "logo.svg", "image/svg+xml", len(BODY), SHA)
EMPTY = FileRef("1" * 40, "empty.txt", "text/plain", 0, hashlib.sha256(b"").hexdigest())
TAG = f'"{SHA}"'


def ask(method: str = "GET", ref: FileRef = REF, **headers: str) -> FileAnswer:
    return reply_for(ref, method, {name.replace("_", "-"): value for name, value in headers.items()})


class TestWhole:
    """Requests for the whole file."""

    def test_get_returns_the_whole_file(self) -> None:
        """A plain GET is 200 with the whole file and every protective header."""
        reply = ask()
        assert (reply.status, reply.span) == (200, (0, 10))
        assert reply.headers == {
            "Content-Type": "image/svg+xml",
            "Content-Length": "10",
            "Content-Disposition": "attachment; filename=\"logo.svg\"; filename*=UTF-8''logo.svg",
            "Repr-Digest": "sha-256=:" + base64.b64encode(hashlib.sha256(BODY).digest()).decode() + ":",
            "ETag": TAG,
            "Cache-Control": "private, max-age=3600",
            "Accept-Ranges": "bytes",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox",
            "Referrer-Policy": "no-referrer",
        }

    def test_head_returns_no_body(self) -> None:
        """HEAD has the same headers as GET and no body."""
        assert ask("HEAD") == FileAnswer(200, ask().headers, None)

    def test_an_empty_file_is_served(self) -> None:
        """An empty file is 200 with length 0."""
        reply = ask(ref=EMPTY)
        assert (reply.status, reply.span, reply.headers["Content-Length"]) == (200, (0, 0), "0")

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "get", ""])
    def test_other_methods_are_refused(self, method: str) -> None:
        """Only GET and HEAD are allowed, and Allow names them."""
        reply = ask(method, If_None_Match="*", Range="bytes=0-1")
        assert (reply.status, reply.headers["Allow"], reply.span) == (405, "GET, HEAD", None)

    def test_digest_header_matches_the_bytes(self) -> None:
        """Repr-Digest follows RFC 9530's own example: base64 between colons."""
        assert repr_digest(hashlib.sha256(b'{"hello": "world"}\n').hexdigest()) == (
            "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:"
        )


class TestRange:
    """Range requests."""

    @pytest.mark.parametrize(
        ("text", "span"),
        [
            ("bytes=0-0", (0, 1)),
            ("bytes=0-9", (0, 10)),
            ("bytes=0-", (0, 10)),
            ("bytes=9-", (9, 10)),
            ("bytes=3-5", (3, 6)),
            ("bytes=3-99", (3, 10)),
            ("bytes=3-" + "9" * 5000, (3, 10)),
            ("bytes=-1", (9, 10)),
            ("bytes=-10", (0, 10)),
            ("bytes=-99", (0, 10)),
            ("bytes=-" + "9" * 5000, (0, 10)),
            ("bytes=" + "0" * 5000 + "3-4", (3, 5)),
            ("BYTES=1-2", (1, 3)),
            ("bytes= 1-2 ", (1, 3)),
            ("bytes=,1-2,", (1, 3)),
        ],
    )
    def test_a_single_range(self, text: str, span: tuple[int, int]) -> None:
        """A satisfiable range is 206 with exactly these bytes and the digest of the whole file."""
        reply = ask(Range=text)
        assert (reply.status, reply.span) == (206, span)
        assert reply.headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/10"
        assert reply.headers["Content-Length"] == str(span[1] - span[0])
        assert reply.headers["Repr-Digest"] == ask().headers["Repr-Digest"]
        assert reply.headers["ETag"] == TAG and reply.headers["Content-Security-Policy"] == "sandbox"

    @pytest.mark.parametrize("text", ["bytes=10-", "bytes=10-20", "bytes=-0", "bytes=" + "9" * 5000 + "-"])
    def test_a_range_outside_the_file(self, text: str) -> None:
        """An unsatisfiable range is 416 with the true size, no body, no type or name."""
        reply = ask(Range=text)
        assert (reply.status, reply.span) == (416, None)
        assert reply.headers["Content-Range"] == "bytes */10"
        assert reply.headers["Content-Length"] == "0"
        assert "Content-Type" not in reply.headers and "Content-Disposition" not in reply.headers

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-3",
            "bytes=--5",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=0x1-2",
            "bytes=1.0-2",
            "bytes=٣-٤",
            "bytes=0-1,3-4",
            "bytes=0-0,-1",
            "bytes=" + "0-9," * 1000,
            "lines=1-2",
            "0-5",
            "bytes:0-5",
        ],
    )
    def test_invalid_or_multiple_ranges_are_ignored(self, text: str) -> None:
        """An unusual Range never breaks a download: the whole file is sent."""
        assert ask(Range=text) == ask()

    def test_head_ignores_range(self) -> None:
        """Ranges are defined for GET only."""
        assert ask("HEAD", Range="bytes=0-1") == ask("HEAD")
        assert ask("HEAD", Range="bytes=50-").status == 200

    @pytest.mark.parametrize(
        ("text", "status"), [("bytes=0-", 416), ("bytes=0-0", 416), ("bytes=-5", 200), ("bytes=-0", 416)]
    )
    def test_an_empty_file_has_no_ranges(self, text: str, status: int) -> None:
        """An empty file has no satisfiable range; a suffix of it is the whole."""
        reply = ask(ref=EMPTY, Range=text)
        assert reply.status == status
        assert reply.headers.get("Content-Range") == ("bytes */0" if status == 416 else None)

    @given(text=st.text(max_size=40), size=st.integers(0, 50))
    def test_any_range_header_stays_inside_the_file(self, text: str, size: int) -> None:
        """Whatever a client sends, a span is non-empty and lies within the file."""
        for candidate in (text, f"bytes={text}"):
            span = parse_range(candidate, size)
            if isinstance(span, tuple):
                assert 0 <= span[0] < span[1] <= size

    @given(start=st.integers(0, 60), length=st.integers(1, 60), size=st.integers(1, 50))
    def test_range_matches_slicing(self, start: int, length: int, size: int) -> None:
        """First-last and suffix forms select the same bytes as Python's slices."""
        data = bytes(range(size))
        span = parse_range(f"bytes={start}-{start + length - 1}", size)
        assert (data[slice(*span)] if isinstance(span, tuple) else b"") == data[start : start + length]
        suffix = parse_range(f"bytes=-{length}", size)
        assert isinstance(suffix, tuple) and data[slice(*suffix)] == data[-length:]


class TestConditions:
    """Conditional requests."""

    @pytest.mark.parametrize(
        "value",
        [
            TAG,
            f"W/{TAG}",
            "*",
            f'"other", {TAG}',
            f'{TAG},"x"',
            f' ,, "a,b" , W/{TAG} ,',
            f'"{"y" * 20}" ,{TAG}',
        ],
    )
    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_matching_etag_is_not_modified(self, value: str, method: str) -> None:
        """If-None-Match compares weakly; 304 has tag and caching headers and no content headers."""
        reply = ask(method, If_None_Match=value)
        assert (reply.status, reply.span) == (304, None)
        assert reply.headers["ETag"] == TAG and reply.headers["Cache-Control"].startswith("private")
        assert not {"Content-Length", "Content-Type", "Content-Disposition"} & set(reply.headers)

    @pytest.mark.parametrize(
        "value", ['"other"', SHA, f'"{SHA}', f'"{SHA[:-1]}"', "", ",", f"x{TAG}", f"w/{TAG}", f'{TAG} "']
    )
    def test_unknown_etag_gets_the_file(self, value: str) -> None:
        """Another, unquoted or malformed tag gets the file."""
        assert ask(If_None_Match=value).status == 200

    def test_long_etag_list_is_cheap(self) -> None:
        """A header built to confuse the parser is answered like any other."""
        assert ask(If_None_Match='"a"' + " , " * 5000 + "!").status == 200
        assert ask(If_None_Match='"' * 5000 + " ! ").status == 200

    def test_not_modified_wins_over_range(self) -> None:
        """A client that has the file gets 304 even if it asked for a range."""
        assert ask(If_None_Match=TAG, Range="bytes=0-1").status == 304
        assert ask(If_None_Match=TAG, Range="bytes=90-").status == 304

    @pytest.mark.parametrize(
        ("value", "status"),
        [(TAG, 200), ("*", 200), (f'"x", {TAG}', 200), (f"W/{TAG}", 412), ('"x"', 412), ("junk", 412)],
    )
    def test_if_match_compares_strongly(self, value: str, status: int) -> None:
        """A precondition for another version is 412 without a body."""
        reply = ask(If_Match=value)
        assert reply.status == status
        assert (reply.span is None) == (status == 412)

    def test_if_match_comes_first(self) -> None:
        """A failed If-Match is reported before If-None-Match and Range are evaluated."""
        assert ask(If_Match='"x"', If_None_Match=TAG, Range="bytes=0-1").status == 412

    @pytest.mark.parametrize(
        ("value", "status"),
        [
            (TAG, 206),
            (f" {TAG} ", 206),
            (f"W/{TAG}", 200),
            ('"other"', 200),
            ("*", 200),
            ("Wed, 21 Oct 2026 07:28:00 GMT", 200),
            ("", 200),
        ],
    )
    def test_if_range_requires_the_same_version(self, value: str, status: int) -> None:
        """Only the exact strong tag allows a range; everything else gives the whole file."""
        reply = ask(If_Range=value, Range="bytes=2-3")
        assert (reply.status, reply.span) == (status, (2, 4) if status == 206 else (0, 10))

    def test_stale_if_range_ignores_an_invalid_range(self) -> None:
        """With a stale tag, a range beyond the end is the whole file, not 416."""
        assert ask(If_Range='"other"', Range="bytes=90-").status == 200
        assert ask(If_Range=TAG, Range="bytes=90-").status == 416

    def test_if_range_without_range_is_ignored(self) -> None:
        """If-Range without Range is ignored."""
        assert ask(If_Range='"other"') == ask()

    def test_dates_are_ignored(self) -> None:
        """Files have no modification date, so date conditions do not apply."""
        past, future = "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
        assert ask(If_Modified_Since=future) == ask(If_Unmodified_Since=past) == ask()

    def test_header_names_are_case_insensitive(self) -> None:
        """Header names are accepted in any case."""
        assert reply_for(REF, "GET", {"RANGE": "bytes=0-0"}).status == 206
        assert reply_for(REF, "GET", {"if-none-match": TAG}).status == 304


class TestNames:
    """File names, in references and headers."""

    @pytest.mark.parametrize(
        ("given_name", "safe"),
        [
            ("logo.svg", "logo.svg"),
            ("Übersicht 日本.pdf", "Übersicht 日本.pdf"),
            ("a/b\\c.txt", "a_b_c.txt"),
            ("../../etc/passwd", "etc_passwd"),
            ("..", "file"),
            ("", "file"),
            (" . . ", "file"),
            ("/", "file"),
            ("\x00\x1f\x7f", "file"),
            ("evil\r\nSet-Cookie: a=b", "evil Set-Cookie_ a=b"),
            ("invoice\u202egnp.exe", "invoicegnp.exe"),
            ("zero\u200bwidth\ufeff.txt", "zerowidth.txt"),
            ("lone\udc80.txt", "lone.txt"),
            ('say "hi"?<b>*|.txt', "say _hi___b___.txt"),
            (".htaccess", "htaccess"),
            ("trailing. ", "trailing"),
            ("e\u0301.txt", "\u00e9.txt"),
        ],
    )
    def test_hostile_file_names_are_sanitised(self, given_name: str, safe: str) -> None:
        """Paths, control characters, direction marks and reserved characters are removed; words stay."""
        assert safe_name(given_name) == safe

    def test_long_names_keep_their_ending(self) -> None:
        """A name is cut to 200 bytes, before its extension and between characters."""
        assert safe_name("x" * 500 + ".svg") == "x" * 196 + ".svg"
        assert safe_name("日" * 500 + ".svg") == "日" * 65 + ".svg"
        assert safe_name("a." + "x" * 500) == "a." + "x" * 198

    @given(st.text(max_size=300))
    def test_a_safe_name_stays_as_it_is(self, name: str) -> None:
        """Sanitising is idempotent, and its result is never empty, hidden, too long or a path."""
        safe = safe_name(name)
        assert safe_name(safe) == safe
        assert safe and len(safe.encode()) <= 200 and not safe.startswith(".")
        assert not set(safe) & set('/\\"<>:|?*\r\n\x00')

    def test_non_ascii_name_has_both_header_forms(self) -> None:
        """Old clients get ASCII letters, others the exact name in UTF-8."""
        assert content_disposition("naïve €.pdf") == (
            "attachment; filename=\"naive .pdf\"; filename*=UTF-8''na%C3%AFve%20%E2%82%AC.pdf"
        )

    @pytest.mark.parametrize(
        "name", ["日本", "100%41.txt", "a'b.txt", 'quote".txt', "back\\slash", "semi;colon, comma"]
    )
    def test_unusual_names_stay_inside_the_header(self, name: str) -> None:
        """Quotes, percent signs and separators cannot end or change a parameter."""
        header = content_disposition(name)
        found = re.fullmatch(
            r"attachment; filename=\"([^\"\\%]+)\"; filename\*=UTF-8''([!#$&+.^_`|~A-Za-z0-9%-]+)", header
        )
        assert found is not None and unquote(found.group(2)) == name

    @given(st.text(max_size=100))
    def test_every_safe_name_makes_a_safe_header(self, name: str) -> None:
        """The header is printable ASCII and contains the exact safe name."""
        safe = safe_name(name)
        header = content_disposition(safe)
        assert re.fullmatch(r"[ -~]+", header)
        assert header.count('"') == 2
        assert unquote(header.partition("filename*=UTF-8''")[2]) == safe
