"""Hires for visitors of the pages: real purchases, paid from a demonstration wallet with test dollars.

The wallet exists only where money is not real.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from worker.contracts.signatures import address_of, key_bytes, sign_digest
from worker.core.amounts import to_atomic
from worker.core.errors import NotFound, Problem
from worker.hiring.buying import Buying
from worker.hiring.sign_ins import CallCounter
from worker.hiring.task import PaymentRequired, Task, TaskInput
from worker.x402.headers import PAYMENT_SIGNATURE, encode
from worker.x402.offer import Offer
from worker.x402.typed_data import Authorization, transfer_digest

_DAY_US = 24 * 3600 * 1_000_000
# An offer's window follows the queue and may change between quote and purchase.
_TRIES = 3


class TrialsUsedUp(Problem):
    """429: today's test dollars for this capability are spent."""

    code, status = "TRIALS_USED_UP", 429
    message = "today's test dollars for this capability are spent"
    advice = "Come back tomorrow, or hire it with your own wallet. You were not charged."


@dataclass(frozen=True)
class TrialHires:
    """`key`: of the demonstration wallet, None if there is none. `daily`: atomic units for each capability
    within 24 hours; 0 means no limit."""

    buying: Buying
    key: str | None
    counter: CallCounter
    now: Callable[[], int]
    daily: int

    @property
    def offered(self) -> bool:
        return self.key is not None

    def check_offered(self) -> None:
        if not self.offered:
            raise NotFound("this worker lends no test dollars", advice="Hire it with your own wallet.")

    def hire(self, name: str, body: TaskInput, network: str) -> Task:
        """Checks the input, counts the price, signs the payment and buys. `network`: where the visitor is."""
        required = self._quoted(name, body, network)
        self._count(name)
        for _ in range(_TRIES):
            try:
                return self.buying.buy(name, body, self._payment(required.offer), None, network)
            except PaymentRequired as changed:  # refused before it was claimed, because the offer has moved
                required = changed
        raise required

    def follow(self, task: Task, seconds: float) -> None:
        """Settles the payment as soon as the work is done, as for a buyer who waits."""
        tasks = self.buying.hiring.tasks
        tasks.spawn(lambda: tasks.wait(task, time.monotonic() + seconds))

    def _quoted(self, name: str, body: TaskInput, network: str) -> PaymentRequired:
        problem = self.buying.quote(name, body, None, network)
        if not isinstance(problem, PaymentRequired):
            raise problem
        return problem

    def _count(self, name: str) -> None:
        if not self.daily:
            return
        capability = self.buying.hiring.catalog.get(name)
        price = to_atomic(capability.price) if capability else self.daily + 1
        if not self.counter.take(f"trial:{name}", self.daily // price, _DAY_US):
            raise TrialsUsedUp(retry_after=3600)

    def _payment(self, offer: Offer) -> Mapping[str, str]:
        key = key_bytes(self.key or "")
        authorization = Authorization(
            payer=address_of(key),
            to=offer.pay_to,
            value=offer.amount,
            valid_after=0,
            valid_before=self.now() // 1_000_000 + offer.max_timeout_s,
            nonce="0x" + secrets.token_hex(32),
        )
        signature = sign_digest(transfer_digest(offer.network.domain, authorization), key)
        document = {
            "x402Version": 2,
            "resource": offer.resource(),
            "accepted": offer.requirements(),
            "payload": {"signature": "0x" + signature.hex(), "authorization": authorization.to_wire()},
        }
        return {PAYMENT_SIGNATURE: encode(document)}
