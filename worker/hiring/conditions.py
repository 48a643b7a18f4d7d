"""Checks made before a 402, and the offer in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TypeVar

from worker.capabilities.declare import Capability
from worker.contracts.book import CLOCKS_DIFFER_US, Contract
from worker.core.amounts import to_atomic
from worker.core.errors import BadRequest, InvalidInput, Problem, Unavailable
from worker.core.states import Lane
from worker.delivery.outbound import TimedOut
from worker.delivery.webhooks import MOST_HOOKS, WebhookTarget
from worker.engine.load import Load, LoadMeter
from worker.engine.service import lane_of
from worker.files.health import StorageHealth
from worker.hiring.input_effort import BoundedChecks
from worker.hiring.task import TaskInput
from worker.payments.budget import UnpaidWorkBudget
from worker.payments.claim import ANY_QUEUE, FAR_US
from worker.payments.comparison import ComparisonMark
from worker.payments.facts import Facts, FactsReader
from worker.x402.networks import Network
from worker.x402.offer import Offer
from worker.x402.windows import (
    OfferWindow,
    WindowReason,
    WindowRules,
    allowed_wait_us,
    longest_validity,
    offer_window,
    payment_window,
    served_within_ms,
)
from worker.x402.windows import TimeTerms as Window

T = TypeVar("T")

# Inputs up to this length are quickly checked and are stored in the record.
SHORT_BYTES = 4_096


@dataclass(frozen=True)
class PaymentConditions:
    """Refuses a request before the 402 if a payment for it would be pointless."""

    load: LoadMeter
    facts: FactsReader
    compared: ComparisonMark
    checks: BoundedChecks
    author_check: Callable[[Capability, TaskInput, str, str], str]
    check_url: Callable[[str], None]
    check_host: Callable[[str], None]
    network: Network
    resource_url: str
    rules: WindowRules
    queue_limit: int
    budget: UnpaidWorkBudget
    storage: StorageHealth
    may_have_paid: Callable[[Contract], bool]

    def current_load(self, capability: Capability) -> Load:
        """Current load of the capability's lane."""
        return self.load.read(capability.name, lane_of(capability))

    def check_takes_contracts(self) -> None:
        """Refuses new contracts while the store is short of memory; earlier than paid work."""
        if self.load.guard.full_for_unpaid():
            raise no_memory()

    def check_deliverable(self, contract: Contract, capability: Capability, load: Load) -> None:
        """Refuses to issue a 402 while the worker could not complete the work."""
        self.check_working(load)
        self.check_not_held(contract, capability)

    def check_working(self, load: Load) -> None:
        """Refuses while nobody would finish paid work."""
        if load.clock_stopped:
            raise Unavailable(
                "the worker cannot finish paid work right now", code="WORKER_BUSY", retry_after=10
            )
        if load.memory_full:
            raise no_memory()

    def check_not_held(self, contract: Contract, capability: Capability) -> None:
        """Refuses a contract whose payment may have been lost with the store's data."""
        held_us = self.compared.comparison_pending(
            self._signed_us(contract), self.longest_us(contract, capability), contract.registered
        )
        if held_us:
            raise MayBePaid(held_us)

    def _signed_us(self, contract: Contract) -> int:
        # Found money that may be this contract's is compared with it first, as for an old contract.
        return 0 if self.may_have_paid(contract) else contract.signed_us

    def read_facts(self, contract: Contract, capability: Capability, key: str = "") -> Facts:
        """What decides about a request for this contract; `key` is its payment's, or ''."""
        return self.facts.read(
            contract,
            capability.name,
            lane_of(capability),
            signed_us=self._signed_us(contract),
            longest_us=self.longest_us(contract, capability),
            key=key,
        )

    def assumed_facts(
        self,
        capability: Capability,
        body: TaskInput,
        contract: Contract | None = None,
        *,
        hooked: bool = False,
    ) -> Facts | None:
        """What may be assumed about a request so that its claim is tried at once; None if it must be read.

        A request that the claim refuses must not have cost an author's check, a look-up of webhooks' names
        (`hooked`) or a file. Nor does the claim decide about a remote agent's queue; and with a promised
        latency, whether a process is free counts now.
        """
        lane = lane_of(capability)
        if lane is Lane.REMOTE or (contract is not None and contract.terms.max_latency_ms is not None):
            return None
        if capability.checks_input or capability.prices_input or hooked or len(body.raw) > SHORT_BYTES:
            return None
        if contract is not None and (contract.terms.webhook is not None or self.may_have_paid(contract)):
            return None
        return self.facts.assumed(capability.name, lane)

    def at_once(
        self,
        capability: Capability,
        body: TaskInput,
        sell: Callable[[Facts], T | None],
        contract: Contract | None = None,
        *,
        hooked: bool = False,
    ) -> T | None:
        """Sells on what may be assumed; None if the facts must be read, also to tell why it was refused."""
        facts = self.assumed_facts(capability, body, contract, hooked=hooked)
        if facts is None:
            return None
        with suppress(Problem):
            sold = sell(facts)
            if sold is not None:
                return sold
        self.facts.refused(capability.name, lane_of(capability))
        return None

    def purchase_facts(
        self,
        capability: Capability,
        *,
        ref: str = "",
        key: str = "",
        payer: str = "",
        signed_us: int = FAR_US,
    ) -> Facts:
        """The same for a purchase without a contract, whose terms begin at the time of these facts.

        `payer`: '' if nothing proves it. What is read of a wallet's budget is told to nobody before its
        signature is checked.
        """
        return self.facts.of_purchase(
            capability.name,
            lane_of(capability),
            ref=ref,
            price=to_atomic(capability.price),
            payer=payer,
            signed_us=signed_us,
            longest_us=_longest_us(self.purchase_window_s(capability)),
            key=key,
        )

    def purchase_window_s(self, capability: Capability) -> int:
        """The payment window of a purchase without a contract, which promises no latency."""
        return payment_window(Window(int(capability.time_limit)), self.rules)

    def longest_us(self, contract: Contract, capability: Capability) -> int:
        """Longest time after its claim that an authorization for this contract may still land."""
        return _longest_us(payment_window(_window(contract, capability), self.rules))

    def check_input(self, capability: Capability, body: TaskInput) -> None:
        """Refuses input that is not JSON or does not match the capability's own schema."""
        problems = self.checks.problems(capability, body)
        if problems:
            raise InvalidInput(**problems[0])

    def check_admission(
        self, contract: Contract, capability: Capability, body: TaskInput, facts: Facts, network: str = ""
    ) -> None:
        """Refuses work that could not be started, finished and paid; cheap checks come first.

        `network`: the source network of a request whose wallet no contract proves.
        """
        # First, because the refusals below would be wrong for a contract whose payment was lost.
        load = facts.load
        if facts.held_us:
            raise MayBePaid(facts.held_us)
        if contract.terms.deadline <= load.at:
            raise Problem(
                "the contract's deadline has passed",
                code="CONTRACT_EXPIRED",
                status=410,
                advice="Draft a new contract. You were not charged.",
            )
        self.check_working(load)
        if load.takers == 0:
            nobody = "no agent is connected" if capability.remote else "no process is running"
            raise Unavailable(f"{nobody} for this capability", code="WORKER_BUSY", retry_after=15)
        if load.waiting >= self.queue_limit:
            raise Unavailable("the worker's queue is full", code="WORKER_BUSY", retry_after=15)
        if load.wait_us > self.allowed_wait_us(contract, capability, load):
            raise self.too_long(contract, capability, load)
        self.storage.require()
        # The claim counts again; without this, a 402 would ask for payments that it refuses.
        if facts.ahead() > self.most_ahead(contract, capability, load):
            raise self.too_long(contract, capability, load)
        self.check_input(capability, body)
        self.author_check(capability, body, contract.terms.seeker_wallet, network)

    def allowed_wait_us(self, contract: Contract, capability: Capability, load: Load) -> int:
        """Expected wait for a process."""
        return allowed_wait_us(load.mean_us, _window(contract, capability), self.rules)

    def most_ahead(self, contract: Contract, capability: Capability, load: Load) -> int:
        """How many executions may be ahead of this one; connected agents' queues are bounded elsewhere."""
        if lane_of(capability) is Lane.REMOTE:
            return ANY_QUEUE
        return load.most_ahead(self.allowed_wait_us(contract, capability, load))

    def too_long(self, contract: Contract, capability: Capability, load: Load) -> Unavailable:
        """The queue is longer than this contract, or any client, can wait."""
        over_us = load.wait_us - self.allowed_wait_us(contract, capability, load)
        return Unavailable(
            "the queue is longer than the promised latency"
            if contract.terms.max_latency_ms is not None
            else "more work waits than can be done in time",
            code="WORKER_BUSY",
            retry_after=min(300, max(5, over_us // 1_000_000)),
            estimated_wait_ms=load.wait_us // 1_000,
        )

    def estimate(self, contract: Contract, capability: Capability, load: Load) -> dict[str, int]:
        """The times in a 402: the expected wait, and the time within which paid work is served."""
        within = served_within_ms(load.mean_us, _window(contract, capability), self.rules)
        return {"estimated_wait_ms": load.wait_us // 1_000, "served_within_ms": within}

    def webhook_targets(
        self, contract: Contract, url: str | None, *, begun: bool = False
    ) -> list[WebhookTarget]:
        """Returns the contract's webhook and the request's; refuses URLs that the worker would not call.

        If the payment was already received or the work is done (`begun`), a bad webhook of the contract is
        dropped instead, or kept if it is only unavailable now: signed terms cannot be changed, and must not
        block the result of a payment.
        """
        hooks = []
        if contract.terms.webhook is not None:
            try:
                hook = WebhookTarget.read(contract.terms.webhook, "webhook")
                with suppress(Unavailable) if begun else nullcontext():
                    self._callable(hook, "webhook")
                hooks.append(hook)
            except Problem:
                if not begun:
                    raise
        if url and all(hook.url != url for hook in hooks):
            hooks.append(self._callable(WebhookTarget(url), "X-Webhook-URL"))
        return hooks[:MOST_HOOKS]

    def check_hosts(self, hooks: list[WebhookTarget], url: str | None) -> None:
        """Refuses webhooks whose host is unknown or resolves to private addresses.

        Called after the payment was checked, because a host's owner decides how long its lookup takes. Hosts
        that do not resolve in time are accepted: each call of the webhook resolves again.
        """
        for hook in hooks:
            try:
                with suppress(TimedOut):
                    self.check_host(hook.url)
            except Problem as refused:
                refused.details["field"] = "X-Webhook-URL" if hook.url == url else "webhook"
                raise

    def _callable(self, hook: WebhookTarget, field: str) -> WebhookTarget:
        try:
            self.check_url(hook.url)
        except BadRequest as refused:
            refused.details["field"] = field
            raise
        return hook

    def offer(self, contract: Contract, capability: Capability, load: Load, *, sealed: bool = False) -> Offer:
        """The offer for the contract; for `sealed` work only the settlement needs time."""
        terms = contract.terms
        window = self.time_left(contract, capability, load)
        if window.reason is not None and not sealed:
            raise _out_of_time(window.reason)
        return Offer(
            network=self.network,
            price=terms.price_text,
            pay_to=terms.worker_wallet,
            payer=terms.seeker_wallet,
            max_timeout_s=window.max_timeout_s,
            needed_s=self.rules.settle_margin_s if sealed else window.needed_s,
            resource_url=self.resource_url,
            description=capability.description,
            network_word=terms.network,
        )

    def time_left(self, contract: Contract, capability: Capability, load: Load) -> OfferWindow:
        """Checks whether work and settlement fit into the time left."""
        window = _window(contract, capability)
        return offer_window(load.at, load.wait_us // 1_000_000, window, self.rules)


def _longest_us(window_s: int) -> int:
    return longest_validity(window_s) * 1_000_000 + CLOCKS_DIFFER_US


def _window(contract: Contract, capability: Capability) -> Window:
    terms = contract.terms
    return Window(int(capability.time_limit), terms.deadline, terms.max_latency_ms)


class MayBePaid(Unavailable):
    """The store lost data, possibly a payment for this contract that may still land."""

    code = "WORKER_BUSY"
    message = "the worker is checking whether this contract was already paid"
    advice = (
        "Retry the identical request after Retry-After. Do not sign another payment until then: "
        "one that you sent may still settle."
    )

    def __init__(self, held_us: int) -> None:
        super().__init__(retry_after=max(1, min(600, -(-held_us // 1_000_000))), charge_known=False)


def no_memory() -> Unavailable:
    return Unavailable("the worker is out of memory for new work", code="WORKER_BUSY", retry_after=60)


def _out_of_time(reason: WindowReason) -> Problem:
    if reason is WindowReason.SLA_UNREACHABLE:
        return Unavailable(
            "the queue is longer than the promised latency", code="WORKER_BUSY", retry_after=15
        )
    return Problem(
        "the work and its payment would not finish in time",
        code="DEADLINE_TOO_SOON" if reason is WindowReason.DEADLINE_TOO_SOON else str(reason),
        status=409,
        advice="Draft a contract with more time. You were not charged.",
    )
