"""A client that posts: `python -m bench.posts PORT PATH AUTHORIZATION CONNECTIONS REQUESTS FILE`.

The file holds the body; `#N#` in it becomes a different number in each request.
"""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import itertools
import secrets
import sys
import time
from http.client import HTTPConnection
from pathlib import Path

from bench.crowd import crowd


def main(port: int, path: str, authorization: str, connections: int, requests: int, body: str) -> None:
    """Each connection posts again on a response, until all requests are made."""
    times: list[float] = []
    left = iter(range(requests))
    run, numbers = secrets.token_hex(4), itertools.count()
    headers = {"Content-Type": "application/json", "Authorization": authorization}

    def post() -> None:
        link = HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in left:
            raw = body.replace("#N#", f"{run}-{next(numbers)}").encode()
            began = time.perf_counter()
            link.request("POST", path, raw, headers)
            answer = link.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise ValueError(f"a request was refused: {answer.status} {content[:200]!r}")
            times.append(time.perf_counter() - began)
        link.close()

    crowd(connections, post, times)


if __name__ == "__main__":
    _, number, where, shown, links, count, file = sys.argv
    main(int(number), where, shown, int(links), int(count), Path(file).read_text())
