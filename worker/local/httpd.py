"""The small HTTP server for the local chain and the local facilitator: JSON in, JSON out, loopback."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from worker.core.nesting import deeper_than

MOST_BYTES = 2_000_000
MOST_DEPTH = 64
IDLE_SECONDS = 120

Answer = tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]]
Handler = Callable[[str, str, bytes], Answer]


def as_json(status: int, body: Any) -> Answer:
    return status, json.dumps(body, separators=(",", ":")).encode()


def read_json(body: bytes) -> Any:
    """Parse JSON of bounded depth; ValueError for anything else."""
    text = body.decode()
    if deeper_than(text, MOST_DEPTH):
        raise ValueError("nested too deeply")
    return json.loads(text)


class JsonServer:
    """Serves `handler(method, path, body)` on a loopback port until it is closed."""

    def __init__(self, handler: Handler, port: int = 0, *, host: str = "127.0.0.1") -> None:
        self._server = _Server((host, port), _request_class(handler))
        self.port: int = self._server.server_address[1]
        self.url = f"http://{host}:{self.port}"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True, name="httpd"
        )
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._thread = None
        self._server.server_close()
        self._server.hang_up()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""

    def hang_up(self) -> None:
        """End kept-alive connections, so that a closed server looks closed to its clients."""
        for request in list(self._open):
            self.shutdown_request(request)


def _request_class(handler: Handler) -> type[BaseHTTPRequestHandler]:
    class Request(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1
        timeout = IDLE_SECONDS

        def do_GET(self) -> None:
            self._answer(*handler("GET", self.path, b""))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MOST_BYTES:
                self.close_connection = True
                self._answer(*as_json(413 if length.isdecimal() else 411, {"error": "length"}))
                return
            self._answer(*handler("POST", self.path, self.rfile.read(int(length))))

        def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Do not log requests: they contain payments."""

    return Request
