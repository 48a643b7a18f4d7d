"""A purse: a wallet with spending rules, for programs and models that buy autonomously.

    purse = Purse("~/.worker/key", each="1.00", day="5.00", hosts=["w.example"], ask_above="0.50", ask=ask)
    answer = purse.buy("https://w.example/buy/word-count", {"text": "to be"}, key="essay-7")

A key identifies a purchase: repeating a call with the same key never pays twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.core.amounts import to_atomic, to_text
from worker.seeker.client import Seeker, SpendLimits
from worker.seeker.draft import Order
from worker.seeker.http import HttpTransport, Transport, host_of
from worker.seeker.plain_purchase import PlainResult, buy, fetch
from worker.seeker.purchases import PurchaseStore
from worker.seeker.result import Result
from worker.seeker.spending import Question, Spending, SpendingRules
from worker.seeker.wallet import Wallet
from worker.x402.networks import resolve_network

# For the description of a tool that lets a model spend.
TOOL_TEXT = (
    "Buys one result over HTTP and pays for it in USDC (x402). Give every purchase a key of its own, and "
    "the same key for every retry of the same purchase: with it the purchase is never paid for twice. "
    "A new key is a new purchase and costs money again. If the answer is unclear or the call times out, "
    "call again with the same key. Spending limits are enforced; do not split a purchase to get around them."
)


@dataclass(frozen=True, slots=True)
class Budget:
    """Amounts approved in the last 24 hours, and what is left, in USDC."""

    spent: str
    left: str


class Purse:
    """Pays x402 sellers and hires workers, within its rules. Amounts are USDC as text.

    `each` caps one purchase, `day` the last 24 hours, `host_day` the last 24 hours at one host; only `hosts`
    may be paid. Above `ask_above` nothing is signed unless `ask` agrees. `keep` is the directory where
    payments and spending are recorded; purses that share it share one budget.
    """

    def __init__(
        self,
        key: str | Path | Wallet,
        *,
        each: str = "1.00",
        day: str = "5.00",
        host_day: str | None = None,
        hosts: Iterable[str] = (),
        ask_above: str | None = None,
        ask: Callable[[Question], bool] | None = None,
        keep: str | Path = "~/.hire",
        network: str | None = None,
        plain_http: bool = False,
        http: Transport | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        directory = Path(keep).expanduser()
        self._rules = SpendingRules(
            each=to_atomic(each, field="each"),
            day=to_atomic(day, field="day"),
            host_day=None if host_day is None else to_atomic(host_day, field="host_day"),
            hosts=frozenset(host.lower() for host in hosts),
            ask_above=None if ask_above is None else to_atomic(ask_above, field="ask_above"),
        )
        self._spending = Spending(directory / "spending" / "journal.json", self._rules, now, ask)
        self._seeker = Seeker(
            key if isinstance(key, Wallet) else Wallet.from_file(Path(key).expanduser()),
            PurchaseStore(directory),
            SpendLimits(
                most=self._rules.each,
                network=resolve_network(network) if network else None,
                plain_http=plain_http,
            ),
            http=http or HttpTransport(),
            approve=self._spending.approve,
            now=now,
        )

    @property
    def address(self) -> str:
        return self._seeker.wallet.address

    def buy(self, url: str, task_input: Any, *, key: str = "") -> PlainResult:
        """POST the input as JSON, pay what is asked, and wait for the result of long work.

        The same `key` always means the same purchase. Without a key, a call can be repeated safely only until
        it has succeeded: the same call after that is a new purchase.
        """
        self._spending.check_host(host_of(url))
        return buy(self._seeker, url, task_input, key=key)

    def fetch(self, url: str, *, key: str = "") -> PlainResult:
        """GET a resource and pay if asked."""
        self._spending.check_host(host_of(url))
        return fetch(self._seeker, url, key=key)

    def hire(self, url: str, capability: str, task_input: Any) -> Result:
        """Hire a worker under a contract; an unfinished hire of exactly this is resumed."""
        self._spending.check_host(host_of(url))
        unfinished = self._seeker.unfinished(url, capability, task_input)
        if unfinished is not None:
            return self._seeker.resume(unfinished.ref)
        return self._seeker.hire(url, Order(capability), task_input)

    def budget(self) -> Budget:
        spent = sum(each.amount for each in self._spending.today())
        return Budget(to_text(spent), to_text(max(0, self._rules.day - spent)))
