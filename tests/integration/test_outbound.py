"""Outbound calls over real loopback sockets: pinning, TLS, timeouts, sizes and faults."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from worker.delivery.addresses import AddressRules, UrlRefused, rules_for
from worker.delivery.outbound import Outbound, OutboundAnswer, SystemResolver, TimedOut, Unreachable

TEST = rules_for("test")
ONLY_ONE = AddressRules(http=True, ports=None, networks=(ipaddress.ip_network("127.0.0.1/32"),))


class FixedResolver:
    """Returns scripted results, the last one repeatedly, and counts the look-ups."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def resolve(self, host: str, port: int, timeout: float) -> list[str]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@dataclass
class Receiver:
    """A real HTTP server that stores what it receives."""

    port: int = 0
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    status: int = 200
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b"ok"
    names: list[str | None] = field(default_factory=list)


@contextmanager
def receiving(
    address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            receiver.requests.append((self.command, self.path, dict(self.headers.items()), body))
            self.send_response(receiver.status)
            for name, value in receiver.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.body)))
            self.end_headers()
            self.wfile.write(receiver.body)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            return None

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def handle_error(self, *_: object) -> None:
            return None

    server = Server((address, port), Handler)
    receiver.port = server.server_address[1]
    if tls is not None:
        tls.sni_callback = lambda _sock, name, _context: receiver.names.append(name)
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def raw(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that runs `serve`, once per connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    serve(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def drip(data: bytes, then: bytes = b"") -> Callable[[socket.socket], None]:
    """Send `data`, then one `then` byte after another, each well within any single time-out."""

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(data)
        for _ in range(200 if then else 0):
            connection.sendall(then)
            time.sleep(0.05)

    return serve


class TestPlain:
    """Requests and responses."""

    def test_post_is_sent_unchanged(self) -> None:
        """Method, path, query, headers and body arrive; Host is the host name; nothing is compressed."""
        with receiving() as receiver:
            answer = Outbound(TEST, resolver=FixedResolver(["127.0.0.1"])).call(
                "POST",
                f"http://hooks.example:{receiver.port}/a/b?c=d%20e#f",
                body=b'{"x":1}',
                headers={"Content-Type": "application/json", "webhook-id": "msg_1"},
            )
        assert answer == OutboundAnswer(200, answer.headers, b"ok", False)
        [(method, path, headers, body)] = receiver.requests
        assert (method, path, body) == ("POST", "/a/b?c=d%20e", b'{"x":1}')
        assert headers["Host"] == f"hooks.example:{receiver.port}"
        assert (headers["webhook-id"], headers["Accept-Encoding"]) == ("msg_1", "identity")
        assert headers["User-Agent"].startswith("hire-worker/")

    def test_empty_post_has_content_length_zero(self) -> None:
        """An empty body is sent as a body of length 0."""
        with receiving() as receiver:
            Outbound(TEST).call("POST", f"http://127.0.0.1:{receiver.port}/")
        assert receiver.requests[0][2]["Content-Length"] == "0"

    def test_ipv6_address_is_called(self) -> None:
        """An IPv6 address can be called, and is bracketed in Host."""
        with receiving("::1") as receiver:
            assert Outbound(TEST).call("GET", f"http://[::1]:{receiver.port}/").status == 200
        assert receiver.requests[0][2]["Host"] == f"[::1]:{receiver.port}"

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_returned_and_not_followed(self, status: int) -> None:
        """A redirect is returned, and its target is never called."""
        with receiving() as goal, receiving() as receiver:
            receiver.status, receiver.headers = status, [("Location", f"http://127.0.0.1:{goal.port}/")]
            answer = Outbound(TEST).call("POST", f"http://127.0.0.1:{receiver.port}/", body=b"x")
        assert answer.status == status and len(receiver.requests) == 1 and goal.requests == []

    @pytest.mark.parametrize("status", [204, 400, 404, 410, 429, 500, 503])
    def test_every_status_is_returned(self, status: int) -> None:
        """Error statuses of the receiver are returned with their headers, in lower case."""
        with receiving() as receiver:
            receiver.status, receiver.headers, receiver.body = status, [("Retry-After", "7")], b""
            answer = Outbound(TEST).call("POST", f"http://127.0.0.1:{receiver.port}/", body=b"x")
        assert (answer.status, answer.headers["retry-after"]) == (status, "7")

    def test_proxy_environment_variables_are_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A proxy would resolve the name again, past our check."""
        with receiving() as proxy, receiving() as receiver:
            for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            monkeypatch.setenv("no_proxy", "")
            Outbound(TEST).call("GET", f"http://127.0.0.1:{receiver.port}/")
        assert len(receiver.requests) == 1 and proxy.requests == []

    @pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00", "ü", "a\x7f"])
    def test_header_injection_is_refused(self, value: str) -> None:
        """A token from a contract that contains a line break is refused before anything is sent."""
        with receiving() as receiver, pytest.raises(UrlRefused) as refusal:
            Outbound(TEST).call(
                "POST", f"http://127.0.0.1:{receiver.port}/", headers={"X-Webhook-Token": value}
            )
        assert refusal.value.reason == "header" and receiver.requests == []

    @pytest.mark.parametrize("name", ["Host", "host", "X Y", "X:Y", "", "X\r\n"])
    def test_caller_cannot_override_host(self, name: str) -> None:
        """A caller can neither replace Host nor send an invalid header name."""
        with pytest.raises(ValueError, match="header name"):
            Outbound(TEST).call("POST", "http://127.0.0.1:9/", headers={name: "x"})


class TestPinning:
    """Names that change between look-ups."""

    def test_resolved_address_is_pinned_for_the_call(self) -> None:
        """The name is resolved once per call; a later change does not redirect that call."""
        with receiving("127.0.0.1") as good, receiving("127.0.0.2", good.port) as trap:
            resolver = FixedResolver(["127.0.0.1"], ["127.0.0.2"])
            client = Outbound(ONLY_ONE, resolver=resolver)
            url = f"http://turning.example:{good.port}/"
            assert client.call("POST", url, body=b"1").status == 200
            assert resolver.asked == 1
            with pytest.raises(UrlRefused) as refusal:
                client.call("POST", url, body=b"2")
        assert refusal.value.reason == "address"
        assert [request[3] for request in good.requests] == [b"1"] and trap.requests == []

    def test_address_is_checked_again_at_the_call(self) -> None:
        """A name that passed at registration is checked again at the call."""
        with receiving("127.0.0.2") as trap:
            client = Outbound(ONLY_ONE, resolver=FixedResolver(["127.0.0.1"], ["127.0.0.2"]))
            client.check(f"http://turning.example:{trap.port}/")
            with pytest.raises(UrlRefused):
                client.call("GET", f"http://turning.example:{trap.port}/")
        assert trap.requests == []

    def test_loopback_is_refused_in_production(self) -> None:
        """Under production rules a listening loopback server is never reached, by name or by address."""
        with receiving() as receiver:
            rules = AddressRules(http=True, ports=None)
            for host, answer in (
                ("hooks.example", ["127.0.0.1"]),
                ("hooks.example", ["::ffff:127.0.0.1"]),
                ("127.0.0.1", ["8.8.8.8"]),
                ("localhost", ["127.0.0.1"]),
            ):
                with pytest.raises(UrlRefused):
                    Outbound(rules, resolver=FixedResolver(answer)).call(
                        "GET", f"http://{host}:{receiver.port}/"
                    )
        assert receiver.requests == []

    def test_system_resolver_results_are_checked(self) -> None:
        """The real look-up of `localhost` returns loopback: allowed in test, refused in production."""
        with receiving() as receiver:
            assert (
                Outbound(AddressRules(True, None, TEST.networks))
                .call("GET", f"http://localhost:{receiver.port}/")
                .status
                == 200
            )
            with pytest.raises(UrlRefused):
                Outbound(AddressRules(True, None)).check(f"http://localhost:{receiver.port}/")

    def test_second_address_is_tried_after_a_refused_connection(self) -> None:
        """If one address refuses the connection, the next checked one is tried; the body is sent once."""
        with receiving("127.0.0.1") as receiver:
            client = Outbound(TEST, resolver=FixedResolver(["127.0.0.3", "127.0.0.1"]))
            assert client.call("POST", f"http://two.example:{receiver.port}/", body=b"x").status == 200
        assert len(receiver.requests) == 1

    def test_unknown_host_is_unreachable(self) -> None:
        """A reserved name that does not resolve is Unreachable by name."""
        with pytest.raises(Unreachable) as fault:
            SystemResolver().resolve("a" * 64 + ".invalid", 443, 5)
        assert fault.value.reason == "name"

    def test_slow_dns_counts_against_the_timeout(self) -> None:
        """A look-up that exceeds the time limit ends the call."""

        class Slow:
            def resolve(self, host: str, port: int, timeout: float) -> list[str]:
                assert 0 < timeout <= 0.2
                raise TimedOut()

        with pytest.raises(TimedOut):
            Outbound(TEST, resolver=Slow(), total_seconds=0.2).call("GET", "http://slow.example/")


class TestLimits:
    """Time and size limits."""

    @pytest.mark.parametrize(
        ("first", "then"),
        [
            (b"", b"H"),
            (b"HTTP/1.1 200 OK\r\n", b"X"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ],
        ids=["status", "header", "body", "chunks", "continue"],
    )
    def test_trickling_response_times_out(self, first: bytes, then: bytes) -> None:
        """One limit covers the whole call, however steadily single bytes arrive."""
        with raw(drip(first, then)) as port:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                Outbound(TEST, total_seconds=0.5).call("POST", f"http://127.0.0.1:{port}/", body=b"x")
            assert 0.4 < time.monotonic() - began < 10

    def test_silent_receiver_times_out(self) -> None:
        """A receiver that accepts and stays silent ends in TimedOut."""
        with raw(lambda connection: time.sleep(1)) as port, pytest.raises(TimedOut):
            Outbound(TEST, total_seconds=0.3).call("GET", f"http://127.0.0.1:{port}/")

    def test_receiver_that_does_not_read_times_out(self) -> None:
        """Sending counts towards the same limit."""
        with raw(lambda connection: time.sleep(1)) as port, pytest.raises(TimedOut):
            Outbound(TEST, total_seconds=0.3).call(
                "POST", f"http://127.0.0.1:{port}/", body=b"x" * 30_000_000
            )

    def test_silent_tls_handshake_times_out(self, ca: Authority) -> None:
        """A TLS server that never answers the handshake ends in TimedOut."""
        with raw(lambda connection: time.sleep(1)) as port, pytest.raises(TimedOut):
            Outbound(TEST, ca_file=ca.file, total_seconds=0.3).call("GET", f"https://127.0.0.1:{port}/")

    @pytest.mark.parametrize(
        ("size", "truncated"), [(99, False), (100, False), (101, True), (5_000_000, True)]
    )
    def test_long_response_is_truncated(self, size: int, truncated: bool) -> None:
        """At most the cap is read, and the response says if there was more."""
        with receiving() as receiver:
            receiver.body = b"x" * size
            answer = Outbound(TEST, body_cap=100).call("GET", f"http://127.0.0.1:{receiver.port}/")
        assert (len(answer.body), answer.truncated) == (min(size, 100), truncated)

    def test_compressed_response_is_not_unpacked(self) -> None:
        """A response compressed unasked is not decompressed."""
        with receiving() as receiver:
            receiver.headers, receiver.body = [("Content-Encoding", "gzip")], b"\x1f\x8b\x08 not really"
            answer = Outbound(TEST).call("GET", f"http://127.0.0.1:{receiver.port}/")
        assert answer.body == receiver.body

    @pytest.mark.parametrize(
        "reply",
        [
            b"",
            b"garbage\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ],
        ids=["nothing", "garbage", "status", "headers", "long header", "short body", "chunks"],
    )
    def test_malformed_response_is_unreachable(self, reply: bytes) -> None:
        """Anything that is not HTTP, or ends early, is one named fault without the peer's text."""
        with raw(drip(reply)) as port, pytest.raises(Unreachable) as fault:
            Outbound(TEST).call("GET", f"http://127.0.0.1:{port}/secret-path")
        assert fault.value.reason == "answer"
        assert "secret-path" not in str(fault.value) and "garbage" not in str(fault.value)

    def test_closed_port_is_unreachable(self) -> None:
        """A closed port is Unreachable by connection."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(Unreachable) as fault:
                Outbound(TEST).call("GET", f"http://127.0.0.1:{taken.getsockname()[1]}/")
        assert fault.value.reason == "connect"

    def test_url_path_stays_out_of_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        """A receiver with malformed headers cannot make a library log the secret path."""
        caplog.set_level(logging.DEBUG)
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n bad line\r\nno colon here\r\n\r\nok"
        with raw(drip(reply)) as port:
            Outbound(TEST).call("GET", f"http://127.0.0.1:{port}/secret-path?token=abc")
        assert "secret-path" not in caplog.text and "abc" not in caplog.text


@contextmanager
def counted(*answers: bytes) -> Iterator[tuple[int, list[list[bytes]]]]:
    """A server that gives these answers in turn; an empty one closes. Lists each connection's requests."""
    connections: list[list[bytes]] = []
    left = list(answers)

    def serve(connection: socket.socket) -> None:
        requests: list[bytes] = []
        connections.append(requests)
        while request := connection.recv(65536):
            requests.append(request)
            answer = left.pop(0)
            if not answer:
                return
            connection.sendall(answer)

    with raw(serve) as port:
        yield port, connections


OK = b"HTTP/1.1 204 No Content\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n" + b"x" * 200
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"


class TestKept:
    """Connections that are used again."""

    @pytest.fixture(autouse=True)
    def _closed(self) -> Iterator[None]:
        self.clients: list[Outbound] = []
        yield
        for client in self.clients:
            client.close()

    def client(
        self,
        *,
        keeps: bool = True,
        resolver: FixedResolver | None = None,
        body_cap: int = 1_000,
        total_seconds: float = 20.0,
    ) -> Outbound:
        client = Outbound(
            TEST, keeps=keeps, resolver=resolver, body_cap=body_cap, total_seconds=total_seconds
        )
        self.clients.append(client)
        return client

    def test_one_connection_serves_several_calls(self) -> None:
        """Where the receiver allows it; a client that was not told to keeps none."""
        for keeps, expected in ((True, [3]), (False, [1, 1, 1])):
            with counted(OK, OK, OK) as (port, connections):
                client = self.client(keeps=keeps)
                for _ in range(3):
                    assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
            assert [len(requests) for requests in connections] == expected

    def test_kept_connection_is_for_checked_addresses_only(self) -> None:
        """Each call resolves its host: one that moved gets a new connection, one that became private none."""
        resolver = FixedResolver(["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1", "10.0.0.1"])
        with counted(OK, OK) as (port, connections):
            client = self.client(resolver=resolver)
            url = f"http://moved.example:{port}/"
            assert client.call("GET", url).status == 204
            with pytest.raises(Unreachable):  # nothing listens there
                client.call("GET", url)
            with pytest.raises(UrlRefused):
                client.call("GET", url)
        assert resolver.asked == 3 and [len(requests) for requests in connections] == [1]

    @pytest.mark.parametrize("answer", [CLOSING, LONG, INTERIM], ids=["closing", "long", "interim"])
    def test_connection_is_not_kept_after(self, answer: bytes) -> None:
        """The receiver closes it, its answer was cut off, or another one would follow."""
        with counted(answer, OK) as (port, connections):
            client = self.client(body_cap=100)
            client.call("GET", f"http://127.0.0.1:{port}/")
            assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
        assert [len(requests) for requests in connections] == [1, 1]

    def test_answer_that_nobody_asked_for_is_not_read(self) -> None:
        """A connection on which something came between two calls is not used again."""
        more, sent, opened = threading.Event(), threading.Event(), []

        def serve(connection: socket.socket) -> None:
            opened.append(connection)
            connection.recv(65536)
            connection.sendall(OK)
            if len(opened) == 1 and more.wait(30):
                connection.sendall(CLOSING)
                sent.set()
                connection.recv(65536)

        with raw(serve) as port:
            client = self.client()
            assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
            more.set()
            assert sent.wait(30)
            assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
        assert len(opened) == 2

    def test_kept_connection_that_drops_a_request_is_replaced(self) -> None:
        """The call is made again on a new connection, once: what a new one drops is unreachable."""
        with counted(OK, b"", OK, b"", b"") as (port, connections):
            client = self.client()
            for _ in range(2):
                assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
            with pytest.raises(Unreachable):
                client.call("GET", f"http://127.0.0.1:{port}/")
        assert [len(requests) for requests in connections] == [2, 2, 1]

    def test_time_limit_is_each_calls_own(self) -> None:
        """A call on a kept connection has the whole time, however old the connection is, and no more."""

        def serve(connection: socket.socket) -> None:
            for _ in range(2):
                connection.recv(65536)
                connection.sendall(OK)
            while connection.recv(65536):
                served.append(1)

        served: list[int] = []
        with raw(serve) as port:
            client = self.client(total_seconds=1.5)
            assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
            time.sleep(1.6)
            assert client.call("GET", f"http://127.0.0.1:{port}/").status == 204
            with pytest.raises(TimedOut):
                client.call("GET", f"http://127.0.0.1:{port}/")
        assert served


class TestTls:
    """Certificates are checked for the name, though the connection goes to an address."""

    def test_sni_host_and_certificate_match_the_name(self, ca: Authority) -> None:
        """The pinned address gets the name in SNI and Host, and its certificate is checked for that name."""
        with receiving(tls=ca.server("hooks.example")) as receiver:
            client = Outbound(TEST, resolver=FixedResolver(["127.0.0.1"]), ca_file=ca.file)
            answer = client.call("POST", f"https://hooks.example:{receiver.port}/x", body=b"y")
            assert client.call("GET", f"https://hooks.example.:{receiver.port}/x").status == 200
        assert answer.status == 200 and receiver.names == ["hooks.example"] * 2
        assert receiver.requests[0][2]["Host"] == f"hooks.example:{receiver.port}"

    def test_kept_connection_needs_one_handshake(self, ca: Authority) -> None:
        """Several calls over TLS use one connection."""
        server, greeted = ca.server("localhost"), []
        server.sni_callback = lambda _sock, name, _context: greeted.append(name)

        def serve(connection: socket.socket) -> None:
            with server.wrap_socket(connection, server_side=True) as wrapped:
                while wrapped.recv(65536):
                    wrapped.sendall(OK)

        with raw(serve) as port:
            client = Outbound(TEST, ca_file=ca.file, resolver=FixedResolver(["127.0.0.1"]), keeps=True)
            for _ in range(3):
                assert client.call("GET", f"https://localhost:{port}/").status == 204
            client.close()
        assert greeted == ["localhost"]

    def test_certificate_of_a_literal_address_is_checked(self, ca: Authority) -> None:
        """An address in the URL is checked against the addresses in the certificate."""
        with receiving(tls=ca.server("127.0.0.1")) as receiver:
            assert (
                Outbound(TEST, ca_file=ca.file).call("GET", f"https://127.0.0.1:{receiver.port}/").status
                == 200
            )

    @pytest.mark.parametrize("name", ["other.example", "127.0.0.1", "example"])
    def test_certificate_for_another_name_is_refused(self, ca: Authority, name: str) -> None:
        """A certificate for another name, even with the pinned address, sends nothing."""
        with receiving(tls=ca.server(name)) as receiver:
            client = Outbound(TEST, resolver=FixedResolver(["127.0.0.1"]), ca_file=ca.file)
            with pytest.raises(Unreachable) as fault:
                client.call("POST", f"https://hooks.example:{receiver.port}/", body=b"y")
        assert fault.value.reason == "tls" and receiver.requests == []

    def test_untrusted_certificate_is_refused(self, ca: Authority) -> None:
        """Without the test authority the system's trust store decides, and refuses."""
        with receiving(tls=ca.server("hooks.example")) as receiver:
            client = Outbound(TEST, resolver=FixedResolver(["127.0.0.1"]))
            with pytest.raises(Unreachable) as fault:
                client.call("POST", f"https://hooks.example:{receiver.port}/", body=b"y")
        assert fault.value.reason == "tls" and receiver.requests == []

    def test_expired_certificate_is_refused(self, ca: Authority) -> None:
        """An expired TLS certificate stops the request before it is sent."""
        with receiving(tls=ca.server("hooks.example", expired=True)) as receiver:
            client = Outbound(TEST, resolver=FixedResolver(["127.0.0.1"]), ca_file=ca.file)
            with pytest.raises(Unreachable) as fault:
                client.call("POST", f"https://hooks.example:{receiver.port}/", body=b"y")
        assert fault.value.reason == "tls" and receiver.requests == []

    def test_plain_http_on_a_tls_port_is_a_tls_error(self, ca: Authority) -> None:
        """A server without TLS behind an https URL is a TLS fault."""
        with receiving() as receiver, pytest.raises(Unreachable) as fault:
            Outbound(TEST, ca_file=ca.file).call("GET", f"https://127.0.0.1:{receiver.port}/")
        assert fault.value.reason == "tls"

    def test_trickling_inside_tls_times_out(self, ca: Authority) -> None:
        """The limit for the whole call also applies inside the encrypted connection."""
        context = ca.server("127.0.0.1")

        def serve(connection: socket.socket) -> None:
            with context.wrap_socket(connection, server_side=True) as inside:
                drip(b"HTTP/1.1 200 OK\r\n", b"X")(inside)

        with raw(serve) as port:
            began = time.monotonic()
            with pytest.raises(TimedOut):
                Outbound(TEST, ca_file=ca.file, total_seconds=0.8).call("GET", f"https://127.0.0.1:{port}/")
            assert time.monotonic() - began < 10


class Authority:
    """A certificate authority for one test run."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        own = self._builder(self._name, self._key.public_key())
        own = own.add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
        own = own.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        self.file = str(directory / "ca.pem")
        Path(self.file).write_bytes(
            own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def server(self, name: str, *, expired: bool = False) -> ssl.SSLContext:
        """A server's TLS settings with a certificate for one name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: x509.GeneralName
        try:
            names = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            names = x509.DNSName(name)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._builder(subject, key.public_key(), -1 if expired else 1)
        builder = builder.add_extension(x509.SubjectAlternativeName([names]), False)
        certificate = builder.add_extension(issuer, False).sign(self._key, hashes.SHA256())
        file = self._directory / "server.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int = 1
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=3))
            .not_valid_after(now + datetime.timedelta(days=days))
        )


@pytest.fixture(name="ca", scope="module")
def _ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))
