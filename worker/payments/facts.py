"""What decides about a request before money, read at one moment in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from worker.contracts.book import Contract
from worker.core.states import Lane
from worker.engine.load import Load, LoadMeter
from worker.payments.budget import Allowance, UnpaidWork
from worker.payments.money_store import MoneyStore
from worker.payments.payment import Bought


@dataclass(frozen=True, slots=True)
class Facts:
    """`contract` as it is now; None if the store has none, or another one, under this reference.

    `held_us`: how long the contract must not be asked for money. `over`: what forbids its wallet another run,
    and for how long (us) in `number`; if nothing does, that is how many executions are counted before it.
    `bought`: what the request's payment bought, if that is past its retention.
    """

    contract: Contract | None
    load: Load
    held_us: int = 0
    over: bytes = b""
    number: int = 0
    bought: Bought | None = None

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

    def read(
        self, contract: Contract, capability: str, lane: Lane, *, signed_us: int, longest_us: int, key: str
    ) -> Facts:
        """`key`: of the request's payment, or ''. `signed_us`: see `Contract.signed_us`."""
        known, binding, load, held, over, number = self._scripts.value(
            "facts",
            **self.meter.arguments(capability, lane),
            contract=contract.ref,
            key=key,
            signed=signed_us,
            registered=contract.registered,
            longest=longest_us,
            payer=contract.terms.seeker_wallet.lower(),
            price=contract.terms.price,
            allowance=str(self.allowance),
        )
        return Facts(
            _as_stored(contract, known),
            self.meter.load(lane, load),
            int(held),
            over,
            int(number),
            Bought.read(binding.decode().split()),
        )


def _as_stored(contract: Contract, stored: Sequence[Any]) -> Contract | None:
    hash, execution, found, registered, drafted = (each.decode() for each in stored)
    if hash != contract.hash or int(drafted or 0) != contract.drafted:
        return None
    now = execution or None, bool(found), int(registered or 0)
    if now == (contract.execution, contract.found, contract.registered):
        return contract
    return replace(contract, execution=now[0], found=now[1], registered=now[2])
