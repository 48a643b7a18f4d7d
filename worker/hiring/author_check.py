"""Runs an author's own input check and prices an input before a 402 is issued.

A schema cannot express every rule. The web process runs no author code, so the check process runs the check
with limited CPU time. Inputs that passed are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from worker.capabilities.declare import REGISTRY, Capability, agent
from worker.core.amounts import to_atomic
from worker.core.errors import InvalidInput
from worker.hiring.task import TaskInput
from worker.queue.checks import CheckOutcome, CheckRequester, busy

NAME = "_input-check"
MOST_PASSED = 1_000


@agent(NAME, inline=True, time_limit=2.0, attempts=1)
def check(job: Any) -> dict[str, Any]:
    """Run a capability's own check of an input, and get the input's price."""
    capability = REGISTRY.capabilities.get(job.input["capability"])
    if capability is None:
        return {}
    if capability.check is not None:
        capability.check(job.input["input"])
    if capability.price_of is None:
        return {}
    price = capability.price_of(job.input["input"])
    if not 0 < to_atomic(price) <= to_atomic(capability.price):
        raise ValueError(f"the price of {capability.name} is not above 0 and at most its max_price")
    return {"price": price}


class Checks(Protocol):
    def ask(self, kind: str, input: Any, requester: CheckRequester) -> CheckOutcome: ...


@dataclass
class AuthorCheck:
    """Checks and prices inputs; an input that passed is not checked again when its payment arrives."""

    checks: Checks
    has_paid: Callable[[str], bool]
    _passed: OrderedDict[tuple[str, str, str], str] = field(default_factory=OrderedDict, init=False)

    def __call__(self, capability: Capability, body: TaskInput, wallet: str, network: str = "") -> str:
        """The price of the input; raises InvalidInput if the author's code does.

        CPU time is charged to this wallet, and to this address if no contract names the wallet.
        """
        if not (capability.checks_input or capability.prices_input):
            return capability.price
        # The key includes the maximum, because an operator may change it.
        key = (capability.name, f"{capability.version} {capability.price}", body.digest)
        if key not in self._passed:
            requester = CheckRequester(network, wallet, self.has_paid(wallet), signed=not network)
            self._passed[key] = self._ask(capability, body, requester)
            while len(self._passed) > MOST_PASSED:
                self._passed.popitem(last=False)
        return self._passed[key]

    def _ask(self, capability: Capability, body: TaskInput, requester: CheckRequester) -> str:
        result = self.checks.ask(NAME, {"capability": capability.name, "input": body.value}, requester)
        if result.problem is not None and result.problem["code"] == InvalidInput.code:
            raise InvalidInput(result.problem["error"], **result.problem["details"])
        if result.answer is None:
            raise busy("the input could not be checked")
        if not capability.prices_input:
            return capability.price
        # A process of an older release returns no price.
        price = (result.answer.get("value") or {}).get("price")
        if price is None:
            raise busy("the input could not be priced")
        return str(price)
