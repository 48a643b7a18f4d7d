"""A facilitator that costs little: `python -m bench.facilitator PORT VERIFY_SECONDS SETTLE_SECONDS`.

It says yes to everything, as fast as Python can. `GET /count` tells how many payments it settled, each
counted once, so that a run can prove that both sides charged as often as they were asked to.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.tiny_http import serve

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
    """What was settled, by nonce."""

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


if __name__ == "__main__":
    facilitator = Facilitator(float(sys.argv[2]), float(sys.argv[3]))
    serve(int(sys.argv[1]), facilitator.answer, facilitator.delay)
