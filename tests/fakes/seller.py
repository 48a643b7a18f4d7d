"""A worker in memory, for tests of the seeker: honest unless its plan says otherwise.

It is a transport: `Seeker(..., http=Seller())`. Each `POST /execute` uses up one step of `plan`; when there
is none it asks for money, and delivers to whoever pays.
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

from worker.contracts.canonical import contract_hash, parse
from worker.contracts.signatures import address_of, sign_digest, sign_text
from worker.payments.headers import response_headers
from worker.payments.networks import BASE_SEPOLIA, Network
from worker.payments.offer import Offer
from worker.payments.receipts import Settlement, failed_response, settled_response
from worker.seeker.http import Answer, Dropped

URL = "https://worker.example"
WORKER_KEY = "0x" + "22" * 32
SEEKER_KEY = "0x" + "11" * 32
WORKER = address_of(WORKER_KEY)
SEEKER = address_of(SEEKER_KEY)
TRANSACTION = "0x" + "ab" * 32
FILE = b"<svg/>"
TASK = "task-1"


@dataclass(frozen=True)
class Got:
    """One request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def payment(self) -> str | None:
        return self.headers.get("payment-signature") or self.headers.get("x-payment")


Step = Callable[[Got], Answer]


@dataclass
class Seller:
    """The worker and everything it was sent."""

    price: str = "0.50"
    network: Network = BASE_SEPOLIA
    plan: deque[Step] = field(default_factory=deque)
    polls: deque[Step] = field(default_factory=deque)
    got: list[Got] = field(default_factory=list)
    stream: list[list[str]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=lambda: {"/files/logo.svg": FILE})
    manifest_changes: dict[str, Any] = field(default_factory=dict)
    countersigned: Callable[[dict[str, Any]], Any] = lambda contract: contract
    offered: Callable[[Offer], Offer] = lambda offer: offer
    watch: Callable[[Got], None] = lambda got: None
    contracts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = 0,
    ) -> Answer:
        parts = urlsplit(url)
        lower = {name.lower(): value for name, value in (headers or {}).items()}
        got = Got(method, parts.path, lower, body or b"")
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
                return Answer(200, {}, self.files[path])
        return answer(
            404, {"status": "failed", "error": {"code": "NOT_FOUND", "message": "no", "details": {}}}
        )

    def lines(self, url: str, headers: Mapping[str, str]) -> Iterator[str]:
        self.got.append(Got("STREAM", urlsplit(url).path, {k.lower(): v for k, v in headers.items()}, b""))
        if not self.stream:
            raise Dropped("no stream")
        yield from self.stream.pop(0)

    @property
    def executes(self) -> list[Got]:
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
            "endpoint": {"url": URL},
            "metadata": {"network": self.network.caip2},
            **self.manifest_changes,
        }

    def _countersign(self, draft: dict[str, Any]) -> Answer:
        signed = {
            **draft,
            "hash": contract_hash(draft),
            "signatures": {"worker": sign_text(contract_hash(draft), WORKER_KEY)},
        }
        return answer(201, self.countersigned(signed))

    # steps of a plan

    def honest(self, got: Got) -> Answer:
        return self.done(got) if got.payment else self.ask(got)

    def offer(self) -> Offer:
        offer = Offer(
            network=self.network,
            price=self.price,
            pay_to=WORKER,
            payer=SEEKER,
            max_timeout_s=600,
            needed_s=60,
            resource_url=f"{URL}/execute",
        )
        return self.offered(offer)

    def ask(self, got: Got) -> Answer:
        """402 with both dialects."""
        offer = self.offer()
        return answer(402, offer.v1_body("payment required"), offer.headers("payment required"))

    def refuse(self, code: str, **response: Any) -> Step:
        """402 that says what became of the payment."""

        def step(got: Got) -> Answer:
            asked = self.ask(got)
            said = {**failed_response(code, self.network.caip2), **response}
            return replace(asked, headers={**asked.headers, **lower(response_headers(said))})

        return step

    def done(self, got: Got) -> Answer:
        settlement = Settlement(self.network.caip2, f"{URL}/execute", SEEKER, TRANSACTION, int(time.time()))
        response = settled_response(settlement, lambda digest: sign_digest(digest, WORKER_KEY))
        body = {
            "status": "completed",
            "task_id": TASK,
            "deliverables": [
                {
                    "name": "logo.svg",
                    "url": f"{URL}/files/logo.svg",
                    "checksum": "sha256:" + hashlib.sha256(FILE).hexdigest(),
                    "mime": "image/svg+xml",
                    "size": len(FILE),
                }
            ],
            "receipt": response["extensions"]["offer-receipt"]["info"]["receipt"],
        }
        return answer(200, body, response_headers(response))

    def pending(self, got: Got) -> Answer:
        body = {"status": "pending", "task_id": TASK, "phase": "working", "poll_url": f"{URL}/tasks/{TASK}"}
        return answer(202, body, {"Retry-After": "3", "ETag": '"1"'})


def drop(got: Got) -> Answer:
    """The connection ends without an answer."""
    raise Dropped("the connection was lost")


def status(number: int, **headers: str) -> Step:
    """An answer that says nothing but its status."""
    return lambda got: Answer(number, lower({k.replace("_", "-"): v for k, v in headers.items()}), b"oops")


def failed(code: str, number: int = 500, task_id: str | None = TASK, **details: Any) -> Step:
    body = {"status": "failed", "error": {"code": code, "message": "no", "details": details}}
    return lambda got: answer(number, {**body, "task_id": task_id} if task_id else body)


def answer(number: int, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(number, lower(headers or {}), json.dumps(body).encode())


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
