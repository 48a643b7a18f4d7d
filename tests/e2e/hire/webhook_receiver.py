"""A webhook server that records its calls and responds as a test configures it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from worker.core.canonical import parse


@dataclass(frozen=True)
class Call:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def payload(self) -> Any:
        return parse(self.body)


class Receiver:
    """Responds 204, or with the next of `answers`: a status, or a status with headers."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: list[int | tuple[int, dict[str, str]]] = []
        self._changed = threading.Condition()

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                sent = {name.lower(): value for name, value in self.headers.items()}
                with receiver._changed:
                    answer = receiver.answers.pop(0) if receiver.answers else 204
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                with receiver._changed:
                    receiver.calls.append(Call(self.path, sent, body))
                    receiver._changed.notify_all()

            do_GET = do_POST

            def log_message(self, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def wait(self, count: int, seconds: float = 15.0) -> list[Call]:
        """Waits for so many calls and returns them."""
        until = time.monotonic() + seconds
        with self._changed:
            while len(self.calls) < count:
                assert self._changed.wait(max(0.0, until - time.monotonic())), f"{len(self.calls)} calls"
            return list(self.calls)
