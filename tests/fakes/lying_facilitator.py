"""A proxy in front of a correct facilitator that falsifies its responses as a test configures it."""

from __future__ import annotations

import json
import secrets
from collections import deque

import requests

from worker.local.httpd import Answer, JsonServer, as_json

REFUSAL = "invalid_exact_evm_insufficient_balance"


class LyingFacilitator:
    """Each settle call uses up one of `lies`.

    'refused': settles and answers no. 'random': does nothing and answers yes, with a made-up hash.
    """

    def __init__(self) -> None:
        self.behind = ""
        self.lies: deque[str] = deque()
        self.settled: list[str] = []
        self._server = JsonServer(self._handle)
        self.url = self._server.url
        self._server.start()

    def close(self) -> None:
        self._server.close()

    def _handle(self, method: str, path: str, body: bytes) -> Answer:
        lie = ""
        if path.startswith("/settle"):
            payment = json.loads(body)["paymentPayload"]["payload"]["authorization"]
            self.settled.append(payment["nonce"])
            lie = self.lies.popleft() if self.lies else ""
        if lie == "random":
            false_success = {
                "success": True,
                "transaction": "0x" + secrets.token_hex(32),
                "network": "eip155:84532",
            }
            return as_json(200, false_success)
        answer = requests.request(method, self.behind + path, data=body, timeout=60)
        if lie == "refused":
            return as_json(200, {"success": False, "errorReason": REFUSAL, "transaction": ""})
        return answer.status_code, answer.content
