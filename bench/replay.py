"""A client that sends requests made beforehand: `python -m bench.replay PORT CONNECTIONS FILE`.

Each connection sends its next request on a response. Prints timings, and how often each status came.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import socket
import sys
import time
from collections import Counter
from pathlib import Path

from bench.batches import unpack
from bench.crowd import crowd

PATIENCE = 60.0


def answer(link: socket.socket) -> tuple[int, bool]:
    """Reads one response; returns its status, and whether the connection stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _more(link)
    head, _, body = received.partition(b"\r\n\r\n")
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        while not body.endswith(b"0\r\n\r\n"):
            body += _more(link)
    else:
        _, found, length = lower.partition(b"content-length:")
        wanted = int(length.split(b"\r\n", 1)[0]) if found else 0
        while len(body) < wanted:
            body += _more(link)
    return int(head.split(b" ", 2)[1]), b"connection: close" not in lower


def _more(link: socket.socket) -> bytes:
    part = link.recv(65_536)
    if not part:
        raise ConnectionError("the server closed a connection")
    return part


def main(port: int, connections: int, file: Path) -> None:
    requests = iter(unpack(file))
    times: list[float] = []
    statuses: Counter[int] = Counter()

    def ask() -> None:
        link: socket.socket | None = None
        for request in requests:
            began = time.perf_counter()
            link = link or socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            link.sendall(request)
            status, stays = answer(link)
            times.append(time.perf_counter() - began)
            statuses[status] += 1
            if not stays:  # as gunicorn's sync workers do
                link.close()
                link = None
        if link is not None:
            link.close()

    crowd(connections, ask, times, lambda: {f"status_{code}": count for code, count in statuses.items()})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
