"""The paid door without a network: real store and scripts, a chain in memory, nothing runs by itself.

What a process would do beside a request waits in `Till.beside` until the test lets it; a crash is an
exception at a checkpoint, after which the process that it hit does nothing more.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import redis

from tests.fakes.chain import MemoryChain
from tests.fakes.record import Reads
from tests.fakes.seeker import FEE_WALLET, signed_payment
from tests.fakes.shop import SECOND, shop_environ
from worker.agents.declare import Capability
from worker.contracts.hiring import Hiring
from worker.contracts.signatures import address_of, sign_text
from worker.contracts.task import Body, PaymentRequired, Task
from worker.executions.events import iso
from worker.executions.record import Execution
from worker.parts import Parts
from worker.payments.comparison import Comparison
from worker.payments.offer import atomic
from worker.payments.outcomes import Answer
from worker.payments.settler import Settler
from worker.queue.clock import Clock
from worker.queue.runner import failure
from worker.settings import Settings

USED = "invalid_exact_evm_nonce_already_used"
BALANCE = "invalid_exact_evm_insufficient_balance"
EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"
RICH = 10**12


class Crash(BaseException):
    """The process ends here."""


class ChainFacilitator:
    """Settles on the chain in memory, honestly unless a test has planned otherwise.

    A planned word for verify: 'away' or 'no'. For settle: 'away' (nothing happens), 'lost' (it happens, no
    answer comes), 'pending' (it happens, the answer says pending), 'bare' (it happens, success without a
    hash), 'garbage' (nothing happens), 'no' (refused for good, nothing happens).
    """

    def __init__(self, chain: MemoryChain) -> None:
        self.chain = chain
        self.planned: dict[str, deque[str]] = {"verify": deque(), "settle": deque()}
        self.settles: list[str] = []
        self.before_settle: Callable[[], None] = lambda: None

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answer:
        word = self._word("verify")
        if word == "away":
            return Answer(fault="timeout")
        code = BALANCE if word == "no" else self._problem(payload)
        if code:
            return Answer(200, {"isValid": False, "invalidReason": code})
        return Answer(200, {"isValid": True})

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> Answer:
        authorization = payload["payload"]["authorization"]
        self.settles.append(authorization["nonce"].lower())
        self.before_settle()
        word = self._word("settle")
        if word == "away":
            return Answer(fault="timeout")
        if word == "garbage":
            return Answer(502, None, "garbage")
        code = BALANCE if word == "no" else self._problem(payload)
        if code:
            return Answer(400, {"success": False, "errorReason": code, "transaction": ""})
        who = (authorization["from"], authorization["nonce"])
        hash = self.chain.settle(who, requirements["payTo"], int(authorization["value"]))
        if word == "lost":
            return Answer(fault="dropped")
        if word == "pending":
            said = {"success": False, "errorReason": "settlement_pending", "transaction": hash}
            return Answer(500, said)
        if word == "bare":
            return Answer(200, {"success": True, "transaction": ""})
        return Answer(200, {"success": True, "transaction": hash})

    def supported(self) -> Answer:
        return Answer(200, {"kinds": []})

    def _word(self, operation: str) -> str:
        planned = self.planned[operation]
        return planned.popleft() if planned else ""

    def _problem(self, payload: Mapping[str, Any]) -> str:
        authorization = payload["payload"]["authorization"]
        if self.chain.is_used((authorization["from"], authorization["nonce"])):
            return USED
        if self.chain.balance(authorization["from"]) < int(authorization["value"]):
            return BALANCE
        if int(authorization["validBefore"]) * SECOND <= self.chain.head().time_us:
            return EXPIRED
        return ""


@dataclass
class Deal:
    """One contract and its seeker."""

    till: Till
    key: str
    document: dict[str, Any]
    payments: list[str] = field(default_factory=list)

    @property
    def wallet(self) -> str:
        return address_of(self.key).lower()

    @property
    def price(self) -> int:
        return atomic(self.document["terms"]["price"]["amount"])

    def offer(self, body: Any) -> dict[str, Any]:
        """What is asked for; also while the door asks for nothing, since it depends on the terms alone."""
        return self.till.offer(self, body)

    def payment(self, **wrong: Any) -> str:
        """A signed payment for this contract."""
        header = signed_payment(self.offer(None), self.key, self.till.now() / SECOND, **wrong)
        self.payments.append(header)
        return header

    def execute(self, body: Any, payment: str | None = None, webhook: str | None = None) -> Task:
        headers = {} if payment is None else {"PAYMENT-SIGNATURE": payment}
        return self.till.hiring.execute(self.document["contract_id"], Body.of(body), headers, webhook)

    @property
    def id(self) -> str | None:
        contract = self.till.hiring.book.find(self.document["contract_id"])
        assert contract is not None
        return contract.execution

    def moved(self) -> int:
        """What this seeker's wallet has paid to the worker, by the chain."""
        return self.till.chain.received(self.wallet, self.till.pay_to)


class Till(Reads):
    """A worker that does one thing at a time."""

    def __init__(self, home: Path, client: redis.Redis, url: str) -> None:
        client.flushdb()
        self.settings = Settings.load(shop_environ(home, url, "http://127.0.0.1:9"))
        self.parts = Parts(self.settings, "web")
        self.chain = MemoryChain(time_us=self.now())
        self.facilitator = ChainFacilitator(self.chain)
        self.beside: deque[Callable[[], object]] = deque()
        self.crash_at: str | None = None
        self.parts.catalog.publish(
            [
                Capability("echo", description="e", price="0.01", inline=True, time_limit=20, attempts=3),
                Capability(
                    "early", description="e", price="0.02", inline=True, time_limit=20, settle="before_work"
                ),
            ]
        )
        self.alive()
        # A process without a chain has nothing to compare a new store with.
        self.parts.comparison.run()

    @cached_property
    def hiring(self) -> Hiring:
        hiring = self.parts.hiring
        hiring.settler = self.settler(chain=None)
        hiring.spawn = self.beside.append
        return hiring

    def settler(self, chain: MemoryChain | None, *, presume: bool = False) -> Settler:
        return Settler(
            self.parts.ledger,
            self.parts.store,
            self.facilitator,
            sign=lambda digest: b"\x01" * 65,
            push=lambda id: None,
            resource_url=self.parts.resource_url,
            chain=chain,
            presume=presume,
            checkpoint=self._checkpoint,
        )

    @cached_property
    def clock(self) -> Clock:
        parts = self.parts
        return Clock(parts.store, parts.queue, files=parts.files, tree="t", retention_us=30 * 86_400 * SECOND)

    @cached_property
    def comparison(self) -> Comparison:
        parts = self.parts
        return Comparison(
            parts.comparison_mark,
            parts.ledger,
            self.clock_settler,
            parts.found,
            pay_to=self.pay_to,
            chain=self.chain,
        )

    @cached_property
    def clock_settler(self) -> Settler:
        return self.settler(self.chain)

    def _checkpoint(self, point: str) -> None:
        if point == self.crash_at:
            self.crash_at = None
            raise Crash(point)

    @property
    def pay_to(self) -> str:
        return str(self.settings.worker_wallet).lower()

    # Time and other processes

    def now(self) -> int:
        return self.parts.store.now()

    def alive(self) -> None:
        """Signs that a clock ticks and that somebody takes work."""
        self.parts.store.sign_on("express", "w")
        self.parts.store.sign_on("queue", "w")
        self.parts.store.due(tree="t", queued_age_us=10**15, retention_us=10**15)

    def jump(self, seconds: int) -> None:
        self.parts.client.incrby(self.parts.keys.test_clock, seconds * SECOND)
        self.chain.catch_up(self.now())
        self.alive()

    def tick(self) -> None:
        """What the clock does: it ends what is over, compares, and attends to money that waits."""
        self.chain.catch_up(self.now())
        self.clock.tick()
        self.attempt(self.comparison.run)
        for id in self.parts.ledger.due(self.now()):
            self.attempt(lambda id=id: self.clock_settler.attend(id))  # type: ignore[misc]

    def attempt(self, work: Callable[[], object]) -> bool:
        """Does it as a process of its own would; False when that process ended on the way."""
        try:
            work()
        except Crash:
            return False
        return True

    def step(self) -> bool:
        """Lets the oldest thing beside a request happen."""
        return self.attempt(self.beside.popleft()) if self.beside else True

    # People

    def deal(self, capability: str = "echo", *, key: str | None = None, **changes: Any) -> Deal:
        """A signed contract; its seeker is rich."""
        key = key or "0x" + secrets.token_hex(32)
        now = self.now()
        early = capability == "early"
        draft = {
            "version": "HIRE/1.0",
            "created_at": iso(now),
            "parties": {
                "seeker": {"agent_id": "agent_s", "wallet": address_of(key)},
                "worker": {
                    "agent_id": self.settings.worker_agent_id,
                    "wallet": self.settings.worker_wallet,
                },
            },
            "task": {"description": "t", "capability": capability},
            "terms": {
                "price": {"amount": "0.02" if early else "0.01", "currency": "USDC", "network": "base"},
                "deadline": iso(now + 6 * 3600 * SECOND),
                "payment_trigger": "on_delivery",
                "platform_fee": {"percentage": 1, "wallet": FEE_WALLET},
                **({"settlement": "before_work"} if early else {}),
                **changes.get("terms", {}),
            },
            "sla": {"retry_policy": "2 attempts", **changes.get("sla", {})},
            **({"webhook": changes["webhook"]} if "webhook" in changes else {}),
        }
        document = self.hiring.book.sign(draft)
        document["signatures"]["seeker"] = sign_text(document["hash"], key)
        self.hiring.book.register(document)
        deal = Deal(self, key, document)
        self.chain.mint(deal.wallet, RICH)
        return deal

    def offer(self, deal: Deal, body: Any) -> dict[str, Any]:
        hiring = self.hiring
        contract = hiring.book.find(deal.document["contract_id"])
        assert contract is not None
        capability = hiring.catalog.get(deal.document["task"]["capability"])
        assert capability is not None
        offer = hiring.asking.offer(contract, capability, hiring.asking.read(capability), sealed=True)
        return offer.payment_required("")

    # Work

    def take(self, id: str) -> Execution | None:
        taken = self.parts.store.take(id, lease_us=5 * SECOND, worker="w", session="s")
        return taken[0] if taken else None

    def seal(self, execution: Execution, outcome: str = "completed") -> str:
        done = outcome == "completed"
        error = b"" if done else failure("NOT_DONE", "no")
        payload = b'{"output":{"run":%d}}' % execution.fence if done else error
        return self.parts.store.seal(
            execution.id,
            execution.fence,
            outcome,
            output=b'{"run":%d}' % execution.fence if done else b"",
            result=b'{"type":"json","files":[]}' if done else b"",
            error=error,
            payload=payload,
        )

    def park(self, execution: Execution, kind: str) -> str:
        error = failure("TRANSIENT_FAILURE" if kind == "retry" else "INVALID_INPUT", "no", retryable=True)
        return self.parts.store.park(execution.id, execution.fence, error, kind)

    def lose(self, execution: Execution) -> None:
        """The process that held the lease has died."""
        self.parts.store.requeue(execution.id, execution.fence, "process_lost", crashed=b"{}", overtime=b"{}")

    # The record

    def output(self, id: str) -> Any:
        return json.loads(self.execution(id).output)


def asked(call: Callable[[], object]) -> PaymentRequired:
    """The 402 that a call ends with."""
    try:
        call()
    except PaymentRequired as required:
        return required
    raise AssertionError("no payment was asked for")
