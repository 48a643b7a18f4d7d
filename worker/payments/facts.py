"""What decides about a request before money, read at one moment in one round trip."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worker.contracts.book import Contract
from worker.core.states import Lane
from worker.engine.load import Load, LoadMeter
from worker.payments.budget import Allowance, UnpaidWork
from worker.payments.money_store import MoneyStore
from worker.payments.payment import Bought
from worker.store.scripts import Value

# A load as old as this still tells whether new work is begun.
_RECENT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Facts:
    """`contract` as it is now; None if the store has none, or another one, under this reference.

    `held_us`: how long the contract must not be asked for money. `over`: what forbids its wallet another run,
    and for how long (us) in `number`; if nothing does, that is how many executions are counted before it.
    `bought`: what the request's payment bought, if that is past its retention. `executed`: whether the
    store has an execution under this reference.
    """

    contract: Contract | None
    load: Load
    held_us: int = 0
    over: bytes = b""
    number: int = 0
    bought: Bought | None = None
    executed: bool = False

    def ahead(self) -> int:
        """How many executions are counted before the wallet's next one; raises UnpaidWork if it must wait."""
        if self.over:
            raise UnpaidWork.told(self.over, self.number)
        return self.number


@dataclass
class FactsReader(MoneyStore):
    """Reads them from the store."""

    meter: LoadMeter = field(kw_only=True)
    allowance: Allowance = field(kw_only=True)
    # The load of a capability's lane as it was read last, and when.
    _loads: dict[tuple[str, Lane], tuple[Load, float]] = field(default_factory=dict, init=False)
    # When a claim that assumed it was refused last.
    _refused: dict[tuple[str, Lane], float] = field(default_factory=dict, init=False)

    def assumed(self, capability: str, lane: Lane) -> Facts | None:
        """Facts of which only the load was read, a moment ago; None if that is too long ago.

        They are enough for a claim that is tried at once, because it looks at all the others itself.
        """
        now, (load, read_at) = time.monotonic(), self._loads.get((capability, lane), (None, 0.0))
        ago = now - read_at
        if load is None or ago > _RECENT_SECONDS:
            return None
        if now - self._refused.get((capability, lane), float("-inf")) < _RECENT_SECONDS:
            return None
        at, full = load.at + int(ago * 1e6), self.meter.memory_full()
        return Facts(None, replace(load, at=at, memory_full=full, assumed=True))

    def refused(self, capability: str, lane: Lane) -> None:
        """Nothing is assumed for a moment: what is refused should cost one script, not two and a claim."""
        self._refused[capability, lane] = time.monotonic()

    def read(
        self, contract: Contract, capability: str, lane: Lane, *, signed_us: int, longest_us: int, key: str
    ) -> Facts:
        """`key`: of the request's payment, or ''. `signed_us`: see `Contract.signed_us`."""
        stored, facts = self._read(
            capability,
            lane,
            contract=contract.ref,
            key=key,
            signed=signed_us,
            registered=contract.registered,
            longest=longest_us,
            payer=contract.terms.seeker_wallet.lower(),
            price=contract.terms.price,
        )
        return replace(facts, contract=_as_stored(contract, stored))

    def of_purchase(
        self,
        capability: str,
        lane: Lane,
        *,
        ref: str,
        price: int,
        payer: str,
        signed_us: int,
        longest_us: int,
        key: str,
    ) -> Facts:
        """The same for a purchase whose terms are not made yet; `payer` is '' if nothing proves it."""
        _, facts = self._read(
            capability,
            lane,
            contract=ref,
            key=key,
            signed=signed_us,
            registered=0,
            longest=longest_us,
            payer=payer,
            price=price,
        )
        return facts

    def _read(self, capability: str, lane: Lane, **asked: Value) -> tuple[Sequence[Any], Facts]:
        stored, binding, load, held, over, number = self._scripts.value(
            "facts", **self.meter.arguments(capability, lane), **asked, allowance=str(self.allowance)
        )
        bought = Bought.read(binding.decode().split())
        load_now = self.meter.load(lane, load)
        self._loads[capability, lane] = load_now, time.monotonic()
        return stored, Facts(None, load_now, int(held), over, int(number), bought, executed=bool(stored[1]))


def _as_stored(contract: Contract, stored: Sequence[Any]) -> Contract | None:
    hash, execution, found, registered, drafted = (each.decode() for each in stored)
    same = contract.hash, contract.registered, contract.drafted
    if (hash, int(registered or 0), int(drafted or 0)) != same:
        return None
    now = execution or None, bool(found)
    if now == (contract.execution, contract.found):
        return contract
    return replace(contract, execution=now[0], found=now[1])
