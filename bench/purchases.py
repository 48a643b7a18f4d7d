"""Paid requests made beforehand, so that a load costs the client nothing but sending."""

from __future__ import annotations

import base64
import json
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fakes.seeker import Hired, HttpDoor, Seeker, signed_payment

BODY = b'{"a":1}'
# One wallet may have twenty payments open.
WALLETS = 16


def wallets(count: int = WALLETS) -> list[str]:
    """The keys of wallets that nobody knows yet."""
    return ["0x" + secrets.token_hex(32) for _ in range(count)]


@dataclass(frozen=True)
class Target:
    """Where something is sold."""

    port: int
    path: str

    def request(self, headers: dict[str, str]) -> bytes:
        """One whole HTTP request with the body that all of them have."""
        shown = {
            "Host": f"127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(BODY)),
            **headers,
        }
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {text}" for name, text in shown.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + BODY

    def offer(self) -> dict[str, Any]:
        """What its 402 asks for."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{self.path}", BODY, {"Content-Type": "application/json"}
        )
        try:
            urllib.request.urlopen(asked, timeout=10)
        except urllib.error.HTTPError as error:
            if error.code == 402:
                found: dict[str, Any] = json.loads(base64.b64decode(error.headers["PAYMENT-REQUIRED"]))
                return found
            raise
        raise ValueError("nothing is sold here")


def plain(
    target: Target, keys: Sequence[str], count: int, offer: Mapping[str, Any] | None = None
) -> list[bytes]:
    """Requests that each pay with an authorization of their own."""
    offer, now = offer or target.offer(), time.time()
    return [
        target.request({"PAYMENT-SIGNATURE": signed_payment(offer, keys[number % len(keys)], now)})
        for number in range(count)
    ]


def contracts(port: int, capability: str, keys: Sequence[str], count: int) -> list[Hired]:
    """Contracts that both parties have signed."""
    door = HttpDoor(f"http://127.0.0.1:{port}")
    seekers = [Seeker(door, key) for key in keys]
    return [seekers[number % len(seekers)].hire(capability) for number in range(count)]


def asking(port: int, hired: Sequence[Hired]) -> list[bytes]:
    """Requests that are answered 402."""
    target = Target(port, "/execute")
    return [target.request({"X-Contract-ID": each.id}) for each in hired]


def paying(port: int, hired: Sequence[Hired]) -> list[bytes]:
    """Requests that pay for their contract; all contracts have the same terms, so one offer serves."""
    target, now = Target(port, "/execute"), time.time()
    offer = hired[0].offer(json.loads(BODY))
    return [
        target.request(
            {
                "X-Contract-ID": each.id,
                "PAYMENT-SIGNATURE": signed_payment(offer, each.seeker.key, now),
            }
        )
        for each in hired
    ]
