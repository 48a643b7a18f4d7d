"""The real transport against misbehaving sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from worker.core.errors import BadRequest
from worker.seeker.http import ConnectionDropped, HttpAnswer, HttpTransport, checked_url, host_of, origin_of


@contextmanager
def served(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends one raw response per connection, then closes it."""
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


def test_response_is_read_whole() -> None:
    """Status, lower-case headers and body of any status."""
    raw = b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    with served(raw) as (url, got):
        answer = HttpTransport().send("POST", url + "/x", body=b"in", headers={"X-A": "b"})
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
def test_truncated_response_is_refused(raw: bytes) -> None:
    """A truncated response may have been acted on: it is discarded and the request is not retried."""
    with served(raw, raw) as (url, got):
        with pytest.raises(ConnectionDropped) as raised:
            HttpTransport().send("GET", url)
        assert raised.value.received
    assert len(got) == 1


def test_redirects_are_not_followed() -> None:
    """A payment or a contract id is sent only to the original address."""
    raw = b"HTTP/1.1 307 Away\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    with served(raw) as (url, _):
        assert HttpTransport().send("GET", url).status == 307


def test_endless_response_is_dropped() -> None:
    """The body is dropped above the size limit."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
    with served(raw) as (url, _), pytest.raises(ConnectionDropped):
        HttpTransport().send("GET", url, most=999)


def test_silent_server_times_out() -> None:
    """A server that does not answer in time counts as no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ConnectionDropped):
        HttpTransport(read_seconds=0.2).send("GET", f"http://127.0.0.1:{server.getsockname()[1]}")


def test_refused_connection_sent_nothing() -> None:
    """A refused connection is distinguished from a lost one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionDropped) as raised:
        HttpTransport().send("GET", f"http://127.0.0.1:{port}")
    assert not raised.value.received


def test_stream_is_read_by_lines() -> None:
    """Lines are returned as sent, however they were split; the stream's end ends the iteration."""
    raw = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nid: 1\r\ndata: a\n\n"
    with served(raw) as (url, _):
        assert list(HttpTransport().lines(url, {})) == ["id: 1", "data: a", ""]
    with (
        served(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n") as (url, _),
        pytest.raises(ConnectionDropped),
    ):
        list(HttpTransport().lines(url, {}))


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
def test_forbidden_addresses_are_refused(url: str) -> None:
    """Malformed, with credentials, or plain HTTP to another machine."""
    with pytest.raises(BadRequest):
        checked_url(url)


def test_allowed_addresses_are_used() -> None:
    """HTTPS to any host, plain HTTP to this machine, and plain HTTP elsewhere only if allowed."""
    assert checked_url("https://worker.example/hire/") == "https://worker.example/hire"
    assert checked_url("http://127.0.0.1:8000") == "http://127.0.0.1:8000"
    assert checked_url("http://worker:8000", plain_http=True) == "http://worker:8000"


def test_hosts_and_origins() -> None:
    """A different port or scheme is another origin; malformed addresses have none."""
    assert origin_of("https://A.example/x") == origin_of("https://a.example:443")
    assert origin_of("http://a.example") != origin_of("https://a.example")
    assert origin_of("https://a.example:8443") != origin_of("https://a.example")
    assert host_of("https://[broken") == host_of("nothing") == ""
    assert origin_of("https://[broken") == ("", "", 0)


def test_non_object_bodies_are_refused() -> None:
    """Junk, lists and deeply nested JSON are refused."""
    for body in (b"", b"[]", b"\xff", b"{" * 100, b"[" * 100_000):
        assert HttpAnswer(200, {}, body).document() is None
