"""A facilitator that costs little: `python -m bench.facilitator PORT VERIFY_SECONDS SETTLE_SECONDS`.

It says yes to everything, as fast as Python can. `GET /count` tells how many payments it settled, each
counted once, so that a run can prove that both sides charged as often as they were asked to.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

NETWORK = "eip155:84532"
_SUPPORTED = {
    "kinds": [
        {"x402Version": 2, "scheme": "exact", "network": NETWORK},
        {"x402Version": 1, "scheme": "exact", "network": "base-sepolia"},
    ],
    "extensions": [],
    "signers": {"eip155:*": ["0x" + "11" * 20]},
}


class Facilitator:
    """What was settled, by payer and nonce."""

    def __init__(self, verify_s: float, settle_s: float) -> None:
        self._delays = {b"/verify": verify_s, b"/settle": settle_s}
        self._settled: set[str] = set()

    def delay(self, path: bytes) -> float:
        return self._delays.get(path, 0.0)

    def answer(self, path: bytes, body: bytes) -> dict[str, Any]:
        if path == b"/supported":
            return _SUPPORTED
        if path == b"/count":
            return {"settled": len(self._settled)}
        payment = json.loads(body)["paymentPayload"]["payload"]["authorization"]
        if path == b"/verify":
            return {"isValid": True, "payer": payment["from"]}
        nonce = payment["nonce"].lower()
        self._settled.add(nonce)
        # A nonce is 32 bytes as a transaction's hash is, and as unique.
        return {"success": True, "transaction": nonce, "network": NETWORK, "payer": payment["from"]}


class _Link(asyncio.Protocol):
    """One kept connection; requests come one after the other."""

    def __init__(self, facilitator: Facilitator) -> None:
        self._facilitator = facilitator
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
        delay = self._facilitator.delay(path)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._send, path, rest[:wanted])
        else:
            self._send(path, rest[:wanted])

    def _send(self, path: bytes, body: bytes) -> None:
        content = json.dumps(self._facilitator.answer(path, body)).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(content) + content)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _serve(port: int, facilitator: Facilitator) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: _Link(facilitator), "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Facilitator(float(sys.argv[2]), float(sys.argv[3]))))
