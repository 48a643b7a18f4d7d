"""The real transport against real sockets that misbehave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker.errors import BadRequest
from worker.seeker.http import Answer, Dropped, Http, checked_url, host_of, origin_of


@contextmanager
def served(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives one raw answer per connection, then closes it."""
    server = socket.create_server(("127.0.0.1", 0))
    got: list[bytes] = []

    def serve() -> None:
        for raw in answers:
            try:
                link, _ = server.accept()
            except OSError:
                return
            with link:
                link.settimeout(5)
                got.append(link.recv(65_536))
                link.sendall(raw)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", got
    finally:
        server.close()
        thread.join(6)


def test_an_answer_comes_whole() -> None:
    """Status, lower-case headers and body of any status."""
    raw = b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    with served(raw) as (url, got):
        answer = Http().send("POST", url + "/x", body=b"in", headers={"X-A": "b"})
    assert (answer.status, answer.body, answer.retry_after) == (503, b"{}", 7.0)
    assert b"X-A: b" in got[0]
    assert b"Accept-Encoding: identity" in got[0]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        b"no http at all\r\n\r\n",
    ],
)
def test_half_an_answer_is_none(raw: bytes) -> None:
    """A cut answer may have been acted on: it is dropped, and the request is not sent again by itself."""
    with served(raw, raw) as (url, got):
        with pytest.raises(Dropped) as raised:
            Http().send("GET", url)
        assert raised.value.received
    assert len(got) == 1


def test_redirects_are_not_followed() -> None:
    """A payment or a contract id goes where it was sent and nowhere else."""
    raw = b"HTTP/1.1 307 Away\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with served(raw) as (url, _):
        assert Http().send("GET", url).status == 307


def test_an_answer_without_end_is_dropped() -> None:
    """More bytes than allowed are not held."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
    with served(raw) as (url, _), pytest.raises(Dropped):
        Http().send("GET", url, most=999)


def test_a_silent_server_is_dropped() -> None:
    """No answer within the time is none."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Dropped):
        Http(read_seconds=0.2).send("GET", f"http://127.0.0.1:{server.getsockname()[1]}")


def test_nobody_there_received_nothing() -> None:
    """A refused connection is told apart from a lost one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Dropped) as raised:
        Http().send("GET", f"http://127.0.0.1:{port}")
    assert not raised.value.received


def test_a_stream_comes_by_lines() -> None:
    """Lines as they are, whatever the pieces were; its end is its end."""
    raw = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nid: 1\r\ndata: a\n\n"
    with served(raw) as (url, _):
        assert list(Http().lines(url, {})) == ["id: 1", "data: a", ""]
    with served(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n") as (url, _), pytest.raises(Dropped):
        list(Http().lines(url, {}))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "worker.example",
        "ftp://worker.example",
        "https://",
        "https://user:secret@worker.example",
        "https://worker.example/#x",
        "https://worker.example:99999",
        "https://worker.example:0",
        "https://worker .example",
        "https://worker.example/\x00",
        "http://worker.example",
    ],
)
def test_addresses_that_are_not_used(url: str) -> None:
    """Malformed, with credentials, or plain HTTP to somebody else's machine."""
    with pytest.raises(BadRequest):
        checked_url(url)


def test_addresses_that_are_used() -> None:
    """HTTPS anywhere, plain HTTP on this machine, and elsewhere only when it is allowed."""
    assert checked_url("https://worker.example/hire/") == "https://worker.example/hire"
    assert checked_url("http://127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert checked_url("http://worker:8000", plain_http=True) == "http://worker:8000"


def test_hosts_and_origins() -> None:
    """Ports and schemes make another origin; broken addresses are nobody's."""
    assert origin_of("https://A.example/x") == origin_of("https://a.example:443")
    assert origin_of("http://a.example") != origin_of("https://a.example")
    assert origin_of("https://a.example:8443") != origin_of("https://a.example")
    assert host_of("https://[broken") == host_of("nothing") == ""
    assert origin_of("https://[broken") == ("", "", 0)


def test_bodies_that_are_no_objects() -> None:
    """Junk, lists and bottomless nesting are no document."""
    for body in (b"", b"[]", b"\xff", b"{" * 100, b"[" * 100_000):
        assert Answer(200, {}, body).document() is None
