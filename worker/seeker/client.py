"""A seeker: hires a worker, or pays for any x402 resource, and never pays twice for the same thing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from worker.core.amounts import to_atomic
from worker.core.canonical import canonical
from worker.core.errors import BadRequest
from worker.core.fields import parse_time
from worker.seeker.checks import SigningLimits, cap_reached, check_contract_signatures, check_countersigned
from worker.seeker.deliveries import Saved, collect
from worker.seeker.draft import ListedCapability, Order, draft, read_listing
from worker.seeker.http import HttpTransport, Transport, checked_url, host_of, origin_of
from worker.seeker.problems import OfferRefused, plain
from worker.seeker.purchase_run import PurchaseRun
from worker.seeker.purchases import Purchase, PurchaseEnding, PurchaseStore
from worker.seeker.result import Result
from worker.seeker.wallet import Wallet
from worker.seeker.worker_client import WorkerClient
from worker.x402.networks import Network, find_network

# Reports progress to an observer: an event name and its facts.
Tell = Callable[[str, Mapping[str, Any]], None]
# Raises unless this amount may be paid to this host for this purchase; called before a payment is signed.
Approve = Callable[[int, str, str], None]


@dataclass(frozen=True, slots=True)
class SpendLimits:
    """Spending limits. Amounts are in atomic units, per purchase."""

    most: int = 1_000_000
    longest_window_s: int = 3_600
    patience_s: float = 600.0
    network: Network | None = None
    plain_http: bool = False


@dataclass
class Seeker:
    """A careful buyer: one wallet and one purchase store."""

    wallet: Wallet
    purchases: PurchaseStore
    limits: SpendLimits = SpendLimits()
    http: Transport = field(default_factory=HttpTransport)
    tell: Tell = lambda word, facts: None
    approve: Approve = lambda amount, host, ref: None
    live: bool = False
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def listing(self, url: str, capability: str) -> ListedCapability:
        """What the worker at this address lists for a capability; its URL counts only on the same origin."""
        base = checked_url(url, plain_http=self.limits.plain_http)
        listed = read_listing(WorkerClient(self.http, base).manifest(), capability)
        same = origin_of(listed.url) == origin_of(base)
        listed = replace(listed, url=listed.url.rstrip("/") if same else base)
        self.tell(
            "offered",
            {
                "capability": capability,
                "price": listed.price,
                "network": listed.network.name,
                "when": "before the work" if listed.before_work else "after the work",
            },
        )
        return listed

    def contract(self, listed: ListedCapability, order: Order) -> dict[str, Any]:
        """A contract signed by both sides and registered with the worker. Nothing is owed yet."""
        price = to_atomic(order.price or listed.price, field="price")
        if price > self.limits.most:
            raise cap_reached(price, self.limits.most)
        remote = WorkerClient(self.http, listed.url)
        drafted = draft(listed, order, self.wallet.address, self.now())
        self.tell("drafted", {"deadline": drafted["terms"]["deadline"], "price": order.price or listed.price})
        signed = check_countersigned(drafted, remote.countersign(drafted), listed.wallet)
        self.tell("signed_by_worker", {"wallet": listed.wallet})
        signatures = {**signed["signatures"], "seeker": self.wallet.sign_contract(signed["hash"])}
        contract = {**signed, "signatures": signatures}
        remote.register(contract)
        self.tell("signed_by_both", {"hash": contract["hash"]})
        return contract

    def hire(self, url: str, order: Order, task_input: Any) -> Result:
        """The whole flow: manifest, contract, payment, work. One call, one purchase."""
        listed = self.listing(url, order.capability)
        return self.execute(listed.url, self.contract(listed, order), task_input)

    def execute(self, url: str, contract: Mapping[str, Any], task_input: Any) -> Result:
        """Buy what a contract promises; an open purchase under it is resumed."""
        check_contract_signatures(contract)
        base = checked_url(url, plain_http=self.limits.plain_http)
        wanted = Purchase(
            ref=ref_of(contract["contract_id"]),
            url=base,
            method="POST",
            body=canonical(task_input).decode(),
            contract=dict(contract),
        )
        return self._run(wanted, again=False)

    def resume(self, ref: str) -> Result:
        """Resume a purchase: re-send the outstanding payment, never a second one beside it."""
        return self._run(self._kept(ref), again=True)

    def unfinished(self, url: str, capability: str, task_input: Any) -> Purchase | None:
        """The open purchase of exactly this from this wallet, if any."""
        body = canonical(task_input).decode()
        for each in self.purchases.unfinished():
            if each.body == body and self._ours(each, url, capability):
                return each
        return None

    def correctable(self, url: str, capability: str) -> Purchase | None:
        """An open purchase whose input was refused and whose payment can still be used with another input."""
        for each in self.purchases.unfinished():
            if each.wants_input and self._ours(each, url, capability) and self._allowed(each):
                return each
        return None

    def correct(self, ref: str, task_input: Any) -> Result:
        """Resume a purchase whose input was refused: same contract, same payment, this input."""
        return self._run(replace(self._kept(ref), body=canonical(task_input).decode()), again=True)

    def collect(self, result: Result, directory: Path) -> list[Saved]:
        """Fetch and check every deliverable. The purchase ends only when these and the receipt hold."""
        host = host_of(result.purchase.url)
        saved = collect(result.deliverables, directory, http=self.http, worker_host=host)
        if result.doubt is None:
            self.close(result.purchase)
        return saved

    def close(self, purchase: Purchase) -> None:
        """End the purchase: from now on the same order is a new one."""
        self.purchases.save(replace(purchase, ending=PurchaseEnding.DONE))

    def agreed(self, contract: Mapping[str, Any], base: str, room: int) -> SigningLimits:
        """What may be signed under a contract. A network set in our limits takes precedence."""
        price = contract["terms"]["price"]
        network = self.limits.network or find_network(price["network"])
        if network is None:
            raise OfferRefused(
                "the contract is paid on a network that is not known here",
                field="terms.price.network",
                received=plain(price["network"], 60),
            )
        return SigningLimits(
            host=host_of(base),
            most=room,
            longest_s=self.limits.longest_window_s,
            network=network,
            pay_to=contract["parties"]["worker"]["wallet"],
            amount=to_atomic(price["amount"], field="terms.price.amount"),
        )

    def _kept(self, ref: str) -> Purchase:
        found = self.purchases.find(ref)
        if found is None or found.contract is None:
            raise BadRequest("there is no such purchase", field="ref", received=ref)
        return found

    def _ours(self, purchase: Purchase, url: str, capability: str) -> bool:
        """Whether this wallet bought that capability there."""
        if purchase.contract is None or origin_of(purchase.url) != origin_of(url):
            return False
        bought: str | None = purchase.contract["task"].get("capability")
        wallet: str = purchase.contract["parties"]["seeker"]["wallet"]
        return bought == capability and wallet.lower() == self.wallet.address.lower()

    def _allowed(self, purchase: Purchase) -> bool:
        """Whether today's limits allow it to resume and its contract has not expired."""
        network = self.limits.network
        on_network = network is None or all(
            each.signed.network == network.caip2 for each in purchase.payments
        )
        over = parse_time(purchase.signed_contract["terms"]["deadline"], "terms.deadline") <= self.now() * 1e6
        return on_network and not over and purchase.exposed(int(self.now())) <= self.limits.most

    def _run(self, wanted: Purchase, *, again: bool) -> Result:
        with self.purchases.hold(wanted.ref):
            known = self.purchases.find(wanted.ref)
            if known is not None and known.wants_input:
                # Stored before it is sent: a re-send must repeat exactly what went out.
                known = replace(known, body=wanted.body, wants_input=False)
                self.purchases.save(known)
            if known is not None and known.body != wanted.body:
                raise BadRequest(
                    "this contract was already used with another input",
                    code="IDEMPOTENCY_CONFLICT",
                    advice="Send the first input again, or draft another contract.",
                )
            return PurchaseRun(self, known or wanted, again).run()


def ref_of(contract_id: str) -> str:
    """The purchase's name on disk: the contract's id is a credential and must not name a file."""
    return hashlib.sha256(f"contract:{contract_id}".encode()).hexdigest()[:16]
