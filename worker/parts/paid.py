"""The parts of the paid door: contracts, payments, legs, chain evidence, and delivery of what was paid."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.contracts.asking import Asking
from worker.contracts.book import ContractBook, SigningUnavailable
from worker.contracts.claiming import Budget, Claims
from worker.contracts.hiring import Hiring
from worker.contracts.manifest import Manifest
from worker.contracts.schema import Validators
from worker.contracts.schema_check import checker
from worker.contracts.signatures import sign_digest
from worker.delivery.addresses import rules_for
from worker.delivery.deliverables import Deliverables, metadata
from worker.delivery.outbound import Outbound
from worker.delivery.outbox import Outbox
from worker.delivery.postman import Postman
from worker.delivery.signing import derive_private_key, public_key_text
from worker.delivery.webhooks import Webhooks
from worker.executions.load import LoadMeter
from worker.limits import Limits
from worker.local.secrets import local_secrets
from worker.parts.engine import EngineParts
from worker.payments.attendant import Attendant
from worker.payments.chain import ChainEvidence, RpcChain
from worker.payments.checkpoints import CHECKPOINTS, Checkpoint, armed, unarmed
from worker.payments.comparison import Comparison, ComparisonMark
from worker.payments.facilitator import Facilitator, HttpFacilitator
from worker.payments.facilitator_auth import CdpAuth
from worker.payments.found import FoundMoney
from worker.payments.ledger import Ledger
from worker.payments.leg_books import LegBooks
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.payments.networks import Network, resolve_network
from worker.payments.settler import Settler
from worker.payments.windows import Rules

log = structlog.get_logger()


class PaidParts(EngineParts):
    """What it takes to sell an execution, on top of what runs it."""

    # What is sold

    @cached_property
    def network(self) -> Network:
        return resolve_network(self.settings.network)

    @cached_property
    def secret(self) -> str:
        """What references and URLs are keyed with; a laptop keeps its own."""
        return self.settings.secret_key or local_secrets(self.settings.worker_state_dir)["SECRET_KEY"]

    @cached_property
    def manifest(self) -> Manifest:
        key = self.webhook_key
        return Manifest(self.settings, self.catalog, self.network, public_key_text(key) if key else None)

    @cached_property
    def book(self) -> ContractBook:
        def example(capability: str) -> Any:
            found = self.catalog.get(capability)
            return found.example_output if found else None

        return ContractBook(
            self.client,
            self.keys,
            secret=self.secret,
            listing=self.manifest.listing,
            now=self.store.now,
            check_schemas=checker(self.executions, example),
            key=self.settings.worker_key,
            test_clock=self.test_clock,
        )

    @cached_property
    def hiring(self) -> Hiring:
        rules = Rules(max_window_s=self.settings.max_payment_window)
        return Hiring(
            book=self.book,
            executions=self.executions,
            catalog=self.catalog,
            ledger=self.ledger,
            settler=self.settler,
            asking=Asking(
                load=LoadMeter(self.store),
                compared=self.comparison_mark,
                validators=Validators(),
                check_url=self.outbound.check,
                network=self.network,
                resource_url=self.resource_url,
                rules=rules,
                queue_limit=self.settings.queue_limit,
            ),
            claims=Claims(self.ledger, self.files, rules, Budget(), self.settings.queue_limit),
            found=self.found,
            push=self.queue.push,
            listing=self.manifest.listing,
            spawn=spawn,
        )

    @cached_property
    def limits(self) -> Limits:
        """How often strangers may ask."""
        return Limits(self._rate_limiter)

    @property
    def resource_url(self) -> str:
        return f"{self.settings.public_url}/execute"

    # Payments

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def facilitator(self) -> Facilitator:
        settings = self.settings
        auth = None
        if settings.cdp_api_key_id and settings.cdp_api_key_secret:
            auth = CdpAuth(settings.cdp_api_key_id, settings.cdp_api_key_secret)
        return HttpFacilitator(settings.facilitator_url, auth)

    @cached_property
    def settler(self) -> Settler:
        return Settler(
            self.ledger,
            self.store,
            self.facilitator,
            sign=self._sign,
            push=self.queue.push,
            resource_url=self.resource_url,
            chain=self.chain,
            # Where a node is configured the clock asks it; nothing need be presumed anywhere.
            presume=not self.settings.rpc_url,
            checkpoint=self.checkpoint,
        )

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Where tests end or freeze this process; elsewhere nothing happens."""
        folder = os.environ.get(CHECKPOINTS) if self.test_clock else None
        return armed(Path(folder), self.role) if folder else unarmed

    @cached_property
    def chain(self) -> ChainEvidence | None:
        """Only the clock and the command line look at the chain: web3 is theirs alone."""
        if self.role not in ("clock", "cli") or not self.settings.rpc_url:
            return None
        return RpcChain(self.settings.rpc_url, self.network.asset, self.network.chain_id)

    def _sign(self, digest: bytes) -> bytes:
        if self.settings.worker_key is None:
            raise SigningUnavailable()
        return sign_digest(digest, self.settings.worker_key)

    # Money that the clock looks after: legs, and what the chain alone knows of

    @cached_property
    def leg_books(self) -> LegBooks:
        return LegBooks(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def leg_runner(self) -> LegRunner | None:
        """None without a key: legs are signed."""
        settings = self.settings
        if settings.worker_key is None or settings.worker_wallet is None:
            return None
        return LegRunner(
            self.leg_books,
            self.facilitator,
            sign=self._sign,
            wallet=settings.worker_wallet,
            network=self.network,
            fees=FeeRules(settings.fee_threshold, int(settings.fee_period * 1e6)),
            chain=self.chain,
            presume=not settings.rpc_url,
            checkpoint=self.checkpoint,
        )

    @cached_property
    def comparison_mark(self) -> ComparisonMark:
        """Says whether older contracts must wait; for every process."""
        return ComparisonMark(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def found(self) -> FoundMoney:
        return FoundMoney(self.client, self.keys, self.ledger, self.network, test_clock=self.test_clock)

    @cached_property
    def comparison(self) -> Comparison:
        wallet = self.settings.worker_wallet
        return Comparison(
            self.comparison_mark,
            self.ledger,
            self.settler,
            self.found,
            pay_to=wallet or "",
            chain=self.chain if wallet else None,
        )

    @cached_property
    def attendant(self) -> Attendant:
        """What the clock does about money."""
        return Attendant(self.ledger, self.settler, self.leg_runner, self.comparison)

    # Delivery

    @cached_property
    def deliverables(self) -> Deliverables:
        return Deliverables(
            self.executions,
            self.files,
            public_url=self.settings.public_url,
            secret=self.secret,
            retention_us=int(self.settings.retention * 1e6),
        )

    @cached_property
    def outbound(self) -> Outbound:
        """How strangers' addresses are called: only a laptop's worker may call the laptop."""
        return Outbound(rules_for(self.settings.worker_env))

    @cached_property
    def webhook_key(self) -> Ed25519PrivateKey | None:
        """Signs webhooks: the operator's own key, or one that follows from the worker's."""
        settings = self.settings
        if settings.webhook_key is not None:
            return Ed25519PrivateKey.from_private_bytes(settings.webhook_key[:32])
        return derive_private_key(bytes.fromhex(settings.worker_key[2:])) if settings.worker_key else None

    @cached_property
    def webhooks(self) -> Webhooks | None:
        if self.webhook_key is None:
            return None
        return Webhooks(
            Outbox(self.client, self.keys, test_clock=self.test_clock),
            self.executions,
            self.deliverables,
            self.outbound,
            self.webhook_key,
            contract_id=self.book.id_of,
            metadata=lambda execution: metadata(execution, self.catalog.get(execution.agent)),
        )

    @cached_property
    def postman(self) -> Postman | None:
        """What the clock does about webhooks; None without a key to sign them."""
        return Postman(self.webhooks) if self.webhooks is not None else None


def spawn(work: Callable[[], object]) -> None:
    """Something that outlives the request which begins it."""

    def run() -> None:
        try:
            work()
        except Exception:  # nobody waits for it: what it left the clock finishes
            log.exception("web.background_failed")

    threading.Thread(target=run, name="outlives-request", daemon=True).start()
