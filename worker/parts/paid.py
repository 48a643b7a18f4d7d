"""The parts of the paid door: contracts, payments, legs, chain evidence, delivery."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.contracts.book import CLOCKS_DIFFER_US, ContractBook, SigningUnavailable
from worker.contracts.signatures import sign_digest
from worker.core.local_secrets import local_secrets
from worker.delivery.addresses import rules_for
from worker.delivery.deliverables import Deliverables
from worker.delivery.lookups import FewLookups
from worker.delivery.outbound import Outbound
from worker.delivery.webhook_signatures import derive_private_key, public_key_text
from worker.doors.limits import RequestLimits
from worker.hiring.author_check import AuthorCheck
from worker.hiring.buying import Buying
from worker.hiring.checkout import Checkout
from worker.hiring.claims import Claims
from worker.hiring.conditions import PaymentConditions
from worker.hiring.contracts import ContractService
from worker.hiring.evidence import Evidence
from worker.hiring.input_effort import BoundedChecks
from worker.hiring.manifest import Manifest
from worker.hiring.purchase_terms import PurchaseTerms
from worker.hiring.schema_check import SchemaCheck
from worker.hiring.service import Hiring
from worker.hiring.sign_ins import SignIns
from worker.hiring.tasks import Tasks
from worker.hiring.trial_hires import TrialHires
from worker.parts.background import Background
from worker.parts.public import PublicParts
from worker.payments.audit import Audit, AuditBook
from worker.payments.budget import ON_A_LAPTOP, Allowance, UnpaidWorkBudget
from worker.payments.chain import ChainEvidence, RpcChain
from worker.payments.checkpoints import CHECKPOINTS, Checkpoint, armed, unarmed
from worker.payments.comparison import Comparison, ComparisonMark
from worker.payments.facilitator import Facilitator, HttpFacilitator
from worker.payments.facilitator_auth import CdpAuth
from worker.payments.facts import FactsReader
from worker.payments.found import FoundMoney
from worker.payments.found_decisions import FoundDecisions
from worker.payments.gauges import MoneyGauges
from worker.payments.ledger import Ledger
from worker.payments.leg_ledger import LegLedger
from worker.payments.leg_runner import FeeRules, LegRunner
from worker.payments.listings import ListeningFacilitator
from worker.payments.ordered_queue import OrderedQueue
from worker.payments.pool import MoneyPool
from worker.payments.recheck import Rechecks
from worker.payments.safe_writes import SafeWrites, Witness
from worker.payments.settler import Settler
from worker.store.client import connect_apart
from worker.store.outage import count_sample
from worker.x402.sign_in import SignIn
from worker.x402.windows import WindowRules, longest_validity

log = structlog.get_logger()


class PaidParts(PublicParts):
    """The parts needed to sell an execution, on top of those that run it."""

    # Capabilities and contracts

    @cached_property
    def secret(self) -> str:
        """The key for references and URLs; a laptop stores its own."""
        return self.settings.secret_key or local_secrets(self.settings.worker_state_dir)["SECRET_KEY"]

    @cached_property
    def manifest(self) -> Manifest:
        key = self.webhook_key
        return Manifest(self.settings, self.catalog, self.network, public_key_text(key) if key else None)

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.statement_signer, self.deliverables, self.ledger.payload)

    @cached_property
    def book(self) -> ContractBook:
        def example(capability: str) -> Any:
            found = self.catalog.get(capability)
            return found.example_output if found else None

        return ContractBook(
            self.client,
            self.keys,
            secret=self.secret,
            accepted_secrets=self.settings.accepted_secret_keys,
            listing=self.manifest.listing,
            now=self.store.now,
            check_schemas=SchemaCheck(self.checks, example, self.budget.has_paid),
            key=self.settings.worker_key,
            test_clock=self.test_clock,
        )

    @cached_property
    def hiring(self) -> Hiring:
        return Hiring(
            book=self.book,
            tasks=self.tasks,
            catalog=self.catalog,
            ledger=self.ledger,
            settler=self.settler,
            conditions=self.conditions,
            checkout=self.checkout,
            found=self.found,
            push=self.queue.push,
            listing=self.manifest.listing,
        )

    @cached_property
    def checkout(self) -> Checkout:
        return Checkout(
            book=self.book,
            tasks=self.tasks,
            settler=self.settler,
            conditions=self.conditions,
            claims=Claims(
                self.ledger,
                self.files,
                self.window_rules,
                self.budget.allowance,
                self.executions.own_channel.channel,
            ),
            found=self.found,
            spawn=self.spawn,
        )

    @cached_property
    def buying(self) -> Buying:
        url = self.settings.public_url
        origin = SignIn(f"{url.split('://')[0]}://{urlsplit(url).netloc}", self.network.caip2, self.secret)
        return Buying(
            self.hiring,
            PurchaseTerms(self.manifest.listing),
            SignIns(origin, self.rate_limiter, self.store.now),
            self.discovery.address,
            self.discovery.advertise,
        )

    @cached_property
    def trial_hires(self) -> TrialHires:
        settings = self.settings
        daily = 0 if settings.worker_env == "local" else settings.try_daily
        return TrialHires(self.buying, settings.try_key, self.rate_limiter, self.store.now, daily)

    @cached_property
    def tasks(self) -> Tasks:
        return Tasks(
            self.book, self.executions, self.catalog, self.ledger, self.settler, self.load_meter, self.spawn
        )

    @cached_property
    def conditions(self) -> PaymentConditions:
        return PaymentConditions(
            load=self.load_meter,
            facts=FactsReader(
                self.client,
                self.keys,
                test_clock=self.test_clock,
                meter=self.load_meter,
                allowance=self.budget.allowance,
            ),
            compared=self.comparison_mark,
            checks=BoundedChecks(),
            author_check=AuthorCheck(self.checks, self.budget.has_paid),
            check_url=self.outbound.check_form,
            check_host=self.outbound_names.check,
            network=self.network,
            resource_url=self.resource_url,
            rules=self.window_rules,
            queue_limit=self.settings.queue_limit,
            budget=self.budget,
            storage=self.storage,
            may_have_paid=self.found.may_have_paid,
        )

    @property
    def window_rules(self) -> WindowRules:
        return WindowRules(max_window_s=self.settings.max_payment_window)

    @cached_property
    def spawn(self) -> Callable[[Callable[[], object]], None]:
        """Runs work that outlives its request."""
        return Background()

    @cached_property
    def contract_service(self) -> ContractService:
        return ContractService(
            self.book, self.executions, self.conditions.check_takes_contracts, self.budget.has_paid
        )

    @cached_property
    def limits(self) -> RequestLimits:
        """Rate limits for strangers' requests."""
        return RequestLimits(self.rate_limiter)

    @property
    def resource_url(self) -> str:
        return f"{self.settings.public_url}/execute"

    # Payments

    @cached_property
    def ledger(self) -> Ledger:
        apart = connect_apart(self.settings, role=self.role)
        safe = SafeWrites(
            self.client, self.keys, apart=apart, test_clock=self.test_clock, witness=self.witness
        )
        audited = self.settings.rpc_url is not None
        return Ledger(self.client, self.keys, test_clock=self.test_clock, audited=audited, safe=safe)

    @cached_property
    def witness(self) -> Witness:
        """What this process remembers of the store's writes."""
        return Witness(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def budget(self) -> UnpaidWorkBudget:
        """Limits one wallet, and all new wallets together, to a quarter of all places each."""
        usual = ON_A_LAPTOP if self.settings.worker_env == "local" else Allowance()
        quarter = max(1, self.settings.queue_limit // 4)
        most = {"most_open": min(usual.most_open, quarter), "newcomers": min(usual.newcomers, quarter)}
        allowance = replace(usual, **most)
        return UnpaidWorkBudget(self.client, self.keys, test_clock=self.test_clock, allowance=allowance)

    @cached_property
    def facilitator(self) -> Facilitator:
        settings = self.settings
        auth = None
        if settings.cdp_api_key_id and settings.cdp_api_key_secret:
            auth = CdpAuth(settings.cdp_api_key_id, settings.cdp_api_key_secret)
        http = HttpFacilitator(settings.facilitator_url, auth, count_failure=count_facilitator_failure)
        return ListeningFacilitator(http, self.listings, self.discovery.capability_at, self.spawn)

    @cached_property
    def settler(self) -> Settler:
        ordered = OrderedQueue(self.queue, self.ledger)
        return Settler(
            self.ledger,
            self.store,
            self.facilitator,
            sign=self.sign_statement,
            push=ordered.push,
            push_verified=ordered.push_verified,
            resource_url=self.resource_url,
            chain=self.chain,
            # With a node configured the clock asks it, so nothing is presumed anywhere.
            presume=not self.settings.rpc_url,
            checkpoint=self.checkpoint,
            files=self.files,
        )

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Lets tests end or freeze this process; does nothing elsewhere."""
        folder = os.environ.get(CHECKPOINTS) if self.test_clock else None
        return armed(Path(folder), self.role) if folder else unarmed

    @cached_property
    def chain(self) -> ChainEvidence | None:
        """Only the clock and the command line read the chain, and only they import web3."""
        if self.role not in ("clock", "cli") or not self.settings.rpc_url:
            return None
        return RpcChain(
            self.settings.rpc_url,
            self.network.asset,
            self.network.chain_id,
            proof_blocks=self.settings.confirmations,
            # The local chain has no other miner.
            mines_on_demand=self.settings.worker_env == "local",
        )

    def _sign(self, digest: bytes) -> bytes:
        if self.settings.worker_key is None:
            raise SigningUnavailable()
        return sign_digest(digest, self.settings.worker_key)

    # Money chores of the clock: legs, and payments found only on the chain

    @cached_property
    def leg_books(self) -> LegLedger:
        return LegLedger(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def leg_runner(self) -> LegRunner | None:
        """None without a key, because legs are signed."""
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
        """Whether older contracts must wait; for every process."""
        return ComparisonMark(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def found(self) -> FoundMoney:
        return FoundMoney(self.client, self.keys, self.ledger, self.network, test_clock=self.test_clock)

    @cached_property
    def found_decisions(self) -> FoundDecisions:
        return FoundDecisions(self.found, self.settler, (self.settings.worker_wallet or "").lower())

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
            longest_us=longest_validity(self.settings.max_payment_window) * 1_000_000 + CLOCKS_DIFFER_US,
        )

    @cached_property
    def money_pool(self) -> MoneyPool:
        """Starts the clock's money work."""
        return MoneyPool(
            self.ledger,
            self.settler,
            self.leg_runner,
            self.comparison,
            audit=self.audit,
            rechecks=self.rechecks.begin,
        )

    @cached_property
    def rechecks(self) -> Rechecks:
        queues = (self.keys.express, self.queue.key)
        return Rechecks(self.client, self.keys, test_clock=self.test_clock, queues=queues)

    @cached_property
    def audit_book(self) -> AuditBook:
        return AuditBook(self.client, self.keys, test_clock=self.test_clock)

    @cached_property
    def money_gauges(self) -> MoneyGauges:
        return MoneyGauges(self.client, self.keys)

    @cached_property
    def audit(self) -> Audit | None:
        """None without a node: then only the facilitator's word counts."""
        if self.chain is None:
            return None
        return Audit(self.audit_book, self.ledger, self.settler, self.facilitator, self.chain)

    # Delivery

    @cached_property
    def deliverables(self) -> Deliverables:
        return Deliverables(
            self.executions,
            self.files,
            public_url=self.settings.public_url,
            secret=self.secret,
            accepted_secrets=self.settings.accepted_secret_keys,
            retention_us=int(self.settings.retention * 1e6),
        )

    @cached_property
    def outbound(self) -> Outbound:
        """Calls to addresses given by strangers: only a laptop's worker may call the laptop itself."""
        return Outbound(rules_for(self.settings.worker_env), keeps=True)

    @cached_property
    def outbound_names(self) -> Outbound:
        """The same rules, with a resolver for lookups while a seeker waits."""
        return Outbound(rules_for(self.settings.worker_env), resolver=FewLookups())

    @cached_property
    def webhook_key(self) -> Ed25519PrivateKey | None:
        """Signs webhooks: the operator's own key, or one derived from the worker's."""
        settings = self.settings
        if settings.webhook_key is not None:
            return Ed25519PrivateKey.from_private_bytes(settings.webhook_key[:32])
        return derive_private_key(bytes.fromhex(settings.worker_key[2:])) if settings.worker_key else None


def count_facilitator_failure(operation: str) -> None:
    count_sample(f'worker_facilitator_failures_total{{call="{operation}"}}')
