"""A chat endpoint on the loopback that speaks the OpenAI dialect, or breaks it in a chosen way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler"], None]


@dataclass
class Server:
    """A running endpoint: its address, what it was asked, and how it will reply."""

    url: str
    reply: Reply
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        told = self.server.told
        told.requests.append((self.path, dict(self.headers), json.loads(body)))
        self.close_connection = True
        told.reply(self)

    def begin(self, status: int, kind: str, **headers: str) -> None:
        """A response whose length is not told: its end is the end of the connection."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True
    told: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is part of the tests."""


@contextmanager
def serving(reply: Reply) -> Iterator[Server]:
    """An endpoint for one test."""
    http = ChatServer(("127.0.0.1", 0), Handler)
    http.told = Server(f"http://127.0.0.1:{http.server_address[1]}/v1", reply)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield http.told
    finally:
        http.told.stopping.set()
        http.shutdown()
        thread.join()
        http.server_close()


def event(text: str | None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def streams(*pieces: bytes) -> Reply:
    """Server-sent events, each piece flushed on its own."""

    def reply(handler: Handler) -> None:
        handler.begin(200, "text/event-stream")
        for piece in pieces:
            handler.write(piece)

    return reply


def chunked(*pieces: bytes) -> Reply:
    """The same in HTTP chunks, as most endpoints send it."""

    def reply(handler: Handler) -> None:
        handler.begin(200, "text/event-stream; charset=utf-8", Transfer_Encoding="chunked")
        for piece in pieces:
            handler.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        handler.write(b"0\r\n\r\n")

    return reply


def refuses(status: int, body: bytes = b"", **headers: str) -> Reply:
    def reply(handler: Handler) -> None:
        handler.begin(status, "application/json", **headers)
        handler.write(body)

    return reply


def answers(value: Any) -> Reply:
    """A whole JSON answer, from an endpoint that does not stream."""
    return refuses(200, json.dumps(value).encode())


def trickles(piece: bytes, pause: float) -> Reply:
    """The same piece again and again until the client goes or the test ends."""

    def reply(handler: Handler) -> None:
        handler.begin(200, "text/event-stream")
        while not handler.server.told.stopping.is_set():
            handler.write(piece)
            time.sleep(pause)

    return reply


def hangs() -> Reply:
    """Takes the request and says nothing."""
    return lambda handler: handler.server.told.stopping.wait(20) and None
