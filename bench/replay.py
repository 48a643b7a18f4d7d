"""A client that sends requests made beforehand: `python -m bench.replay PORT CONNECTIONS FILE RATE`.

Closed loop (RATE 0): each connection sends its next request on a response. Open loop: RATE requests are due
each second, whatever the server does, and a request's time begins when it was due. Prints timings, how often
each status came, and the processor time of this client.
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


def answer(link: socket.socket) -> tuple[int, bytes, bool]:
    """Reads one response; returns its status and body, and whether the connection stays open."""
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
    return int(head.split(b" ", 2)[1]), body, b"connection: close" not in lower


def _more(link: socket.socket) -> bytes:
    part = link.recv(65_536)
    if not part:
        raise ConnectionError("the server closed a connection")
    return part


def main(port: int, connections: int, file: Path, rate: float) -> None:
    requests = enumerate(unpack(file))
    times: list[float] = []
    statuses: Counter[int] = Counter()
    cpu, first = time.process_time(), time.perf_counter()

    def ask() -> None:
        link: socket.socket | None = None
        for number, request in requests:
            began = time.perf_counter()
            if rate:
                due = first + number / rate
                time.sleep(max(0.0, due - began))
                began = due
            link = link or socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            link.sendall(request)
            status, body, stays = answer(link)
            times.append(time.perf_counter() - began)
            statuses[status] += 1
            if statuses[status] == 1 and status >= 500:
                print(body.decode(errors="replace"), file=sys.stderr)
            if not stays:  # as gunicorn's sync workers do
                link.close()
                link = None
        if link is not None:
            link.close()

    def more() -> dict[str, float]:
        codes = {f"status_{code}": float(count) for code, count in statuses.items()}
        return {**codes, "client_cpu": time.process_time() - cpu}

    crowd(connections, ask, times, more)


if __name__ == "__main__":
    _, number, links, packed, fixed = sys.argv
    main(int(number), int(links), Path(packed), float(fixed))
