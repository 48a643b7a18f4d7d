"""An in-memory worker for the seeker's tests: correct unless its plan says otherwise.

It is a transport: `Seeker(..., http=FakeWorker())`. Each `POST /execute` uses up one step of `plan`; with
none left it asks for payment, and delivers once paid.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from worker.contracts.signatures import address_of, sign_digest, sign_text
from worker.core.canonical import contract_hash, parse
from worker.seeker.http import ConnectionDropped, HttpAnswer
from worker.x402.headers import response_headers
from worker.x402.networks import BASE_SEPOLIA, Network
from worker.x402.offer import Offer
from worker.x402.receipts import Settlement, failed_response, settled_response

URL = "https://worker.example"
WORKER_KEY = "0x" + "22" * 32
SEEKER_KEY = "0x" + "11" * 32
WORKER = address_of(WORKER_KEY)
SEEKER = address_of(SEEKER_KEY)
TRANSACTION = "0x" + "ab" * 32
FILE = b"<svg/>"
TASK = "task-1"


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def payment(self) -> str | None:
        return self.headers.get("payment-signature") or self.headers.get("x-payment")


Step = Callable[[ReceivedRequest], HttpAnswer]


@dataclass
class FakeWorker:
    """The worker and every request it received."""

    price: str = "0.50"
    url: str = URL
    network: Network = BASE_SEPOLIA
    plan: deque[Step] = field(default_factory=deque)
    polls: deque[Step] = field(default_factory=deque)
    got: list[ReceivedRequest] = field(default_factory=list)
    stream: list[list[str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=lambda: {"/files/logo.svg": FILE})
    manifest_changes: dict[str, Any] = field(default_factory=dict)
    countersigned: Callable[[dict[str, Any]], Any] = lambda contract: contract
    offered: Callable[[Offer], Offer] = lambda offer: offer
    watch: Callable[[ReceivedRequest], None] = lambda got: None
    contracts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = 0,
    ) -> HttpAnswer:
        parts = urlsplit(url)
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        got = ReceivedRequest(method, parts.path, lower, body or b"")
        self.got.append(got)
        self.watch(got)
        match method, parts.path:
            case "GET", "/manifest":
                return answer(200, self.manifest())
            case "POST", "/contracts":
                return self._countersign(parse(got.body))
            case "PUT", "/contracts":
                document = parse(got.body)
                self.contracts[document["contract_id"]] = document
                return answer(200, {"state": "SIGNED"})
            case "POST", "/execute":
                return self.plan.popleft()(got) if self.plan else self.honest(got)
            case "GET", path if path.startswith("/tasks/"):
                return self.polls.popleft()(got) if self.polls else self.done(got)
            case "GET", path if path in self.files:
                return HttpAnswer(200, {}, self.files[path])
        return answer(
            404, {"status": "failed", "error": {"code": "NOT_FOUND", "message": "no", "details": {}}}
        )

    def lines(self, url: str, headers: Mapping[str, str]) -> Iterator[str]:
        self.got.append(
            ReceivedRequest("STREAM", urlsplit(url).path, {k.lower(): v for k, v in headers.items()}, b"")
        )
        if not self.stream:
            raise ConnectionDropped("no stream")
        yield from self.stream.pop(0)

    @property
    def executes(self) -> list[ReceivedRequest]:
        return [each for each in self.got if each.path == "/execute"]

    @property
    def payments(self) -> list[str]:
        """Every payment received, in order, with repetitions."""
        return [each.payment for each in self.executes if each.payment]

    def manifest(self) -> dict[str, Any]:
        return {
            "agent": {"id": "agent_worker", "owner": {"wallet": WORKER}},
            "capabilities": [
                {
                    "name": "logo-design",
                    "description": "Logos.",
                    "pricing": {"type": "per-task", "amount": self.price, "currency": "USDC"},
                    "settle": "after_work",
                }
            ],
            "endpoint": {"url": self.url},
            "metadata": {"network": self.network.caip2},
            **self.manifest_changes,
        }

    def _countersign(self, draft: dict[str, Any]) -> HttpAnswer:
        signed = {
            **draft,
            "hash": contract_hash(draft),
            "signatures": {"worker": sign_text(contract_hash(draft), WORKER_KEY)},
        }
        return answer(201, self.countersigned(signed))

    # Steps of a plan

    def honest(self, got: ReceivedRequest) -> HttpAnswer:
        return self.done(got) if got.payment else self.ask(got)

    def offer(self) -> Offer:
        offer = Offer(
            network=self.network,
            price=self.price,
            pay_to=WORKER,
            payer=SEEKER,
            max_timeout_s=600,
            needed_s=60,
            resource_url=f"{self.url}/execute",
        )
        return self.offered(offer)

    def ask(self, got: ReceivedRequest) -> HttpAnswer:
        """A 402 in both dialects."""
        offer = self.offer()
        return answer(402, offer.v1_body("payment required"), offer.headers("payment required"))

    def refuse(self, code: str, **response: Any) -> Step:
        """A 402 that reports the outcome of the payment."""

        def step(got: ReceivedRequest) -> HttpAnswer:
            asked = self.ask(got)
            refusal = {**failed_response(code, self.network.caip2), **response}
            return replace(asked, headers={**asked.headers, **lower(response_headers(refusal))})

        return step

    def done(self, got: ReceivedRequest) -> HttpAnswer:
        settlement = Settlement(
            self.network.caip2, f"{self.url}/execute", SEEKER, TRANSACTION, int(time.time())
        )
        response = settled_response(settlement, lambda digest: sign_digest(digest, WORKER_KEY))
        body = {
            "status": "completed",
            "task_id": TASK,
            "deliverables": [
                {
                    "name": "logo.svg",
                    "url": f"{self.url}/files/logo.svg",
                    "checksum": "sha256:" + hashlib.sha256(FILE).hexdigest(),
                    "mime": "image/svg+xml",
                    "size": len(FILE),
                }
            ],
            "receipt": response["extensions"]["offer-receipt"]["info"]["receipt"],
        }
        return answer(200, body, response_headers(response))

    def pending(self, got: ReceivedRequest) -> HttpAnswer:
        body = {
            "status": "pending",
            "task_id": TASK,
            "phase": "working",
            "poll_url": f"{self.url}/tasks/{TASK}",
        }
        return answer(202, body, {"Retry-After": "3", "ETag": '"1"'})


def drop(got: ReceivedRequest) -> HttpAnswer:
    """Closes the connection without a response."""
    raise ConnectionDropped("the connection was lost")


def status(number: int, **headers: str) -> Step:
    """A response with only a status."""
    return lambda got: HttpAnswer(
        number, lower({k.replace("_", "-"): v for k, v in headers.items()}), b"oops"
    )


def failed(code: str, number: int = 500, task_id: str | None = TASK, **details: Any) -> Step:
    body = {"status": "failed", "error": {"code": code, "message": "no", "details": details}}
    return lambda got: answer(number, {**body, "task_id": task_id} if task_id else body)


def answer(number: int, body: Any, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    return HttpAnswer(number, lower(headers or {}), json.dumps(body).encode())


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
