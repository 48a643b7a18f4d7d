"""The paid door without a network: real store and scripts, an in-memory chain, no background threads.

Work that a process would do beside a request waits in `PaidDoor.beside` until the test runs it; a crash is
an exception at a checkpoint, after which the crashed process does nothing more.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import redis

from tests.fakes.chain import MemoryChain
from tests.fakes.execution_reads import ExecutionReads
from tests.fakes.open_calls import AnswersAtOnce
from tests.fakes.paid_worker import SECOND, paid_environ
from tests.fakes.seeker import FEE_WALLET, signed_payment
from worker.capabilities.declare import Capability
from worker.contracts.book import Contract
from worker.contracts.signatures import address_of, sign_text
from worker.core.amounts import atomic_units
from worker.core.settings import Settings
from worker.engine.events import iso
from worker.engine.record import Execution
from worker.hiring.service import Hiring
from worker.hiring.task import PaymentRequired, Task, TaskInput
from worker.parts import Parts
from worker.payments.comparison import Comparison
from worker.payments.known_payers import KnownPayers
from worker.payments.settler import Settler
from worker.queue.clock import Clock
from worker.queue.runner import failure
from worker.x402.facilitator_answers import FacilitatorAnswer

USED = "invalid_exact_evm_nonce_already_used"
BALANCE = "invalid_exact_evm_insufficient_balance"
SIGNATURE = "invalid_exact_evm_payload_signature"
EXPIRED = "invalid_exact_evm_payload_authorization_valid_before"
RICH = 10**12


class Crash(BaseException):
    """The process dies here."""


class ChainFacilitator(AnswersAtOnce):
    """Settles on the in-memory chain, honestly unless a test has planned otherwise.

    Plans for verify: 'away' or 'no'. For settle: 'away' (no transfer), 'lost' (transfer, no response),
    'pending' (transfer, the response says pending), 'bare' (transfer, success without a hash),
    'garbage' (no transfer), 'no' (refused for good, no transfer), 'flips' (the wallet no longer accepts
    its signature, no transfer), 'denied' (transfer, the response is a refusal).
    """

    def __init__(self, chain: MemoryChain) -> None:
        self.chain = chain
        self.planned: dict[str, deque[str]] = {"verify": deque(), "settle": deque()}
        self.settles: list[str] = []
        self.before_settle: Callable[[], None] = lambda: None

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        word = self._word("verify")
        if word == "away":
            return FacilitatorAnswer(fault="timeout")
        code = BALANCE if word == "no" else self._problem(payload)
        if code:
            return FacilitatorAnswer(200, {"isValid": False, "invalidReason": code})
        return FacilitatorAnswer(200, {"isValid": True})

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        authorization = payload["payload"]["authorization"]
        self.settles.append(authorization["nonce"].lower())
        self.before_settle()
        word = self._word("settle")
        if word == "away":
            return FacilitatorAnswer(fault="timeout")
        if word == "garbage":
            return FacilitatorAnswer(502, None, "garbage")
        code = {"no": BALANCE, "flips": SIGNATURE}.get(word) or self._problem(payload)
        if code:
            return FacilitatorAnswer(400, {"success": False, "errorReason": code, "transaction": ""})
        who = (authorization["from"], authorization["nonce"])
        hash = self.chain.settle(who, requirements["payTo"], int(authorization["value"]))
        if word == "lost":
            return FacilitatorAnswer(fault="dropped")
        if word == "pending":
            response = {"success": False, "errorReason": "settlement_pending", "transaction": hash}
            return FacilitatorAnswer(500, response)
        if word == "denied":
            return FacilitatorAnswer(400, {"success": False, "errorReason": BALANCE, "transaction": ""})
        if word == "bare":
            return FacilitatorAnswer(200, {"success": True, "transaction": ""})
        return FacilitatorAnswer(200, {"success": True, "transaction": hash})

    def supported(self) -> FacilitatorAnswer:
        return FacilitatorAnswer(200, {"kinds": []})

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

    paid_door: PaidDoor
    key: str
    document: dict[str, Any]
    payments: list[str] = field(default_factory=list)

    @property
    def wallet(self) -> str:
        return address_of(self.key).lower()

    @property
    def price(self) -> int:
        return atomic_units(self.document["terms"]["price"]["amount"])

    def offer(self, body: Any) -> dict[str, Any]:
        """The door's offer, also while the door sends no 402, since it depends only on the terms."""
        return self.paid_door.offer(self, body)

    def payment(self, **wrong: Any) -> str:
        """A signed payment for this contract."""
        header = signed_payment(self.offer(None), self.key, self.paid_door.now() / SECOND, **wrong)
        self.payments.append(header)
        return header

    def execute(self, body: Any, payment: str | None = None, webhook: str | None = None) -> Task:
        headers = {} if payment is None else {"PAYMENT-SIGNATURE": payment}
        return self.paid_door.hiring.execute(
            self.document["contract_id"], TaskInput.of(body), headers, webhook
        )

    @property
    def id(self) -> str | None:
        return self.paid_door.contract(self).execution

    def cancel(self, id: str, *, forfeit: bool = False) -> Task:
        tasks = self.paid_door.parts.tasks
        return tasks.cancel(tasks.find(self.document["contract_id"], id), forfeit=forfeit)

    def moved(self) -> int:
        """How much this seeker's wallet has paid to the worker, by the chain."""
        return self.paid_door.chain.received(self.wallet, self.paid_door.pay_to)


class Strangers(KnownPayers):
    """No wallet counts as one that has paid before."""

    def paid(self, wallet: str) -> None:
        pass


class PaidDoor(ExecutionReads):
    """A worker that runs one execution at a time."""

    def __init__(self, home: Path, client: redis.Redis, url: str) -> None:
        client.flushdb()
        self.settings = Settings.load(paid_environ(home, url, "http://127.0.0.1:9"))
        self.parts = Parts(self.settings, "web")
        self.chain = MemoryChain(time_us=self.now())
        # As on a public chain, there is always a current block.
        self.chain.asked = lambda: self.chain.catch_up(self.now())
        self.facilitator = ChainFacilitator(self.chain)
        self.beside: deque[Callable[[], object]] = deque()
        self.crash_at: str | None = None
        self.parts.settler = self.new_settler(chain=None)
        # Every payment is claimed first, so that each step is one call of the request that claimed it.
        self.parts.settler.known_payers = Strangers()
        self.parts.spawn = self.beside.append
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

    @property
    def hiring(self) -> Hiring:
        return self.parts.hiring

    @property
    def web_settler(self) -> Settler:
        """The settler of the web process."""
        return self.parts.settler

    def settle(self, id: str) -> None:
        """Settles as the web process does once the requested work is done."""
        self.web_settler.settle(id)

    def change_conditions(self, **changes: Any) -> None:
        """Changes the conditions in future offers."""
        self.parts.conditions = replace(self.parts.conditions, **changes)
        self.parts.__dict__.pop("hiring", None)

    def contract(self, deal: Deal) -> Contract:
        contract = self.parts.book.find(deal.document["contract_id"])
        assert contract is not None
        return contract

    def new_settler(self, chain: MemoryChain | None, *, presume: bool = False) -> Settler:
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
            files=self.parts.files,
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
        return self.new_settler(self.chain)

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
        """Registers a ticking clock and a process that takes work."""
        self.parts.store.sign_on("express", "w")
        self.parts.store.sign_on("queue", "w")
        self.parts.store.due(tree="t", retention_us=10**15)

    def jump(self, seconds: int) -> None:
        self.parts.client.incrby(self.parts.keys.test_clock, seconds * SECOND)
        self.chain.catch_up(self.now())
        self.alive()

    def tick(self) -> None:
        """Ticks as the clock does: ends overdue executions, compares the ledger, attends to open payments."""
        self.chain.catch_up(self.now())
        self.clock.tick()
        self.attempt(self.comparison.run)
        for id in dict.fromkeys([*self.parts.rechecks.begin(), *self.parts.ledger.due(self.now())]):
            self.attempt(lambda id=id: self.clock_settler.attend(id))  # type: ignore[misc]

    def attempt(self, work: Callable[[], object]) -> bool:
        """Runs the work as a separate process would; returns False if that process crashed."""
        try:
            work()
        except Crash:
            return False
        return True

    def step(self) -> bool:
        """Runs the oldest work waiting in `beside`."""
        return self.attempt(self.beside.popleft()) if self.beside else True

    # Seekers

    def deal(self, capability: str = "echo", *, key: str | None = None, **changes: Any) -> Deal:
        """A signed contract with a well-funded seeker."""
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
            "task": {"description": "t", "capability": capability, **changes.get("task", {})},
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
        document = self.parts.book.sign(draft)
        document["signatures"]["seeker"] = sign_text(document["hash"], key)
        self.parts.book.register(document)
        deal = Deal(self, key, document)
        self.chain.mint(deal.wallet, RICH)
        return deal

    def offer(self, deal: Deal, body: Any) -> dict[str, Any]:
        conditions = self.parts.conditions
        capability = self.parts.catalog.get(deal.document["task"]["capability"])
        assert capability is not None
        offer = conditions.offer(
            self.contract(deal), capability, conditions.current_load(capability), sealed=True
        )
        return offer.payment_required("")

    # Work

    def take(self, id: str) -> Execution | None:
        """Takes the work as a process does, re-verifying a payment whose verification is old."""
        taken = self.take_once(id)
        if taken is None and self.execution(id).phase == "verifying":
            self.attempt(lambda: self.clock_settler.attend(id))
            taken = self.take_once(id)
        return taken

    def take_once(self, id: str) -> Execution | None:
        """Takes the work as a process does; None if its payment must be verified again first."""
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
        """The process that held the lease dies."""
        self.parts.store.requeue(execution.id, execution.fence, "process_lost", crashed=b"{}", overtime=b"{}")

    def refuse(self, id: str, how: str = "no") -> None:
        """The facilitator refuses a settlement, and the clock sees on the chain that nothing moved."""
        self.facilitator.planned["settle"].append(how)
        self.settle(id)
        self.clock_settler.settle(id)

    # Reading the record

    def output(self, id: str) -> Any:
        return json.loads(self.execution(id).output)


def asked(call: Callable[[], object]) -> PaymentRequired:
    """Returns the 402 that the call raises."""
    try:
        call()
    except PaymentRequired as required:
        return required
    raise AssertionError("no payment was asked for")
