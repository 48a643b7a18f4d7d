"""A local chat endpoint that implements the OpenAI API, or violates it in a chosen way."""

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
    """A running endpoint: its address, the requests it received, and its next reply."""

    url: str
    reply: Reply
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    @property
    def asked(self) -> list[str]:
        """The messages of each request as one text."""
        return ["\n".join(each["content"] for each in body["messages"]) for _, _, body in self.requests]

    stopping: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        endpoint = self.server.endpoint
        endpoint.requests.append((self.path, dict(self.headers), json.loads(body)))
        self.close_connection = True
        endpoint.reply(self)

    def begin(self, status: int, kind: str, **headers: str) -> None:
        """Starts a response without a length: it ends when the connection closes."""
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
        """Suppresses access logs."""


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True
    endpoint: Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnect early, which tests do on purpose."""


@contextmanager
def serving(reply: Reply) -> Iterator[Server]:
    """An endpoint for one test."""
    http = ChatServer(("127.0.0.1", 0), Handler)
    http.endpoint = Server(f"http://127.0.0.1:{http.server_address[1]}/v1", reply)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield http.endpoint
    finally:
        http.endpoint.stopping.set()
        http.shutdown()
        thread.join()
        http.server_close()


def event(text: str | None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def streams(*pieces: bytes) -> Reply:
    """Server-sent events, each piece flushed separately."""

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
    """A complete JSON response, from an endpoint that does not stream."""
    return refuses(200, json.dumps(value).encode())


def trickles(piece: bytes, pause: float) -> Reply:
    """Repeats the piece until the client disconnects or the test ends."""

    def reply(handler: Handler) -> None:
        handler.begin(200, "text/event-stream")
        while not handler.server.endpoint.stopping.is_set():
            handler.write(piece)
            time.sleep(pause)

    return reply


def in_turn(*replies: Reply) -> Reply:
    """One reply after another; the last one for all further requests."""
    left = list(replies)

    def reply(handler: Handler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return reply


def says(text: str) -> Reply:
    """A typical endpoint's stream: a role first, the text in pieces, usage at the end."""
    pieces = [text[i : i + 7] for i in range(0, len(text), 7)]
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    usage = b'data: {"choices":[],"usage":{"total_tokens":9}}\n\n'
    return chunked(role, *map(event, pieces), event(None, "stop"), usage, DONE)


def talks(handler: Handler) -> None:
    """Answers what was said last, in pieces; does as told by `be slow` and `break off`."""
    _, _, body = handler.server.endpoint.requests[-1]
    said = body["messages"][-1]["content"]
    if said == "break off":
        return streams(event("I was"))(handler)
    if said == "be slow":
        time.sleep(1.5)
    says(f"You said: {said}")(handler)


def chat_settings(endpoint: Server) -> dict[str, str]:
    """The settings of a worker that also sells `chat` by this endpoint."""
    agents = "tests.fakes.money_agents,worker.shipped.chat"
    return {"WORKER_AGENTS": agents, "CHAT_BASE_URL": endpoint.url, "CHAT_MODEL": "m-1"}


def hangs() -> Reply:
    """Takes the request and sends no response."""
    return lambda handler: handler.server.endpoint.stopping.wait(20) and None
