"""Contracts, claims, settlements and executions in a real store, without HTTP."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

import redis

from tests.fakes.chain import MemoryChain
from tests.fakes.facilitator_memory import MemoryFacilitator
from worker.contracts.signatures import address_of, sign_digest
from worker.core.ids import new_id
from worker.core.states import Lane, Phase
from worker.engine.creation import NewExecution
from worker.engine.transitions import ExecutionStore
from worker.payments.answers import ClaimAnswer
from worker.payments.budget import Allowance
from worker.payments.chain import ChainEvidence
from worker.payments.claim import Claim
from worker.payments.facilitator import Facilitator
from worker.payments.ledger import Ledger
from worker.payments.money_store import HOOKS
from worker.payments.settler import Settler
from worker.store.data_model import Keys
from worker.x402.networks import BASE_SEPOLIA
from worker.x402.typed_data import Authorization, transfer_digest

KEY = "0x" + "22" * 32
WORKER = address_of(KEY)
SEEKER_KEY = "0x" + "11" * 32
SEEKER = address_of(SEEKER_KEY)
PLATFORM = "0x" + "fe" * 20
PRICE = 10_000
HASH = "sha256:" + "ab" * 32


def sign(digest: bytes) -> bytes:
    return sign_digest(digest, KEY)


@dataclass(frozen=True)
class SignedClaim:
    """One payment of the setup's seeker; `payload` goes to the facilitator."""

    id: str
    number: int
    ref: str
    nonce: str
    payload: dict[str, Any]

    @property
    def authorization(self) -> tuple[str, str]:
        return SEEKER, self.nonce


class LedgerSetup:
    """The payment components on one store and one in-memory chain.

    Payments are really signed; with `outside` they are settled by another facilitator on another chain.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        test_clock: bool = True,
        audited: bool = False,
        outside: tuple[Facilitator, ChainEvidence] | None = None,
    ) -> None:
        self.client = client
        self.keys = Keys()
        self.chain = MemoryChain(time_us=int(time.time()) * 1_000_000)
        self.chain.mint(SEEKER, 10**12)
        self.facilitator = MemoryFacilitator(self.chain)
        # As on a public chain, there is always a current block.
        self.chain.asked = lambda: self.chain.catch_up(self.now())
        self.store = ExecutionStore(client, keys=self.keys, hooks=HOOKS, test_clock=test_clock)
        self.ledger = Ledger(client, self.keys, test_clock=test_clock, audited=audited)
        self.settler = Settler(
            self.ledger,
            self.store,
            outside[0] if outside else self.facilitator,
            sign=sign,
            push=lambda id: None,
            resource_url="https://worker.example/execute",
            chain=outside[1] if outside else self.chain,
        )

    @property
    def sums(self) -> dict[str, int]:
        return self.ledger.sums()

    def now(self) -> int:
        return self.store.now()

    def move_time(self, seconds: int) -> None:
        """Moves the clocks of store and chain."""
        self.client.incrby(self.keys.test_clock, seconds * 1_000_000)
        self.chain.mine(seconds=seconds)

    def contract(self, *, amount: int = PRICE, ref: str = "", seeker: str = SEEKER) -> str:
        """A contract signed by both parties and not yet paid for."""
        ref = ref or secrets.token_hex(16)
        now = self.now()
        document = {
            "contract_id": "ctr_" + ref,
            "created_at": _iso(now),
            "parties": {
                "seeker": {"agent_id": "agent_seeker", "wallet": seeker},
                "worker": {"agent_id": "agent_worker", "wallet": WORKER},
            },
            "terms": {
                "price": {"amount": f"{amount / 1e6:.6f}", "currency": "USDC", "network": "base"},
                "deadline": _iso(now + 3_600_000_000),
                "payment_trigger": "on_delivery",
                "platform_fee": {"percentage": 1, "wallet": PLATFORM},
            },
        }
        fields: dict[str, Any] = {
            "document": json.dumps(document),
            "hash": HASH,
            "state": "signed",
            "created": now,
            "registered": now,
        }
        self.client.hset(self.keys.contract(ref), mapping=fields)
        self.client.zadd(self.keys.contracts, {self.keys.contract(ref): now + 3_600_000_000})
        return ref

    def claim(
        self,
        ref: str = "",
        id: str = "",
        *,
        amount: int = PRICE,
        fee: int = 0,
        fee_wallet: str = PLATFORM,
        mode: str = "after_work",
        nonce: str = "",
        agent: str = "echo",
        **verified: bool,
    ) -> SignedClaim:
        """A received payment, bound to its contract; `verified` and `waits` as the ledger takes them."""
        ref = ref or self.contract(amount=amount)
        id = id or new_id()
        nonce = nonce or "0x" + secrets.token_hex(32)
        payload, requirements = payment(nonce, amount)
        claim = Claim(
            contract_ref=ref,
            document_hash=HASH,
            payment_key=key_of(nonce),
            identifier="",
            payer=SEEKER,
            amount=amount,
            payload=json.dumps(payload),
            requirements=json.dumps(requirements),
            valid_before_s=int(payload["payload"]["authorization"]["validBefore"]),
            mode=mode,
            fee=fee,
            fee_wallet=fee_wallet,
            deadline_us=self.now() + 3_600_000_000,
            allowance=Allowance(most_open=1000, free_runs=1000, unproven_runs=1000),
        )
        new = NewExecution(
            id=id,
            agent=agent,
            door="hire",
            lane=Lane.EXPRESS,
            input=b"{}",
            labels={},
            timeout_us=0,
            run_limit_us=60_000_000,
            phase=Phase.VERIFYING,
            digest="d",
        )
        fields: dict[str, Any] = {
            "input": b"{}",
            "agent": agent,
            "door": "hire",
            "labels": "{}",
            "attempts": 3,
            "run_limit": 60_000_000,
        }
        reply = self.ledger.claim(self.ledger.claim_values(new, claim, fields, b"{}"), **verified)
        assert reply.answer is ClaimAnswer.CLAIMED, reply
        return SignedClaim(id, int(reply.text()), ref, nonce, payload)

    def seal(self, paid: SignedClaim) -> None:
        """Verifies the payment and completes the work: only settlement remains."""
        if self.ledger.verified(paid.id, paid.number)[0] == "working":
            self.end(paid, "completed")

    def end(self, paid: SignedClaim, outcome: str, condition: str = "no_response") -> str:
        """Takes the work and ends it, as a warm process does."""
        taken = self.store.take(paid.id, lease_us=60_000_000, worker="w", session="s")
        assert taken is not None
        blobs: dict[str, bytes] = {"output": b"1", "result": b"{}", "error": b"{}", "payload": b"{}"}
        return self.store.seal(paid.id, taken[0].fence, outcome, **blobs, condition=condition)

    def paid(self, **options: Any) -> SignedClaim:
        """A paid and delivered contract."""
        paid = self.claim(**options)
        self.seal(paid)
        self.settler.settle(paid.id)
        return paid

    def owed(self, reason: str = "output_schema_invalid", **options: Any) -> SignedClaim:
        """A prepaid contract whose work failed, so that its refund is due."""
        paid = self.claim(mode="before_work", **options)
        self.ledger.verified(paid.id, paid.number)
        self.settler.settle(paid.id)
        self.end(paid, "failed", reason)
        return paid

    def state(self, paid: SignedClaim) -> str:
        money = self.ledger.money(paid.id)
        found = money.payment(paid.number) if money else None
        assert found is not None
        return str(found.state)


def payment(nonce: str, amount: int, *, to: str = WORKER) -> tuple[dict[str, Any], dict[str, Any]]:
    """A seeker's payment of this amount, and our offer for it."""
    requirements = {
        "scheme": "exact",
        "network": BASE_SEPOLIA.caip2,
        "amount": str(amount),
        "asset": BASE_SEPOLIA.asset,
        "payTo": to,
        "maxTimeoutSeconds": 600,
        "extra": {"name": "USDC", "version": "2"},
    }
    authorization = Authorization(SEEKER.lower(), to.lower(), amount, 0, int(time.time()) + 86_000, nonce)
    signature = sign_digest(transfer_digest(BASE_SEPOLIA.domain, authorization), SEEKER_KEY)
    payload = {"signature": "0x" + signature.hex(), "authorization": authorization.to_wire()}
    return {"x402Version": 2, "accepted": requirements, "payload": payload}, requirements


def key_of(nonce: str, payer: str = SEEKER) -> str:
    return "/".join((BASE_SEPOLIA.caip2, BASE_SEPOLIA.asset, payer, nonce)).lower()


def _iso(at_us: int) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_us // 1_000_000))
    return f"{seconds}.{at_us % 1_000_000:06d}Z"
