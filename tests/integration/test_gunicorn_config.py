"""config/gunicorn.py with a real gunicorn: how the web process is served."""

from __future__ import annotations

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
        patched = monkey.is_module_patched("socket") and monkey.is_module_patched("threading")
        return [f"{patched} {environ['wsgi.url_scheme']} {environ['SCRIPT_NAME']}".encode()]
    return app
"""


@contextmanager
def served(folder: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (folder / "probe_app.py").write_text(APP)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--config", "config/gunicorn.py", "probe_app:create_app()"],
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


def test_it_serves_patched_and_believes_no_stranger(tmp_path: Path) -> None:
    """The application runs under gevent, and forwarded headers change nothing by themselves."""
    with served(tmp_path) as (_, port):
        forged = {"X-Forwarded-Proto": "https", "X-Forwarded-Ssl": "on", "SCRIPT-NAME": "/x"}
        assert get(port, headers=forged) == (200, "True http ")


def test_slow_requests_wait_together(tmp_path: Path) -> None:
    """Twenty requests that each wait a second are answered by one process in far less than twenty."""
    with served(tmp_path) as (_, port):
        links = []
        began = time.monotonic()
        for _ in range(20):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
            link.request("GET", "/slow")
            links.append(link)
        assert all(link.getresponse().status == 200 for link in links)
        assert time.monotonic() - began < 10


def test_only_this_machine_sees_a_laptops_worker(tmp_path: Path) -> None:
    """Outside production it listens on loopback, and on nothing else: no control socket either."""
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


def test_as_many_processes_as_wanted(tmp_path: Path) -> None:
    """WEB_CONCURRENCY is the number of web processes."""
    with served(tmp_path, WEB_CONCURRENCY="2") as (process, port):
        assert get(port)[0] == 200
        until = time.monotonic() + 5
        while len(psutil.Process(process.pid).children()) != 2:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_large_headers_are_refused(tmp_path: Path) -> None:
    """A payment header passes, one of more than 8 kB does not, nor does such a request line."""
    with served(tmp_path) as (_, port):
        assert get(port, headers={"Payment-Signature": "x" * 4000})[0] == 200
        assert get(port, headers={"Payment-Signature": "x" * 9000})[0] in {400, 431}
        assert get(port, "/?" + "x" * 8000)[0] == 200
        assert get(port, "/" + "x" * 9000)[0] in {400, 414}


def test_its_own_lines_are_json_and_it_ends_in_order(tmp_path: Path) -> None:
    """Each line of gunicorn is one JSON object, requests are not among them, SIGTERM ends it with 0."""
    with served(tmp_path) as (process, port):
        assert get(port, "/secret-path")[0] == 200
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=15)
        assert process.returncode == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert lines and {line["event"] for line in lines} == {"gunicorn.error"}
    assert "secret-path" not in said


def test_a_bad_start_is_told_once(tmp_path: Path) -> None:
    """With settings that do not fit nothing is forked: the table of problems, and an exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "gunicorn", "--config", "config/gunicorn.py"],
        cwd=ROOT,
        env={**os.environ, "PORT": "0", "LEASE": "x"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 2
    assert done.stderr.count("cannot start") == 1 and "Traceback" not in done.stderr
    assert "PORT" in done.stderr and "LEASE" in done.stderr


def test_the_web_line_of_the_procfile_uses_it() -> None:
    """What is tested here is what is deployed."""
    lines = (ROOT / "Procfile").read_text().splitlines()
    assert "web: gunicorn --config config/gunicorn.py" in lines
    assert [line.partition(":")[0] for line in lines] == ["web", "worker", "release"]
