"""A seeker: hires a worker, or pays for any x402 resource, without ever paying twice for one thing."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from worker.contracts.amounts import to_atomic
from worker.contracts.canonical import canonical
from worker.contracts.fields import parse_time
from worker.errors import BadRequest
from worker.payments.networks import Network, find_network
from worker.seeker.checks import (
    Agreed,
    cap_reached,
    check_contract_signatures,
    check_countersigned,
)
from worker.seeker.deliveries import Saved, collect
from worker.seeker.draft import Listed, Order, draft, read_listing
from worker.seeker.drawer import Drawer, Ending, Purchase
from worker.seeker.errand import Errand
from worker.seeker.http import Http, Transport, checked_url, host_of, origin_of
from worker.seeker.problems import OfferRefused, plain
from worker.seeker.remote import Remote
from worker.seeker.result import Result
from worker.seeker.wallet import Wallet

# Says what happens, for whoever watches: a word and facts.
Tell = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a seeker lets happen. Amounts are atomic units, for one purchase."""

    most: int = 1_000_000
    longest_window_s: int = 3_600
    patience_s: float = 600.0
    network: Network | None = None
    plain_http: bool = False


@dataclass
class Seeker:
    """One wallet, one drawer, and the manners of a careful buyer."""

    wallet: Wallet
    drawer: Drawer
    limits: Limits = Limits()
    http: Transport = field(default_factory=Http)
    tell: Tell = lambda word, facts: None
    live: bool = False
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def listing(self, url: str, capability: str) -> Listed:
        """What the worker at this address says of a capability; its own address only if it is the same."""
        base = checked_url(url, plain_http=self.limits.plain_http)
        listed = read_listing(Remote(self.http, base).manifest(), capability)
        same = origin_of(listed.url) == origin_of(base)
        listed = replace(listed, url=listed.url.rstrip("/") if same else base)
        self.tell(
            "offered", {"capability": capability, "price": listed.price, "network": listed.network.name}
        )
        return listed

    def contract(self, listed: Listed, order: Order) -> dict[str, Any]:
        """A contract signed by both and known to the worker. Nothing is owed yet."""
        price = to_atomic(order.price or listed.price, field="price")
        if price > self.limits.most:
            raise cap_reached(price, self.limits.most)
        remote = Remote(self.http, listed.url)
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
        """The whole way: manifest, contract, payment, work. One call, one purchase."""
        listed = self.listing(url, order.capability)
        return self.execute(listed.url, self.contract(listed, order), task_input)

    def execute(self, url: str, contract: Mapping[str, Any], task_input: Any) -> Result:
        """Buys what a contract promises; a purchase of it that is under way is gone on with."""
        check_contract_signatures(contract)
        base = checked_url(url, plain_http=self.limits.plain_http)
        made = Purchase(
            ref=ref_of(contract["contract_id"]),
            url=base,
            method="POST",
            body=canonical(task_input).decode(),
            contract=dict(contract),
        )
        return self._run(made, again=False)

    def resume(self, ref: str) -> Result:
        """Goes on with a purchase: the payment that is out is sent again, never another beside it."""
        return self._run(self._kept(ref), again=True)

    def unfinished(self, url: str, capability: str, task_input: Any) -> Purchase | None:
        """An open purchase of just this, from this wallet, if there is one."""
        body = canonical(task_input).decode()
        for each in self.drawer.unfinished():
            if each.body == body and self._ours(each, url, capability):
                return each
        return None

    def correctable(self, url: str, capability: str) -> Purchase | None:
        """An open purchase whose input was refused, and whose payment another input may still use."""
        for each in self.drawer.unfinished():
            if each.wants_input and self._ours(each, url, capability) and self._allowed(each):
                return each
        return None

    def correct(self, ref: str, task_input: Any) -> Result:
        """Goes on with a purchase whose input was refused: same contract, same payment, this input."""
        return self._run(replace(self._kept(ref), body=canonical(task_input).decode()), again=True)

    def collect(self, result: Result, directory: Path) -> list[Saved]:
        """Fetches and checks every deliverable. Only when all is proven the purchase is over."""
        host = host_of(result.purchase.url)
        saved = collect(result.deliverables, directory, http=self.http, worker_host=host)
        if result.doubt is None:
            self.close(result.purchase)
        return saved

    def close(self, purchase: Purchase) -> None:
        """Nothing more is wanted of it: the same order is a new purchase from now on."""
        self.drawer.save(replace(purchase, ending=Ending.DONE))

    def agreed(self, contract: Mapping[str, Any], base: str, room: int) -> Agreed:
        """What may be signed under a contract. Its word for the network may be our own choice's."""
        price = contract["terms"]["price"]
        network = self.limits.network or find_network(price["network"])
        if network is None:
            raise OfferRefused(
                "the contract is paid on a network that is not known here",
                field="terms.price.network",
                received=plain(price["network"], 60),
            )
        return Agreed(
            host=host_of(base),
            most=room,
            longest_s=self.limits.longest_window_s,
            network=network,
            pay_to=contract["parties"]["worker"]["wallet"],
            amount=to_atomic(price["amount"], field="terms.price.amount"),
        )

    def _kept(self, ref: str) -> Purchase:
        found = self.drawer.find(ref)
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
        """Whether the limits of today would let it go on, and its contract is not over."""
        assert purchase.contract is not None
        network = self.limits.network
        on_network = network is None or all(
            each.signed.network == network.caip2 for each in purchase.payments
        )
        over = parse_time(purchase.contract["terms"]["deadline"], "terms.deadline") <= self.now() * 1e6
        return on_network and not over and purchase.exposed(int(self.now())) <= self.limits.most

    def _run(self, made: Purchase, *, again: bool) -> Result:
        with self.drawer.hold(made.ref):
            known = self.drawer.find(made.ref)
            if known is not None and known.wants_input:
                # Written before it is sent: what is sent again later must be what went out.
                known = replace(known, body=made.body, wants_input=False)
                self.drawer.save(known)
            if known is not None and known.body != made.body:
                raise BadRequest(
                    "this contract was already used with another input",
                    code="IDEMPOTENCY_CONFLICT",
                    advice="Send the first input again, or draft another contract.",
                )
            return Errand(self, known or made, again).run()


def ref_of(contract_id: str) -> str:
    """What a purchase is called: the contract's id is a credential and names no file."""
    return hashlib.sha256(f"contract:{contract_id}".encode()).hexdigest()[:16]
