"""The web process reads and writes HTTP as gunicorn does, byte for byte."""

from __future__ import annotations

import random
import time
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn import util
from gunicorn.config import Config
from gunicorn.http import message, parser, wsgi
from gunicorn.http.unreader import IterUnreader

from worker import http_server

PEER = ("127.0.0.1", 5555)
NAMES = [
    "Host",
    "content-type",
    "Content-Length",
    "X-Contract-ID",
    "PAYMENT-SIGNATURE",
    "Connection",
    "Expect",
    "X_Under",
    "Transfer-Encoding",
    "Na me",
    "",
    "\xdf",
    "!#$%&'*+-.^`|~",
    "A:B",
    " X",
    "X ",
    "\x00",
]
VALUES = [
    "",
    "5",
    " padded\t ",
    "100-continue",
    "chunked",
    "a\tb",
    "\x7f",
    "a\x00b",
    "\xe9\x85",
    "\xa0x\xa0",
    "a\rb",
    "a\nb",
    ":",
    "x" * 60,
    "x" * 100,
    "close",
]


def config(**changed: Any) -> Config:
    made = Config()
    small = {"limit_request_fields": 6, "limit_request_field_size": 80, "secure_scheme_headers": {}}
    for name, value in (small | changed).items():
        made.set(name, value)
    return made


def read(kind: Any, cfg: Config, *parts: bytes) -> Any:
    unreader = IterUnreader(iter(parts))
    try:
        asked = kind(cfg, unreader, PEER)
    except Exception as refused:
        return type(refused), str(refused)
    try:
        body = asked.body.read()
    except Exception as broken:
        body = str(broken)
    fields = asked.method, asked.uri, asked.version, asked.headers, asked.scheme, asked.should_close()
    fields += asked.path, asked.query, asked.fragment, list(asked.trailers), asked.must_close
    fields += asked.peer_addr, asked.remote_addr, asked.req_number, asked.proxy_protocol_info
    return *fields, asked._expected_100_continue, body, unreader.read()


def compared(cfg: Config, *parts: bytes) -> Any:
    expected = read(message.Request, cfg, *parts)
    assert read(http_server.Request, cfg, *parts) == expected, parts
    return expected


HEAD = b"POST /x?a=1 HTTP/1.1\r\nHost: a:1\r\nContent-Type: a/b\r\nX-A:  1 \r\nContent-Length: 2\r\n\r\n"


def test_an_ordinary_head_is_read_without_gunicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left over for the slow way, or nothing would be gained."""
    monkeypatch.setattr(message.Request, "__init__", None)
    asked = http_server.Request(config(), IterUnreader(iter([HEAD + b"ab"])), PEER)
    assert asked.headers[2] == ("X-A", "1") and (asked.path, asked.query) == ("/x", "a=1")
    assert type(asked.body) is BytesIO and asked.body.read() == b"ab" and not asked.should_close()


TARGETS = ["/", "/a/b", "/a//b", "//a", "//a/b?c", "/a?b", "/a?", "/a?b?c", "/a#b", "/a?b#c", "/%41"]
TARGETS += ["/a?%41", "/a;b", "/a:b", "/a@b", "/[a", "/a?b=[c", "*", "", "http://a/b", "http://[a/b", "a:1"]
TARGETS += ["/\xe9", "/a b"]
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "CONNECT", "get", "GE", "PATCH", "M-SEARCH", "X" * 21, "P\xd6ST"]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", "HTTP/1.\u00b2"]


@pytest.mark.parametrize(
    "changed",
    [{}, {"casefold_http_method": True}, {"limit_request_line": 20}, {"proxy_protocol": "auto"}],
)
def test_every_request_line_is_read_or_refused_as_by_gunicorn(changed: dict[str, Any]) -> None:
    """Whatever the method, the target and the version, and around the limit of its length."""
    cfg, accepted = config(**changed), 0
    for method in METHODS:
        for version in VERSIONS:
            for target in [*TARGETS, *("/" + "x" * size for size in range(3, 9))]:
                for ahead in ("", "\r\n", "\n", "\r\n\r\n"):
                    head = f"{ahead}{method} {target} {version}\r\nA: b\r\n\r\n".encode("latin-1")
                    accepted += len(compared(cfg, head)) > 2
    assert accepted > 100


LENGTHS_SENT = ["0", "2", "4", "5", "+2", "-2", "02", "2 ", "", "x", "1e1", "\xb2", "2, 2"]
LENGTHS_SENT += ["9" * 15, "9" * 16]


@pytest.mark.parametrize("more", ["", "Content-Length: 2\r\n", "Connection: close\r\n", "Connection: x\r\n"])
def test_every_body_is_read_or_refused_as_by_gunicorn(more: str) -> None:
    """With its head or after it, with the next request behind it, and with a length that is none."""
    cfg = config()
    for length in LENGTHS_SENT:
        head = f"POST / HTTP/1.1\r\n{more}Content-Length: {length}\r\n\r\n".encode("latin-1")
        for body in (b"", b"a", b"ab", b"abcd", b"abcdGET / HTTP/1.1\r\n\r\n"):
            for cut in (0, 5, 25, len(head) - 2, len(head), len(head) + 1):
                whole = head + body
                compared(cfg, *[part for part in (whole[:cut], whole[cut:]) if part])


def test_an_unread_body_is_no_request() -> None:
    """The next request begins where the length says, whether or not the application read the body."""
    for kind in (message.Request, http_server.Request):
        for read_first in (0, 1, 2):
            source = IterUnreader(iter([HEAD + b"ab" + HEAD + b"cd"]))
            requests = parser.RequestParser(config(), iter(()), PEER)
            requests.mesg_class, requests.unreader = kind, source
            assert next(requests).body.read(read_first) == b"ab"[:read_first]
            assert next(requests).body.read() == b"cd"
            with pytest.raises(StopIteration):
                next(requests)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"header_map": "refuse"},
        {"header_map": "dangerous"},
        {"permit_obsolete_folding": True, "strip_header_spaces": True},
        {"secure_scheme_headers": {"X-CONTRACT-ID": "https"}, "forwarded_allow_ips": "*"},
    ],
)
def test_every_head_is_read_or_refused_as_by_gunicorn(changed: dict[str, Any]) -> None:
    """Also duplicates, folded lines, control characters, bare line ends and what exceeds a limit."""
    chance, cfg = random.Random(1), config(**changed)
    accepted = 0
    for _ in range(6_000):
        lines = [f"{chance.choice(NAMES)}:{chance.choice(VALUES)}" for _ in range(chance.randrange(8))]
        if chance.random() < 0.5:
            lines = [f"{name}: {chance.choice(VALUES[:6])}" for name in chance.sample(NAMES[:6], 3)]
        if chance.random() < 0.1:
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(["", " folded", "\tfolded", "none"]))
        fields = "\r\n".join(lines)
        head = f"GET / HTTP/1.{int(chance.random() < 0.9)}\r\n{fields}\r\n\r\nabcdefgh"
        accepted += len(compared(cfg, head.encode("latin-1"))) > 2
    assert accepted > 1_000


GUNICORN_CREATES = wsgi.create


@pytest.mark.parametrize("client", [PEER, "", b"/run/x.sock"])
def test_every_request_has_the_variables_of_gunicorn(client: Any) -> None:
    """Also if a header comes twice, or is called like another variable."""
    chance, cfg, known = random.Random(2), config(limit_request_fields=20), 0
    names = [
        "Host",
        "X-A",
        "x-a",
        "X-B",
        "Content-Type",
        "content-length",
        "Connection",
        "Script-Name",
        "Cookie",
    ]
    for _ in range(2_000):
        lines = [f"{chance.choice(names)}: {chance.choice(['', '1', 'a b', 'x,y'])}" for _ in range(3)]
        target = chance.choice(["/", "/a?b=c", "/a%20b", "//a", "/a?"])
        head = "\r\n".join([f"{chance.choice(METHODS[:3])} {target} HTTP/1.1", *lines, "", "x"])
        given: list[dict[str, Any]] = []
        for kind, creates in ((message.Request, GUNICORN_CREATES), (http_server.Request, http_server.create)):
            try:
                read_request = kind(cfg, IterUnreader(iter([head.encode()])), client)
            except Exception:
                break
            answer, environ = creates(read_request, Wire(), client, ("::1", 80), cfg)
            assert answer.req is read_request and environ["wsgi.early_hints"] and environ["gunicorn.socket"]
            environ["wsgi.input"] = environ["wsgi.input"].read()
            given.append({**environ, "wsgi.errors": 0, "wsgi.early_hints": 0, "gunicorn.socket": 0})
        if given:
            assert given[0] == given[1], head
            known += getattr(read_request, "variables", None) is not None
    assert known > 300


def test_limits_are_those_of_gunicorn() -> None:
    """A line or a count at the limit is read, one more is refused."""
    cfg = config()
    for size in range(70, 90):
        compared(cfg, b"GET / HTTP/1.1\r\nA: %b\r\n\r\n" % (b"x" * size))
    for count in range(1, 9):
        found = compared(cfg, b"GET / HTTP/1.1\r\n%b\r\n" % (b"A: b\r\n" * count))
        assert (len(found) > 2) == (count <= 6)


def asked(method: str = "GET", version: tuple[int, int] = (1, 1), closes: bool = False) -> Any:
    return SimpleNamespace(method=method, version=version, should_close=lambda: closes)


class Wire:
    """A client's socket."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(bytes(data))

    def send(self, data: bytes) -> int:
        self.sendall(data)
        return len(data)


def written(kind: Any, request: Any, status: str, headers: Any, pieces: list[Any]) -> tuple[Any, list[bytes]]:
    wire = Wire()
    answer = kind(request, wire, config())
    try:
        answer.start_response(status, headers)
        for piece in pieces:
            answer.write(piece)
        answer.close()
    except Exception as refused:
        return (type(refused), str(refused)), wire.sent
    return (answer.sent, answer.should_close(), answer.response_length, answer.headers_sent), wire.sent


LENGTHS = [None, "0", "2", "5", "999"]
HEADERS: list[Any] = [
    [],
    [("X-A", " b\t")],
    [("Connection", "close"), ("Keep-Alive", "1"), ("TE", "x")],
    [("Connection", "upgrade"), ("Upgrade", "websocket")],
    [("X-A", "a\r\nX-B: c")],
    [("X-A", "a\nb")],
    [("X A", "b")],
    [("X-A:", "b")],
    [("", "b")],
    [("X-A", 5)],
    [(5, "b")],
    [("X-A", "\u20ac")],
    [("X-A", "\xe9")],
    [(b"X-A", "b")],
    [("Set-Cookie", "a"), ("set-cookie", "b")],
]


@pytest.mark.parametrize("status", ["200 OK", "204 No Content", "304 Not Modified", "402 Payment Required"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_every_answer_has_the_bytes_of_gunicorn(
    status: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its headers and its length, whole or in pieces; a bad header is refused as by gunicorn."""
    monkeypatch.setattr(util, "http_date", lambda second=0: "Thu, 01 Jan 1970 00:00:00 GMT")
    http_server._date.cache_clear()
    bodies: list[list[Any]] = [[], [b""], [b"hello"], [b"he", b"llo"], [b"hello", b"more"], ["text"], [b"he"]]
    for request in (asked(method), asked(method, (1, 0), True), asked(method, closes=True)):
        for length in LENGTHS:
            for extra in HEADERS:
                headers = [*extra, ("Content-Type", "a/b")]
                headers += [("Content-Length", length)] if length is not None else []
                for pieces in bodies:
                    given = request, status, headers, pieces
                    expected, sent = written(wsgi.Response, *given)
                    found, received = written(http_server.Answer, *given)
                    assert (found, b"".join(received)) == (expected, b"".join(sent)), given
    http_server._date.cache_clear()


@pytest.mark.parametrize(
    "status", ["200", "2000 OK", "x", "", "100 Continue", "999 \t", "200 O\nK", "200 \u20ac", 200]
)
def test_every_status_is_sent_or_refused_as_by_gunicorn(status: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one without a phrase, and what is none."""
    monkeypatch.setattr(util, "http_date", lambda second=0: "Thu, 01 Jan 1970 00:00:00 GMT")
    http_server._date.cache_clear()
    for length in ([], [("Content-Length", "2")], [("Content-Length", "\xb2")], [("content-length", "2")]):
        given = asked(), status, length, [b"ab"]
        (expected, sent), (found, received) = (
            written(wsgi.Response, *given),
            written(http_server.Answer, *given),
        )
        assert (found, b"".join(received)) == (expected, b"".join(sent))
    http_server._date.cache_clear()


def test_an_answer_begins_once() -> None:
    """Another beginning is an error of the application, unless it tells of one."""
    for kind in (wsgi.Response, http_server.Answer):
        answer = kind(asked(), Wire(), config())
        answer.start_response("200 OK", [])
        with pytest.raises(AssertionError):
            answer.start_response("200 OK", [])
        answer.start_response("500 X", [], (ValueError, ValueError(), None))
        assert answer.status_code == 500


def test_a_piece_of_a_stream_leaves_in_one_piece() -> None:
    """A long one is sent by gunicorn's means; either way a client gets the same bytes."""
    for size in (1, 64 << 10, (64 << 10) + 1):
        given = asked(), "200 OK", [("Content-Type", "a/b")], [b"x" * size, b"y" * size]
        (expected, sent), (found, received) = (
            written(wsgi.Response, *given),
            written(http_server.Answer, *given),
        )
        assert (found, received[1:]) == (expected, sent[1:])


def test_a_short_answer_leaves_in_one_piece() -> None:
    """Two pieces are two calls here and two packets on the way; a long body is not copied."""
    for size, pieces in ((5, 1), (64 << 10, 1), ((64 << 10) + 1, 2)):
        headers = [("Content-Length", str(size))]
        _, sent = written(http_server.Answer, asked(), "200 OK", headers, [b"x" * size])
        assert len(sent) == pieces


@pytest.mark.parametrize("at_once", [0, 1, 50])
def test_an_answer_that_is_sent_in_part_is_continued(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads slowly gets each byte once."""
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000)

    class Narrow(Wire):
        def send(self, data: bytes) -> int:
            self.sent.append(data[:at_once])
            return at_once

    for headers, pieces in (([("Content-Length", "200")], 2), ([], 1 + 2 + 1)):
        wire, whole = Narrow(), Wire()
        for each in (wire, whole):
            answer = http_server.Answer(asked(), each, config())
            answer.start_response("200 OK", headers)
            answer.write(b"0123456789" * 20)
            answer.close()
        assert b"".join(wire.sent) == b"".join(whole.sent) and len(wire.sent) == pieces


def test_no_second_head_follows_a_failed_one() -> None:
    """Part of it may be on the wire."""

    class Broken(Wire):
        def send(self, data: bytes) -> int:
            raise OSError("reset")

    answer = http_server.Answer(asked(), Broken(), config())
    answer.start_response("200 OK", [("Content-Length", "2")])
    with pytest.raises(OSError, match="reset"):
        answer.write(b"ab")
    assert answer.headers_sent


def test_the_date_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once a second, and is that of the second."""
    dates = []
    for second in (0.0, 0.9, 1.0):
        monkeypatch.setattr(time, "time", lambda second=second: second)
        _, sent = written(http_server.Answer, asked(), "200 OK", [("Content-Length", "1")], [b"x"])
        dates.append(sent[0].partition(b"Date: ")[2].partition(b"\r\n")[0])
    assert dates == [b"Thu, 01 Jan 1970 00:00:00 GMT"] * 2 + [b"Thu, 01 Jan 1970 00:00:01 GMT"]


def test_settings_are_as_they_were() -> None:
    """Each setting has the value that it had; what is computed from them is still computed."""
    cfg, same = config(), config()
    before = parser_parts()
    try:
        http_server.use(cfg)
        for name in same.settings:
            if name not in ("worker_class",):
                assert repr(getattr(cfg, name)) == repr(getattr(same, name)), name
    finally:
        restore(before)


def parser_parts() -> tuple[Any, ...]:
    parts = parser.RequestParser.mesg_class, wsgi.Response, wsgi.WSGIErrorsWrapper, wsgi.create
    return parts


def restore(parts: tuple[Any, ...]) -> None:
    parser.RequestParser.mesg_class, wsgi.Response, wsgi.WSGIErrorsWrapper, wsgi.create = parts


STREAM_FIELDS = [b"Content-Length: 5", b"Host: a", b"X: \x85", b"Connection: keep-alive", b"X-A:b"] * 5
STREAM_FIELDS += [
    b"content-length:0",
    b"Content-Length: 05",
    b"Content-Length: +5",
    b"Content-Length : 5",
    b" Content-Length: 5",
    b"Content_Length: 5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: x, chunked",
    b"Connection: close",
    b"Expect: 100-continue",
]
STREAM_LINES = [b"POST /a HTTP/1.1"] * 6 + [b"GET /?b HTTP/1.1", b"GET //a HTTP/1.1", b"GET / HTTP/1.0"]
STREAM_BODIES = [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"hello\r\n"]


def stream(chance: random.Random) -> bytes:
    """A few requests one after the other; where each ends depends on how the one before is read."""
    made = b""
    for _ in range(chance.choice([1, 2, 3, 5])):
        fields = chance.choices(STREAM_FIELDS, k=chance.choice([0, 1, 1, 2, 2, 3]))
        ends = [chance.choice([b"\r\n"] * 60 + [b"\n", b"\r", b"\r\n\r\n"]) for _ in range(len(fields) + 1)]
        lines = [chance.choice(STREAM_LINES), *fields]
        made += b"".join(line + end for line, end in zip(lines, ends, strict=True))
        made += b"\r\n" + chance.choice(STREAM_BODIES)
    return made


def requests_read(kind: Any, cfg: Config, parts: list[bytes], reads: list[int | None]) -> list[Any]:
    """What each request was taken for, and what the application read of its body, until a refusal."""
    requests = parser.RequestParser(cfg, iter(()), PEER)
    requests.mesg_class, requests.unreader = kind, IterUnreader(iter(parts))
    found: list[Any] = []
    try:
        for wanted, each in zip(reads, requests, strict=False):
            found.append((each.method, each.uri, each.version, each.headers, each.should_close()))
            found.append(each.body.read(wanted))
    except Exception as refused:
        found.append((type(refused), str(refused)))
    return found


def test_every_stream_of_requests_is_split_as_by_gunicorn() -> None:
    """In whatever pieces it arrives, and whether or not the application reads the bodies."""
    chance, cfg, accepted = random.Random(2), config(), 0
    for _ in range(10_000):
        whole, reads = stream(chance), [chance.choice([None, 0, 1, 9]) for _ in range(6)]
        cuts = sorted(chance.randrange(len(whole)) for _ in range(chance.choice([0, 0, 1, 3])))
        parts = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        parts = [part for part in parts if part]
        expected = requests_read(message.Request, cfg, parts, reads)
        assert requests_read(http_server.Request, cfg, parts, reads) == expected, (parts, reads)
        accepted += len(expected) > 3
    assert accepted > 500
