"""Receivers of webhooks, each at an address of its own: `python -m bench.receivers PORT HOSTS`.

`GET /count` on any of them tells how many calls came to all, and when the first and the last one did.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from bench.tiny_http import serve


def host(number: int) -> str:
    return f"127.0.1.{number + 1}"


class Receivers:
    """The calls that came."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def answer(self, path: bytes, body: bytes) -> dict[str, Any]:
        if path != b"/count":
            self._times.append(time.time())
            return {}
        times = self._times or [0.0]
        return {"calls": len(self._times), "seconds": times[-1] - times[0]}


if __name__ == "__main__":
    receivers = Receivers()
    serve(int(sys.argv[1]), receivers.answer, hosts=["127.0.0.1", *map(host, range(int(sys.argv[2])))])
