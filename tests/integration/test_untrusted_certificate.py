"""`worker hire` against servers with untrusted certificates."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.integration.test_outbound import Authority
from worker.seeker.http import HttpTransport
from worker.seeker.problems import CertificateUntrusted


class CountingHandler(BaseHTTPRequestHandler):
    """Answers 404 to everything and counts the requests."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(context: ssl.SSLContext) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), CountingHandler)
    server.handle_error = lambda *args: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    CountingHandler.asked.clear()
    try:
        yield f"https://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture(name="authority")
def _authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    ("name", "expired", "trusted", "why"),
    [
        ("localhost", False, False, "unable to get local issuer certificate"),
        ("localhost", True, True, "certificate has expired"),
        ("other.example", False, True, "Hostname mismatch"),
    ],
)
def test_untrusted_certificate_has_its_own_error(
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    expired: bool,
    trusted: bool,
    why: str,
) -> None:
    """The error names the certificate and its fault, and nothing was sent."""
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    with (
        served(authority.server(name, expired=expired)) as url,
        pytest.raises(CertificateUntrusted) as caught,
    ):
        HttpTransport().send("GET", url + "/manifest")
    assert "certificate of localhost is not trusted" in caught.value.message
    assert why in caught.value.message
    assert CountingHandler.asked == []


def test_private_authority_can_be_trusted(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice works: with SSL_CERT_FILE the same server is accepted."""
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    with served(authority.server("localhost")) as url:
        assert HttpTransport().send("GET", url + "/manifest").status == 404


def test_command_reports_it_without_a_traceback(authority: Authority, tmp_path: Path) -> None:
    """`worker hire` ends with the error's code and advice."""
    with served(authority.server("localhost")) as url:
        done = subprocess.run(
            [sys.executable, "-m", "worker", "hire", url, "logo-design", "--keep", str(tmp_path / "keep")],
            env={**os.environ, "SEEKER_KEY": "0x" + "11" * 32},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "CERTIFICATE_UNTRUSTED" in done.stderr and "SSL_CERT_FILE" in done.stderr
