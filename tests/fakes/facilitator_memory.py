"""A facilitator without HTTP that settles on a `MemoryChain`, and fails as a test plans it.

A plan is a list of words, each used up by one settle call: `drop` (nothing moved, no response), `moved`
(the money moved, no response), `pending` (moved, HTTP 500 with a hash), `lie` (success, but nothing moved),
`hash 0x...` (success with that hash, but nothing moved), anything else is a refusal code.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from tests.fakes.chain import MemoryChain, NotAccepted
from tests.fakes.open_calls import AnswersAtOnce
from worker.x402.facilitator_answers import FacilitatorAnswer

USED = "invalid_exact_evm_nonce_already_used"
POOR = "invalid_exact_evm_insufficient_balance"
EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"


class MemoryFacilitator(AnswersAtOnce):
    """Records every body it received; `during` runs inside each settle call, before the transfer."""

    def __init__(self, chain: MemoryChain) -> None:
        self.chain = chain
        self.plan: list[str] = []
        self.sent: list[Mapping[str, Any]] = []
        self.during: Callable[[], None] = lambda: None

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        authorization = payload["payload"]["authorization"]
        if (authorization["from"].lower(), authorization["nonce"].lower()) in self.chain._used:
            return FacilitatorAnswer(200, {"isValid": False, "invalidReason": USED})
        return FacilitatorAnswer(200, {"isValid": True, "payer": authorization["from"]})

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        self.sent.append(payload)
        self.during()
        word = self.plan.pop(0) if self.plan else ""
        if word == "drop":
            return FacilitatorAnswer(fault="dropped")
        if word == "lie" or word.startswith("hash "):
            tx = word[5:] or "0x" + secrets.token_hex(32)
            return FacilitatorAnswer(200, {"success": True, "transaction": tx, "network": "eip155:84532"})
        if word and word not in ("moved", "pending"):
            return _no(word)
        try:
            moved = self._move(payload["payload"]["authorization"])
        except NotAccepted as why:
            return _no(POOR if "balance" in str(why) else EXPIRED if "expired" in str(why) else USED)
        if word == "moved":
            return FacilitatorAnswer(fault="dropped")
        if word == "pending":
            body = {"success": False, "errorReason": "settlement_pending", "transaction": moved}
            return FacilitatorAnswer(500, body)
        return FacilitatorAnswer(200, {"success": True, "transaction": moved, "network": "eip155:84532"})

    def _move(self, authorization: Mapping[str, str]) -> str:
        if int(authorization["validBefore"]) * 1_000_000 <= self.chain._times[-1]:
            raise NotAccepted("expired")
        return self.chain.settle(
            (authorization["from"], authorization["nonce"]), authorization["to"], int(authorization["value"])
        )

    def supported(self) -> FacilitatorAnswer:
        kinds = [{"x402Version": 2, "scheme": "exact", "network": "eip155:84532"}]
        return FacilitatorAnswer(200, {"kinds": kinds})


def _no(code: str) -> FacilitatorAnswer:
    return FacilitatorAnswer(200, {"success": False, "errorReason": code, "transaction": ""})
