"""An HTTP server that costs little: kept connections, one request after the other, JSON answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

# Path and body of a request to its answer.
Answer = Callable[[bytes, bytes], Any]
# Seconds before a path is answered.
Delay = Callable[[bytes], float]


def no_delay(path: bytes) -> float:
    return 0.0


class _Link(asyncio.Protocol):
    def __init__(self, answer: Answer, delay: Delay) -> None:
        self._answer = answer
        self._delay = delay
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        wanted = _length(head)
        if len(rest) < wanted:
            return
        self._received = rest[wanted:]
        path = head.split(b" ", 2)[1]
        delay = self._delay(path)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._send, path, rest[:wanted])
        else:
            self._send(path, rest[:wanted])

    def _send(self, path: bytes, body: bytes) -> None:
        content = json.dumps(self._answer(path, body)).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(content) + content)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def serve(port: int, answer: Answer, delay: Delay = no_delay, hosts: Sequence[str] = ("127.0.0.1",)) -> None:
    """Serves on these addresses until the process ends."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Link(answer, delay), hosts, port, backlog=1024)
        await server.serve_forever()

    asyncio.run(run())
