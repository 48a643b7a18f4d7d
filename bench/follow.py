"""Many followers of event streams: `python -m bench.follow PORT FILE FOLLOWERS SECONDS`.

The file names the executions; followers share them evenly. Prints READY once all streams are open, then how
long after its writing each event arrived: the writer puts the time into the event.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import json
import socket
import sys
import time
from pathlib import Path

import gevent

from bench.rounds import latencies

MARK = b"sent-"


def follow(port: int, id: str, opened: list[str], times: list[float], until: float) -> None:
    link = socket.create_connection(("127.0.0.1", port), timeout=60)
    request = f"GET /v0/executions/{id}/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
    link.sendall(request.encode())
    received = b""
    while b"retry:" not in received:
        received += link.recv(4096)
    opened.append(id)
    received = b""
    while time.time() < until:
        gevent.socket.wait_read(link.fileno(), timeout=max(0.01, until - time.time()), timeout_exc=_Over())
        received += link.recv(65_536)
        while b"\n\n" in received:
            event, received = received.split(b"\n\n", 1)
            _, found, rest = event.partition(MARK)
            if found:
                times.append(time.time() - float(rest.split(b'"', 1)[0]))


class _Over(Exception):
    """The time is up while a stream is quiet."""


def main(port: int, file: Path, followers: int, seconds: float) -> None:
    ids = file.read_text().split()
    opened: list[str] = []
    times: list[float] = []
    until = time.time() + seconds
    streams = [
        gevent.spawn(_quietly, port, ids[n % len(ids)], opened, times, until) for n in range(followers)
    ]
    while len(opened) < followers and time.time() < until:
        gevent.sleep(0.01)
    print("READY", flush=True)
    gevent.joinall(streams)
    print(json.dumps({"received": len(times), **latencies(times)}), flush=True)


def _quietly(port: int, id: str, opened: list[str], times: list[float], until: float) -> None:
    try:
        follow(port, id, opened, times, until)
    except _Over:
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
