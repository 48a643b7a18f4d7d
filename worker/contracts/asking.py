"""What must hold before a payment is asked for, and what is then asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass

from worker.agents.declare import Capability
from worker.contracts.book import Contract
from worker.contracts.schema import Validators, validate
from worker.contracts.task import Body
from worker.delivery.webhooks import MOST_HOOKS, Hook
from worker.errors import BadRequest, InvalidInput, Problem, Unavailable
from worker.executions.load import Load, LoadMeter
from worker.executions.service import lane_of
from worker.executions.states import Lane
from worker.payments.comparison import ComparisonMark
from worker.payments.networks import Network
from worker.payments.offer import Offer
from worker.payments.windows import OfferWindow, Reason, Rules, offer_window
from worker.payments.windows import Terms as Window


@dataclass(frozen=True)
class Asking:
    """Everything that would make a payment pointless is said before money is mentioned."""

    load: LoadMeter
    compared: ComparisonMark
    validators: Validators
    check_url: Callable[[str], None]
    network: Network
    resource_url: str
    rules: Rules
    queue_limit: int

    def read(self, capability: Capability) -> Load:
        """How busy the capability's lane is now."""
        return self.load.read(capability.name, lane_of(capability))

    def takes_contracts(self) -> None:
        """Refuses new contracts while there is no room to keep what becomes of them."""
        if self.load.read("", Lane.EXPRESS).memory_full:
            raise no_memory()

    def may_ask(self, contract: Contract, load: Load) -> None:
        """No payment is asked for that nobody would see through."""
        if load.clock_stopped:
            raise Unavailable(
                "the worker cannot finish paid work right now", code="WORKER_BUSY", retry_after=10
            )
        if load.memory_full:
            raise no_memory()
        if self.compared.comparison_pending(contract.terms.created_at):
            raise Unavailable(
                "whether this contract was paid for is being looked up", code="WORKER_BUSY", retry_after=5
            )

    def fits(self, capability: Capability, body: Body) -> None:
        """Refuses an input that breaks the capability's own schema."""
        if capability.input_schema:
            problems = validate(self.validators.get(capability.input_schema), body.value)
            if problems:
                raise InvalidInput(**problems[0])

    def room(self, contract: Contract, capability: Capability, body: Body, load: Load) -> None:
        """Refuses work that could not be begun, finished and paid."""
        if contract.terms.deadline <= load.at:
            raise Problem(
                "the contract's deadline has passed",
                code="CONTRACT_EXPIRED",
                status=410,
                advice="Draft a new contract; nothing was charged.",
            )
        self.fits(capability, body)
        self.may_ask(contract, load)
        if load.waiting >= self.queue_limit or load.takers == 0:
            raise Unavailable("the worker is busy", code="WORKER_BUSY", retry_after=15)

    def hooks(self, contract: Contract, url: str | None, *, begun: bool = False) -> list[Hook]:
        """The contract's webhook and the request's; an address that we would not call is refused now.

        Where the money is in already, or the work is done, the contract's is left out instead, or kept if it
        may be back later: what is signed cannot be mended, and must not come between payment and result.
        """
        hooks = []
        if contract.terms.webhook is not None:
            try:
                hook = Hook.read(contract.terms.webhook, "webhook")
                with suppress(Unavailable) if begun else nullcontext():
                    self._callable(hook, "webhook")
                hooks.append(hook)
            except Problem:
                if not begun:
                    raise
        if url and all(hook.url != url for hook in hooks):
            hooks.append(self._callable(Hook(url), "X-Webhook-URL"))
        return hooks[:MOST_HOOKS]

    def _callable(self, hook: Hook, field: str) -> Hook:
        try:
            self.check_url(hook.url)
        except BadRequest as refused:
            refused.details["field"] = field
            raise
        return hook

    def offer(self, contract: Contract, capability: Capability, load: Load, *, sealed: bool = False) -> Offer:
        """What the contract costs; for work that is `sealed` only the payment's own time counts."""
        terms = contract.terms
        window = self.times(contract, capability, load)
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

    def times(self, contract: Contract, capability: Capability, load: Load) -> OfferWindow:
        """Whether work and settlement fit into the time that there is."""
        terms = contract.terms
        window = Window(int(capability.time_limit), terms.deadline, terms.max_latency_ms)
        return offer_window(load.at, load.wait_us // 1_000_000, window, self.rules)


def no_memory() -> Unavailable:
    return Unavailable("the worker has no memory for new work", code="WORKER_BUSY", retry_after=60)


def _out_of_time(reason: Reason) -> Problem:
    if reason is Reason.SLA_UNREACHABLE:
        return Unavailable(
            "the queue is longer than the promised latency", code="WORKER_BUSY", retry_after=15
        )
    return Problem(
        "the work would not be done and paid in time",
        code="DEADLINE_TOO_SOON" if reason is Reason.DEADLINE_TOO_SOON else str(reason),
        status=409,
        advice="Draft a contract with more time; nothing was charged.",
    )
