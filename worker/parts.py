"""What every process is made of: settings in, connected parts out. Nothing here opens a connection."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import redis
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from worker.agents.catalog import Catalog
from worker.bearers import Bearers
from worker.contracts.asking import Asking
from worker.contracts.book import ContractBook, SigningUnavailable
from worker.contracts.claiming import Budget, Claims
from worker.contracts.hiring import Hiring
from worker.contracts.manifest import Manifest
from worker.contracts.schema import Validators
from worker.contracts.schema_check import checker, output_checker
from worker.contracts.signatures import sign_digest
from worker.delivery.addresses import rules_for
from worker.delivery.deliverables import Deliverables, metadata
from worker.delivery.files import Files, files_from
from worker.delivery.outbound import Outbound
from worker.delivery.outbox import Outbox
from worker.delivery.postman import Postman
from worker.delivery.signing import derive_private_key, public_key_text
from worker.delivery.webhooks import Webhooks
from worker.executions.assignment import Assignment
from worker.executions.connections import Connections, Lost
from worker.executions.intents import Intents
from worker.executions.keys import Keys
from worker.executions.load import LoadMeter
from worker.executions.messages import Messages
from worker.executions.others import Others, StoreOthers
from worker.executions.outcomes import Outcomes
from worker.executions.policy import Call, Decision, Policy, judge
from worker.executions.policy_file import policy_for
from worker.executions.rate_limits import StoreRateLimiter
from worker.executions.remote import Remote
from worker.executions.remote_store import Kind, RemoteStore
from worker.executions.runners import Runners
from worker.executions.service import Executions
from worker.executions.signals import Signals
from worker.executions.store import ExecutionStore
from worker.executions.streams import Streams
from worker.executions.watch import Watcher
from worker.limits import Limits
from worker.local.secrets import local_secrets
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
from worker.queue.rq import RunQueue
from worker.requests_count import RequestCounts
from worker.settings import Settings
from worker.store import Role, connect, connect_blocking
from worker.swarm.answers import Identity
from worker.swarm.full_schema import FullSchema
from worker.swarm.kernels import Kernels
from worker.swarm.places import Places
from worker.swarm.reading_evidence import ReadEvidence
from worker.swarm.serving import Serving, Stricter

log = structlog.get_logger()

# Longer than any wait on a queue or a subscription.
BLOCKING_SECONDS = 30.0


@dataclass
class Parts:
    """The parts of one process; each is made when it is first asked for."""

    settings: Settings
    role: Role

    @cached_property
    def client(self) -> redis.Redis:
        return connect(self.settings, role=self.role)

    @cached_property
    def blocking(self) -> redis.Redis:
        return connect_blocking(self.settings, role=self.role, wait=BLOCKING_SECONDS)

    @cached_property
    def keys(self) -> Keys:
        return Keys()

    @cached_property
    def store(self) -> ExecutionStore:
        return ExecutionStore(self.client, keys=self.keys, test_clock=self.settings.worker_env == "test")

    @cached_property
    def files(self) -> Files:
        return files_from(self.settings.files_url)

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.client, self.keys.catalog)

    @cached_property
    def queue(self) -> RunQueue:
        return RunQueue(self.client)

    @cached_property
    def watcher(self) -> Watcher:
        return Watcher(self.blocking)

    @cached_property
    def secret(self) -> str:
        """What references and URLs are keyed with; a laptop keeps its own."""
        return self.settings.secret_key or local_secrets(self.settings.worker_state_dir)["SECRET_KEY"]

    @cached_property
    def network(self) -> Network:
        return resolve_network(self.settings.network)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.client, self.keys, test_clock=self.settings.worker_env == "test")

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
        folder = os.environ.get(CHECKPOINTS) if self.settings.worker_env == "test" else None
        return armed(Path(folder), self.role) if folder else unarmed

    @cached_property
    def leg_books(self) -> LegBooks:
        return LegBooks(self.client, self.keys, test_clock=self.settings.worker_env == "test")

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
        return ComparisonMark(self.client, self.keys, test_clock=self.settings.worker_env == "test")

    @cached_property
    def found(self) -> FoundMoney:
        test = self.settings.worker_env == "test"
        return FoundMoney(self.client, self.keys, self.ledger, self.network, test_clock=test)

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

    @cached_property
    def chain(self) -> ChainEvidence | None:
        """Only the clock and the command line look at the chain: web3 is theirs alone."""
        if self.role not in ("clock", "cli") or not self.settings.rpc_url:
            return None
        return RpcChain(self.settings.rpc_url, self.network.asset, self.network.chain_id)

    @property
    def resource_url(self) -> str:
        return f"{self.settings.public_url}/execute"

    @cached_property
    def manifest(self) -> Manifest:
        key = self.webhook_key
        return Manifest(self.settings, self.catalog, self.network, public_key_text(key) if key else None)

    @cached_property
    def webhook_key(self) -> Ed25519PrivateKey | None:
        """Signs webhooks: the operator's own key, or one that follows from the worker's."""
        settings = self.settings
        if settings.webhook_key is not None:
            return Ed25519PrivateKey.from_private_bytes(settings.webhook_key[:32])
        return derive_private_key(bytes.fromhex(settings.worker_key[2:])) if settings.worker_key else None

    @cached_property
    def outbound(self) -> Outbound:
        """How strangers' addresses are called: only a laptop's worker may call the laptop."""
        return Outbound(rules_for(self.settings.worker_env))

    @cached_property
    def limits(self) -> Limits:
        clock = self.keys.test_clock if self.settings.worker_env == "test" else None
        return Limits(StoreRateLimiter(self.client, f"{self.keys.prefix}:", clock))

    @cached_property
    def webhooks(self) -> Webhooks | None:
        if self.webhook_key is None:
            return None
        return Webhooks(
            Outbox(self.client, self.keys, test_clock=self.settings.worker_env == "test"),
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
            test_clock=self.settings.worker_env == "test",
        )

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
    def kernels(self) -> Kernels:
        return Kernels(self.settings.swarm_keys, self.settings.swarm_limits)

    @cached_property
    def serving(self) -> Serving:
        settings = self.settings
        places = Places(self.store, LoadMeter(self.store), patience=settings.swarm_patience)
        hashes: dict[str, tuple[str, ...]] = {}
        for policy_id, digest in settings.swarm_policy_hashes:
            hashes[policy_id] = (*hashes.get(policy_id, ()), digest)
        origins = settings.swarm_evidence_hosts
        return Serving(
            executions=self.executions,
            catalog=self.catalog,
            places=places,
            files=self.files,
            deliverables=self.deliverables,
            identity=Identity(settings.swarm_provider_family, settings.swarm_model_id),
            stricter=Stricter(
                hashes=hashes,
                full_schema=FullSchema(self.executions, places)
                if settings.swarm_full_schema == "on"
                else None,
                origins=origins,
                fetch=ReadEvidence(settings.worker_env, origins) if origins else None,
            ),
        )

    def _sign(self, digest: bytes) -> bytes:
        if self.settings.worker_key is None:
            raise SigningUnavailable()
        return sign_digest(digest, self.settings.worker_key)

    @cached_property
    def executions(self) -> Executions:
        return Executions(
            self.store,
            catalog=self.catalog,
            files=self.files,
            watcher=self.watcher,
            push=self.queue.push,
            timeout_us=int(self.settings.execution_timeout * 1e6),
            remote=self.remote.assignment,
            signals=self.signals,
        )

    # Remote agents and runners

    @cached_property
    def bearers(self) -> Bearers:
        return Bearers(self.settings.kernel_token, self.settings.agent_keys, self.client, self.keys)

    @cached_property
    def counts(self) -> RequestCounts:
        return RequestCounts(self.client, self.keys.stats)

    @cached_property
    def remote_store(self) -> RemoteStore:
        return RemoteStore(self.client, self.keys, test_clock=self.settings.worker_env == "test")

    @cached_property
    def remote(self) -> Remote:
        store = self.remote_store
        assignment = Assignment(store)
        runners = Runners(store, self.files, step_timeout_us=self._step_timeout_us)
        lease_us = int(self.settings.agent_timeout * 1e6)
        lost: dict[Kind, Lost] = {"agent": assignment.lost, "runner": runners.lost}
        return Remote(store, Connections(store, lease_us=lease_us, lost=lost), assignment, runners)

    @cached_property
    def streams(self) -> Streams:
        remote = self.remote
        return Streams(
            remote.store,
            remote.connections,
            remote.assignment,
            remote.runners,
            Messages(self.store, remote.store, self.files),
            self.watcher,
            keys=self.keys,
            lease=self.settings.agent_timeout,
        )

    @cached_property
    def signals(self) -> Signals:
        store, runners = self.remote_store, self.remote.runners
        push, timeout_us = self.queue.push, self._step_timeout_us
        return Signals(store, runners, self.files, push=push, step_timeout_us=timeout_us)

    @cached_property
    def others(self) -> Others:
        return StoreOthers(self.remote_store, self.remote.runners, self.files)

    @cached_property
    def intents(self) -> Intents:
        return Intents(
            self.remote_store,
            self.remote.runners,
            Outcomes(self.store, self.catalog, self.files, check=output_checker(self.executions)),
            self.files,
            decide=self.decide,
            step_timeout_us=self._step_timeout_us,
            timed=self.counts.policy_took,
        )

    @cached_property
    def policy(self) -> Policy:
        return policy_for(self.settings.policy, production=self.settings.production)

    @cached_property
    def _limits(self) -> StoreRateLimiter:
        clock = self.keys.test_clock if self.settings.worker_env == "test" else None
        return StoreRateLimiter(self.client, f"{self.keys.prefix}:", clock)

    def decide(self, call: Call) -> Decision:
        """What the tool policy says about a call; rate limits are counted over all processes."""
        return judge(self.policy, call, self._limits)

    @property
    def _step_timeout_us(self) -> int:
        return int(self.settings.step_timeout * 1e6)


def spawn(work: Callable[[], object]) -> None:
    """Something that outlives the request which begins it."""

    def run() -> None:
        try:
            work()
        except Exception:  # nobody waits for it: what it left the clock finishes
            log.exception("web.background_failed")

    threading.Thread(target=run, name="outlives-request", daemon=True).start()
