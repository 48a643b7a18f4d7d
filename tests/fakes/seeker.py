"""A seeker for tests that drafts, signs and pays manually, so that any field can be wrong."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import requests
from flask import Flask

from worker.contracts.signatures import address_of, sign_digest, sign_text
from worker.x402.networks import BASE_SEPOLIA
from worker.x402.typed_data import Authorization, transfer_digest

FEE_WALLET = "0x" + "ab" * 20


@dataclass(frozen=True)
class DoorAnswer:
    """A response from either kind of door."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def code(self) -> str:
        body = self.json
        return str(body["code"] if "code" in body else body["error"]["code"])

    def header(self, name: str) -> str | None:
        return {key.lower(): value for key, value in self.headers.items()}.get(name.lower())

    @property
    def payment_response(self) -> dict[str, Any] | None:
        text = self.header("PAYMENT-RESPONSE")
        return None if text is None else json.loads(base64.b64decode(text))

    @property
    def payment_required(self) -> dict[str, Any]:
        text = self.header("PAYMENT-REQUIRED")
        assert text is not None, (self.status, self.content)
        found: dict[str, Any] = json.loads(base64.b64decode(text))
        return found


class OtherStatus(AssertionError):
    """An answer with another status than the seeker goes on with."""

    def __init__(self, answer: DoorAnswer, wanted: int) -> None:
        super().__init__(f"{answer.status} instead of {wanted}: {answer.content!r}")
        self.status = answer.status


def expect(answer: DoorAnswer, status: int) -> DoorAnswer:
    if answer.status != status:
        raise OtherStatus(answer, status)
    return answer


class Door(Protocol):
    def __call__(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> DoorAnswer: ...


class FlaskDoor:
    """The application in this process; a new client for each call, so that threads may call."""

    def __init__(self, app: Flask) -> None:
        self._app = app

    def __call__(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> DoorAnswer:
        options = {} if body is None else {"json": body}
        answer = self._app.test_client().open(path, method=method, headers=dict(headers or {}), **options)
        return DoorAnswer(answer.status_code, dict(answer.headers), answer.data)


class HttpDoor:
    """A worker at an HTTP address."""

    def __init__(self, url: str, timeout: float = 40.0) -> None:
        self.url = url
        self._timeout = timeout

    def __call__(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> DoorAnswer:
        # A new connection each time: the server may have died since the last one.
        answer = requests.request(
            method, self.url + path, json=body, headers=dict(headers or {}), timeout=self._timeout
        )
        return DoorAnswer(answer.status_code, dict(answer.headers), answer.content)


@dataclass
class Seeker:
    """A wallet that hires. `now` is its current time in seconds."""

    door: Door
    key: str = field(default_factory=lambda: "0x" + secrets.token_hex(32), repr=False)
    now: Callable[[], float] = time.time

    @property
    def wallet(self) -> str:
        return address_of(self.key)

    def draft(
        self, capability: str = "echo", price: str = "0.01", *, hours: float = 6.0, **changes: Any
    ) -> dict[str, Any]:
        """A seeker's contract draft; `changes` go into `terms`, `sla` and `task` by name."""
        manifest = self.door("GET", "/manifest").json
        now = datetime.fromtimestamp(self.now(), UTC)
        worker = manifest["agent"]
        document: dict[str, Any] = {
            "version": "HIRE/1.0",
            "created_at": _text(now),
            "parties": {
                "seeker": {"agent_id": "agent_seeker", "wallet": self.wallet},
                "worker": {"agent_id": worker["id"], "wallet": worker["owner"]["wallet"]},
            },
            "task": {"description": "a test", "capability": capability, **changes.get("task", {})},
            "terms": {
                "price": {"amount": price, "currency": "USDC", "network": "base"},
                "deadline": _text(now + timedelta(hours=hours)),
                "payment_trigger": "on_delivery",
                "platform_fee": {"percentage": 1, "wallet": FEE_WALLET},
                **changes.get("terms", {}),
            },
        }
        if "sla" in changes:
            document["sla"] = changes["sla"]
        return document

    def hire(self, capability: str = "echo", price: str = "0.01", **changes: Any) -> Hired:
        """A contract that both parties signed."""
        draft = self.draft(capability, price, **changes)
        document = expect(self.door("POST", "/contracts", draft), 201).json
        document["signatures"]["seeker"] = sign_text(document["hash"], self.key)
        expect(self.door("PUT", "/contracts", document), 200)
        return Hired(self, document)


@dataclass
class Hired:
    """One contract as its seeker holds it."""

    seeker: Seeker
    document: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.document["contract_id"])

    def execute(self, body: Any = None, payment: str | None = None, **headers: str) -> DoorAnswer:
        request_headers = {
            "X-Contract-ID": self.id,
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        if payment is not None:
            request_headers["PAYMENT-SIGNATURE"] = payment
        return self.seeker.door("POST", "/execute", {"do": "ok"} if body is None else body, request_headers)

    def poll(self, task_id: str) -> DoorAnswer:
        return self.seeker.door("GET", f"/tasks/{task_id}", None, {"X-Contract-ID": self.id})

    def cancel(self, task_id: str) -> DoorAnswer:
        return self.seeker.door("DELETE", f"/tasks/{task_id}", None, {"X-Contract-ID": self.id})

    def offer(self, body: Any = None) -> dict[str, Any]:
        """The offer in the 402."""
        return expect(self.execute(body), 402).payment_required

    def sign(self, offer: Mapping[str, Any] | None = None, **wrong: Any) -> str:
        return signed_payment(offer or self.offer(), self.seeker.key, self.seeker.now(), **wrong)

    def pay(self, body: Any = None, **headers: str) -> DoorAnswer:
        """Requests, signs and sends the payment, as every published client does."""
        return self.execute(body, self.sign(self.offer(body)), **headers)

    def ended(self, task_id: str, seconds: float = 20.0) -> DoorAnswer:
        """Polls until the end; returns that response."""
        until = time.monotonic() + seconds
        while True:
            response = self.poll(task_id)
            if response.json["status"] in ("completed", "failed"):
                return response
            assert time.monotonic() < until, response.content
            time.sleep(0.05)


def signed_payment(
    offer: Mapping[str, Any],
    key: str,
    now: float,
    *,
    nonce: str | None = None,
    valid_before: int | None = None,
    valid_after: int = 0,
    value: int | None = None,
    to: str | None = None,
    identifier: str | None = None,
    signature: str | None = None,
    **accepted: Any,
) -> str:
    """A PAYMENT-SIGNATURE for the first offer; every part can be overridden."""
    asked = {**offer["accepts"][0], **accepted}
    authorization = Authorization(
        payer=address_of(key).lower(),
        to=(to or asked["payTo"]).lower(),
        value=int(asked["amount"]) if value is None else value,
        valid_after=valid_after,
        valid_before=int(now) + asked["maxTimeoutSeconds"] if valid_before is None else valid_before,
        nonce=nonce or "0x" + secrets.token_hex(32),
    )
    signature_hex = (
        signature or "0x" + sign_digest(transfer_digest(BASE_SEPOLIA.domain, authorization), key).hex()
    )
    document: dict[str, Any] = {
        "x402Version": 2,
        "accepted": asked,
        "resource": offer["resource"],
        "payload": {"signature": signature_hex, "authorization": authorization.to_wire()},
    }
    if identifier is not None:
        document["extensions"] = {"payment-identifier": {"info": {"required": False, "id": identifier}}}
    return encoded(document)


def encoded(document: Any) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def decoded(header: str) -> Any:
    return json.loads(base64.b64decode(header))


def nonce_of(header: str) -> str:
    return str(decoded(header)["payload"]["authorization"]["nonce"]).lower()


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
