"""A buyer at the plain door: requests, signs the 402's offer, and repeats the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fakes.seeker import DoorAnswer, Seeker, encoded, signed_payment
from worker.contracts.signatures import sign_text
from worker.x402.sign_in import SIGN_IN, message


@dataclass
class PlainBuyer:
    """A wallet that buys without contracts."""

    seeker: Seeker
    capability: str = "echo"

    @property
    def wallet(self) -> str:
        return self.seeker.wallet

    @property
    def path(self) -> str:
        return f"/buy/{self.capability}"

    def ask(self, body: Any = None, **headers: str) -> DoorAnswer:
        return self.seeker.door("POST", self.path, body, _named(headers))

    def send(self, body: Any, payment: str, **headers: str) -> DoorAnswer:
        return self.ask(body, PAYMENT_SIGNATURE=payment, **headers)

    def sign(self, body: Any = None, **wrong: Any) -> str:
        """A payment for the door's offer."""
        asked = self.ask({"do": "ok"} if body is None else body)
        assert asked.status == 402, (asked.status, asked.content)
        return signed_payment(asked.payment_required, self.seeker.key, self.seeker.now(), **wrong)

    def buy(self, body: Any, **headers: str) -> DoorAnswer:
        return self.send(body, self.sign(body), **headers)

    def read(self, task_id: str, **headers: str) -> DoorAnswer:
        return self.seeker.door("GET", f"/tasks/{task_id}", None, _named(headers))

    def proof(self, challenge: dict[str, Any] | None = None, **wrong: Any) -> str:
        """A signed sign-in-with-x challenge, a fresh one from the worker unless given."""
        if challenge is None:
            asked = self.seeker.door("GET", "/tasks")
            assert asked.status == 401, asked.content
            challenge = asked.json["extensions"][SIGN_IN]
        chain = challenge["supportedChains"][0]
        proof = {**challenge["info"], "address": self.wallet, **chain, **wrong}
        return encoded({**proof, "signature": sign_text(message(proof), self.seeker.key)})


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in headers.items()}
