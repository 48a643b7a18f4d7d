"""A client with many connections: `python -m bench.load PORT PATH CONNECTIONS REQUESTS BODY`."""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import socket
import sys
import time

from bench.crowd import crowd

_ANSWER = b"HTTP/1.1 200 OK"


def main(port: int, path: str, connections: int, requests: int, body: bytes) -> None:
    """Each connection sends its next request on a response, until all requests are made."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    times: list[float] = []
    left = iter(range(requests))

    def ask() -> None:
        link = socket.create_connection(("127.0.0.1", port), timeout=60)
        for _ in left:
            began = time.perf_counter()
            link.sendall(request)
            answer = b""
            while not answer.endswith(body):
                part = link.recv(4096)
                if not part:
                    raise ConnectionError("the server closed a connection")
                answer += part
            if not answer.startswith(_ANSWER):
                raise ValueError("a request was refused")
            times.append(time.perf_counter() - began)
        link.close()

    crowd(connections, ask, times)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5].encode())
