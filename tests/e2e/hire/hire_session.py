"""A minimal seeker for tests: drafts, signs, pays what a 402 demands, and retries."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import redis
import requests

from tests.e2e.tree import Local
from worker.contracts.signatures import address_of, sign_digest, sign_text
from worker.store.data_model import Keys
from worker.x402.typed_data import Authorization, Domain, transfer_digest

HERE = Path(__file__).parent
FEE_WALLET = "0x" + "ab" * 20
SECOND = 1_000_000


@contextmanager
def hire_tree(home: Path, *options: str, **settings: str) -> Iterator[HireSession]:
    """A `worker local` with chain and facilitator that sells these tests' agents."""
    defaults = {"FACILITATOR_URL": "", "WORKER_AGENTS": "hire_agents", "PYTHONPATH": str(HERE)}
    local = Local(home, *options, **(defaults | settings))
    try:
        local.start()
        yield HireSession(local)
    finally:
        local.close()


def encoded(document: Any) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def decoded(header: str) -> Any:
    return json.loads(base64.b64decode(header))


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class HireSession:
    """A running worker and its one funded seeker."""

    local: Local
    http: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.http.trust_env = False
        self.facts = self.local.facts
        self.url: str = self.facts["url"]
        self.key: str = self.facts["seeker_key"]
        self.store = redis.Redis.from_url(self.facts["redis"])
        self.keys = Keys()
        # A wallet that has paid much may run much that fails; the budget of new wallets has its own tests.
        self.store.hincrby(self.keys.wallets, f"paid {address_of(self.key).lower()}", 100_000_000)

    def draft(self, capability: str, *, key: str = "", price: str = "0.01", **changes: Any) -> dict[str, Any]:
        """A draft; `changes` go into its parts by name: task, terms, sla, webhook, deadline_in (s)."""
        now = datetime.now(UTC) + timedelta(microseconds=self.moved())
        deadline = now + timedelta(seconds=changes.pop("deadline_in", 6 * 3600))
        document: dict[str, Any] = {
            "version": "HIRE/1.0",
            "created_at": _time(now),
            "parties": {
                "seeker": {"agent_id": "agent_seeker", "wallet": address_of(key or self.key)},
                "worker": {
                    "agent_id": self.facts["worker_agent_id"],
                    "wallet": self.facts["worker_wallet"],
                },
            },
            "task": {"description": "a test", "capability": capability, **changes.pop("task", {})},
            "terms": {
                "price": {"amount": price, "currency": "USDC", "network": "base"},
                "deadline": _time(deadline),
                "payment_trigger": "on_delivery",
                "platform_fee": {"percentage": 1, "wallet": FEE_WALLET},
                **changes.pop("terms", {}),
            },
        }
        return document | changes

    def contract(self, capability: str, *, key: str = "", **changes: Any) -> str:
        """The id of a contract that both parties signed."""
        drafted = self.http.post(f"{self.url}/contracts", json=self.draft(capability, key=key, **changes))
        assert drafted.status_code == 201, drafted.text
        document = drafted.json()
        document["signatures"]["seeker"] = sign_text(document["hash"], key or self.key)
        stored = self.http.put(f"{self.url}/contracts", json=document)
        assert stored.status_code == 200, stored.text
        return str(document["contract_id"])

    def execute(
        self, contract: str, body: Any, *, payment: str = "", http: Any = None, **headers: str
    ) -> requests.Response:
        sent = {"X-Contract-ID": contract} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        if payment:
            sent["PAYMENT-SIGNATURE"] = payment
        reply: requests.Response = (http or self.http).post(
            f"{self.url}/execute", json=body, headers=sent, timeout=60
        )
        return reply

    def sign(self, asked: requests.Response, *, key: str = "", **changes: Any) -> str:
        """A payment for a 402; `changes` alter it."""
        assert asked.status_code == 402, (asked.status_code, asked.text)
        required = decoded(asked.headers["PAYMENT-REQUIRED"])
        accepted = required["accepts"][0]
        authorization = Authorization(
            payer=address_of(key or self.key).lower(),
            to=accepted["payTo"].lower(),
            value=int(changes.get("value", accepted["amount"])),
            valid_after=0,
            valid_before=int(time.time())
            + self.moved() // SECOND
            + int(changes.get("lasts", accepted["maxTimeoutSeconds"])),
            nonce=changes.get("nonce") or "0x" + secrets.token_hex(32),
        )
        domain = Domain(
            accepted["extra"]["name"],
            accepted["extra"]["version"],
            int(accepted["network"].split(":")[1]),
            accepted["asset"],
        )
        signature = sign_digest(transfer_digest(domain, authorization), key or self.key)
        return encoded(
            {
                "x402Version": 2,
                "resource": required["resource"],
                "accepted": accepted,
                "payload": {
                    "signature": "0x" + signature.hex(),
                    "authorization": authorization.to_wire(),
                },
            }
        )

    def buy(self, contract: str, body: Any, *, key: str = "", **headers: str) -> requests.Response:
        """Requests, pays and returns the response to the paid request."""
        asked = self.execute(contract, body, **headers)
        return self.execute(contract, body, payment=self.sign(asked, key=key), **headers)

    def begin(self, capability: str, body: Any, **changes: Any) -> tuple[str, str]:
        """A running paid task: its contract and its id."""
        contract = self.contract(capability, **changes)
        reply = self.buy(contract, body, Prefer="respond-async")
        assert reply.status_code == 202, reply.text
        return contract, reply.json()["task_id"]

    def done(self, capability: str, body: Any, **changes: Any) -> tuple[str, dict[str, Any]]:
        """A finished task: its contract and its last response."""
        contract = self.contract(capability, **changes)
        reply = self.buy(contract, body)
        return contract, self.ended(contract, reply.json()["task_id"])

    def poll(self, contract: str, task: str, **headers: str) -> requests.Response:
        sent = {"X-Contract-ID": contract} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.http.get(f"{self.url}/tasks/{task}", headers=sent, timeout=30)

    def ended(self, contract: str, task: str, seconds: float = 40.0) -> dict[str, Any]:
        return self.until(contract, task, lambda body: body["status"] in ("completed", "failed"), seconds)

    def until(self, contract: str, task: str, true: Any, seconds: float = 40.0) -> dict[str, Any]:
        """The first poll response that satisfies the condition."""
        end = time.monotonic() + seconds
        while True:
            reply = self.poll(contract, task)
            if reply.status_code == 200 and true(reply.json()):
                found: dict[str, Any] = reply.json()
                return found
            assert time.monotonic() < end, reply.text
            time.sleep(0.05)

    def balance(self, wallet: str) -> int:
        """A wallet's balance on the chain, in atomic units of the dollar."""
        call = {"to": self.facts["asset"], "data": "0x70a08231" + wallet[2:].lower().rjust(64, "0")}
        return int(self.ask_chain("eth_call", call, "latest"), 16)

    def ask_chain(self, method: str, *params: Any) -> Any:
        """One RPC call to the chain's node."""
        question = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        reply = self.http.post(self.facts["rpc"], json=question, timeout=30).json()
        assert "result" in reply, reply
        return reply["result"]

    def give(self, amount: int, to: str, *, key: str = "") -> None:
        """Sends dollars through the facilitator, like any payment."""
        offer = {
            "scheme": "exact",
            "network": self.facts["network"],
            "asset": self.facts["asset"],
            "amount": str(amount),
            "payTo": to,
            "maxTimeoutSeconds": 600,
            "extra": {"name": "USDC", "version": "2"},
        }
        asked = requests.Response()
        asked.status_code = 402
        required = {"x402Version": 2, "resource": {"url": "http://give"}, "accepts": [offer]}
        asked.headers["PAYMENT-REQUIRED"] = encoded(required)
        payment = decoded(self.sign(asked, key=key))
        sent = {"x402Version": 2, "paymentPayload": payment, "paymentRequirements": offer}
        reply = self.http.post(f"{self.facts['facilitator']}/settle", json=sent, timeout=60)
        assert reply.status_code == 200 and reply.json()["success"], reply.text

    def charges(self, task: str) -> int:
        """How many of a task's payments have settled."""
        raw = self.store.hgetall(self.keys.money(task))
        return sum(1 for name, value in raw.items() if name.endswith(b" state") and value == b"settled")  # type: ignore[union-attr]

    def moved(self) -> int:
        return int(self.store.get(self.keys.test_clock) or 0)  # type: ignore[arg-type]

    def move_clock(self, seconds: float) -> None:
        """Moves the clock of the worker and its chain ahead; only where WORKER_ENV is test.

        Warm processes register every few seconds: move their registrations along, so that none expires.
        """
        by = int(seconds * SECOND)
        self.ask_chain("test_jump", int(seconds))
        with self.store.pipeline() as pipe:
            pipe.incrby(self.keys.test_clock, by)
            for key in (self.keys.takers("express"), self.keys.takers("queue"), self.keys.ticks):
                for member in self.store.zrange(key, 0, -1):  # type: ignore[union-attr]
                    pipe.zincrby(key, by, member)
            pipe.execute()
        time.sleep(1.5)  # every clock ticks once


def frames(
    session: HireSession, url: str, *, most: int = 10_000, seconds: float = 30.0, **headers: str
) -> list[dict[str, Any]]:
    """A stream's events, up to its end or to so many."""
    found: list[dict[str, Any]] = []
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with session.http.get(url, headers=sent, stream=True, timeout=seconds) as reply:
        assert reply.status_code == 200, reply.text
        assert reply.headers["Content-Type"].startswith("text/event-stream")
        for line in reply.iter_lines():
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
                if len(found) >= most:
                    break
    return found
