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

    `held_us`: how long the contract must not be asked for money. `over`: what forbids its wallet another run.
    `bought`: what the request's payment bought, if that is past its retention.
    """

    contract: Contract | None
    load: Load
    held_us: int = 0
    over: Sequence[bytes] = ()
    bought: Bought | None = None

    def check_budget(self) -> None:
        """Raises UnpaidWork when the wallet must wait before another run at this price."""
        if self.over:
            raise UnpaidWork.told(*self.over)


@dataclass
class FactsReader(MoneyStore):
    """Reads them from the store."""

    meter: LoadMeter = field(kw_only=True)
    allowance: Allowance = field(kw_only=True)

    def read(
        self, contract: Contract, capability: str, lane: Lane, *, signed_us: int, longest_us: int, key: str
    ) -> Facts:
        """`key`: of the request's payment, or ''. `signed_us`: see `Contract.signed_us`."""
        known, binding, load, held, over = self._scripts.value(
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
            Bought.read(binding.decode().split()),
        )


def _as_stored(contract: Contract, stored: Sequence[Any]) -> Contract | None:
    hash, execution, found, registered, drafted = (each.decode() for each in stored)
    if hash != contract.hash or int(drafted or 0) != contract.drafted:
        return None
    return replace(contract, execution=execution or None, found=bool(found), registered=int(registered or 0))
