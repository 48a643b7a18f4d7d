"""A facilitator without HTTP that settles on a `MemoryChain`, and fails in the ways it is told to.

A plan is a list of words, each used up by one settle call: `drop` (nothing moved, no answer), `moved`
(the money moved, no answer), `pending` (moved, HTTP 500 with a hash), anything else is a refusal code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.chain import MemoryChain, NotAccepted
from worker.payments.outcomes import Answer

USED = "invalid_exact_evm_nonce_already_used"
POOR = "invalid_exact_evm_insufficient_balance"
EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"


class MemoryFacilitator:
    """Keeps every body it was sent; `during` runs inside each settle call, before anything moves."""

    def __init__(self, chain: MemoryChain) -> None:
        self.chain = chain
        self.plan: list[str] = []
        self.sent: list[Mapping[str, Any]] = []
        self.during: Callable[[], None] = lambda: None

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answer:
        given = payload["payload"]["authorization"]
        if (given["from"].lower(), given["nonce"].lower()) in self.chain._used:
            return Answer(200, {"isValid": False, "invalidReason": USED})
        return Answer(200, {"isValid": True, "payer": given["from"]})

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answer:
        self.sent.append(payload)
        self.during()
        word = self.plan.pop(0) if self.plan else ""
        if word == "drop":
            return Answer(fault="dropped")
        if word and word not in ("moved", "pending"):
            return _no(word)
        try:
            moved = self._move(payload["payload"]["authorization"])
        except NotAccepted as why:
            return _no(POOR if "balance" in str(why) else EXPIRED if "expired" in str(why) else USED)
        if word == "moved":
            return Answer(fault="dropped")
        if word == "pending":
            body = {"success": False, "errorReason": "settlement_pending", "transaction": moved}
            return Answer(500, body)
        return Answer(200, {"success": True, "transaction": moved, "network": "eip155:84532"})

    def _move(self, given: Mapping[str, str]) -> str:
        if int(given["validBefore"]) * 1_000_000 <= self.chain._times[-1]:
            raise NotAccepted("expired")
        return self.chain.settle((given["from"], given["nonce"]), given["to"], int(given["value"]))

    def supported(self) -> Answer:
        kinds = [{"x402Version": 2, "scheme": "exact", "network": "eip155:84532"}]
        return Answer(200, {"kinds": kinds})


def _no(code: str) -> Answer:
    return Answer(200, {"success": False, "errorReason": code, "transaction": ""})
