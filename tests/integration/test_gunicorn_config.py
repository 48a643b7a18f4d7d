"""config/gunicorn.py with a real gunicorn: how the web process is served."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from worker.local.valkey import free_port

ROOT = Path(__file__).parents[2]

APP = """
import socket, threading, time
from gevent import monkey

def create_app():
    def app(environ, start):
        path = environ["PATH_INFO"]
        if path == "/slow":
            time.sleep(1.0)
        start("200 OK", [("Content-Type", "text/plain")])
        if path == "/server":
            return [start.__self__.__class__.__module__.encode()]
        patched = monkey.is_module_patched("socket") and monkey.is_module_patched("threading")
        return [f"{patched} {environ['wsgi.url_scheme']} {environ['SCRIPT_NAME']}".encode()]
    return app
"""


@contextmanager
def served(
    folder: Path, config: str = "config/gunicorn.py", **environ: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (folder / "probe_app.py").write_text(APP)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--config", config, "probe_app:create_app()"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder), "PORT": str(port), "LOG_FORMAT": "json", **environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 15
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < until and process.poll() is None, "gunicorn did not start"
                time.sleep(0.05)
        yield process, port
    finally:
        process.kill()
        process.communicate()


def get(port: int, path: str = "/", headers: dict[str, str] | None = None) -> tuple[int, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        link.request("GET", path, headers=headers or {})
        answer = link.getresponse()
        return answer.status, answer.read().decode()
    finally:
        link.close()


def test_runs_under_gevent_and_ignores_forwarded_headers(tmp_path: Path) -> None:
    """The application runs under gevent, and forwarded headers alone change nothing."""
    with served(tmp_path) as (_, port):
        forged = {"X-Forwarded-Proto": "https", "X-Forwarded-Ssl": "on", "SCRIPT-NAME": "/x"}
        assert get(port, headers=forged) == (200, "True http ")


def test_requests_take_the_short_way(tmp_path: Path) -> None:
    """The process sends its answers by the worker's own means, not gunicorn's."""
    with served(tmp_path) as (_, port):
        assert get(port, "/server") == (200, "worker.http_server")


def test_slow_requests_wait_concurrently(tmp_path: Path) -> None:
    """One process answers twenty requests of one second each in far less than twenty seconds."""
    with served(tmp_path) as (_, port):
        links = []
        began = time.monotonic()
        for _ in range(20):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
            link.request("GET", "/slow")
            links.append(link)
        assert all(link.getresponse().status == 200 for link in links)
        assert time.monotonic() - began < 10


def test_local_worker_listens_on_loopback(tmp_path: Path) -> None:
    """Outside production it listens on loopback only, without a control socket."""
    with served(tmp_path) as (process, port):
        assert get(port)[0] == 200
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listening = {
            link.laddr.ip
            for each in family
            for link in each.net_connections("inet")
            if link.status == "LISTEN"
        }
        assert listening == {"127.0.0.1"}
        assert not [link.laddr for each in family for link in each.net_connections("unix") if link.laddr]


def test_idle_connections_are_closed(tmp_path: Path) -> None:
    """A client has `keepalive` seconds for its next request, and for a whole head; each begins them again."""
    config = tmp_path / "short.py"
    config.write_text("from worker.web import *\n\nkeepalive = 2\n")
    with served(tmp_path, str(config)) as (_, port):
        links = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(4)]
        silent, slow, idle, busy = links
        began, ended = time.monotonic(), dict[socket.socket, float]()
        idle.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while len(ended) < 3 and time.monotonic() < began + 20:
            for link in set(links) - set(ended):
                link.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    if not link.recv(4096):
                        ended[link] = time.monotonic() - began
            with contextlib.suppress(ConnectionError):
                slow.sendall(b"G")
            busy.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert set(ended) == {silent, slow, idle}
        assert min(ended.values()) > 1.9
        for link in links:
            link.close()


def test_web_concurrency_sets_the_process_count(tmp_path: Path) -> None:
    """WEB_CONCURRENCY is the number of web processes."""
    with served(tmp_path, WEB_CONCURRENCY="2") as (process, port):
        assert get(port)[0] == 200
        until = time.monotonic() + 5
        while len(psutil.Process(process.pid).children()) != 2:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_large_headers_are_refused(tmp_path: Path) -> None:
    """A payment header is accepted; a header over 8 kB and a request line that long are not."""
    with served(tmp_path) as (_, port):
        assert get(port, headers={"Payment-Signature": "x" * 4000})[0] == 200
        assert get(port, headers={"Payment-Signature": "x" * 9000})[0] in {400, 431}
        assert get(port, "/?" + "x" * 8000)[0] == 200
        assert get(port, "/" + "x" * 9000)[0] in {400, 414}


def test_a_head_without_end_is_refused_early(tmp_path: Path) -> None:
    """After 64 kB nothing more is read, although each field is short enough."""
    with served(tmp_path) as (_, port), socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(10):
                link.sendall(b"X-%d: %b\r\n" % (number, b"x" * 8_000))
        assert link.recv(65_536).startswith(b"HTTP/1.1 431 ")


def test_log_lines_are_json_and_sigterm_exits_cleanly(tmp_path: Path) -> None:
    """Each gunicorn log line is one JSON object, requests are not logged, SIGTERM exits with 0."""
    with served(tmp_path) as (process, port):
        assert get(port, "/secret-path")[0] == 200
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=15)
        assert process.returncode == 0
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines and {line["event"] for line in lines} == {"gunicorn.error"}
    assert "secret-path" not in output


def test_invalid_settings_are_reported_once(tmp_path: Path) -> None:
    """Invalid settings fork nothing: a table of problems and an exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "worker", "web"],
        cwd=ROOT,
        env={**os.environ, "PORT": "0", "LEASE": "x"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 2
    assert done.stderr.count("cannot start") == 1 and "Traceback" not in done.stderr
    assert "PORT" in done.stderr and "LEASE" in done.stderr


def test_procfile_uses_this_configuration() -> None:
    """The deployment uses the configuration tested here."""
    lines = (ROOT / "Procfile").read_text().splitlines()
    assert "web: python -m worker web" in lines
    assert [line.partition(":")[0] for line in lines] == ["web", "worker", "release"]
