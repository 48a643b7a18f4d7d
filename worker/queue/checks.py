"""The queue of checks: untrusted schemas and inputs that are checked before money.

A check may take a second of CPU time and earns nothing, so checks run in their own process and never delay
paid work. Each requester has a budget of CPU time, and wallets that have paid are checked first. A check
leaves only its answer in the store, for some seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from worker.core.errors import Problem, Unavailable
from worker.core.ids import new_id
from worker.core.json import encode
from worker.engine.transitions import PRESENT_US
from worker.engine.watch import Watcher
from worker.queue.check_answers import CHECK_ASK, CheckAskAnswer
from worker.store.client import as_bytes
from worker.store.data_model import Keys
from worker.store.scripts import Scripts

LUA = Path(__file__).parent / "lua"
LANE = "check"
MICROSECONDS = 1_000_000
# Maximum CPU time of one check; this much is reserved before it runs.
CPU_SECONDS = 1
WINDOW_S = 60
# CPU seconds per minute: of an address or new wallet, of one that has paid, of all that never paid together.
CALLER_CPU, PAID_CPU, UNPROVEN_CPU = 5, 20, 20
MOST_WAITING = 16
# How long a request waits for its answer; older checks are dropped unprocessed.
PATIENCE = 5.0
_ANSWER_MS = 10_000
_LOOK_AGAIN = 1.0


class ChecksSpent(Problem):
    """The requester's budget of CPU time for checks is used up."""

    code, status = "RATE_LIMITED", 429
    message = "checking schemas and inputs has taken too much of the worker's time"
    advice = "Wait as long as Retry-After says, or use simpler schemas. You were not charged."


@dataclass(frozen=True, slots=True)
class CheckRequester:
    """Who is charged for a check: an address and a wallet, either may be ''. `paid`: the wallet has paid.

    `signed`: the wallet has signed the checked data.
    """

    network: str = ""
    wallet: str = ""
    paid: bool = False
    signed: bool = False

    def budgets(self) -> dict[str, int]:
        """CPU microseconds per window by account.

        Anybody may name a paying wallet in a draft, so such a wallet is charged only for data that it has
        signed; strangers cannot use up its budget.
        """
        limits = {f"network:{self.network}": CALLER_CPU} if self.network else {}
        if not self.paid:
            limits["unproven"] = UNPROVEN_CPU
            if self.wallet:
                limits[f"wallet:{self.wallet.lower()}"] = CALLER_CPU
        elif self.signed:
            limits[f"wallet:{self.wallet.lower()}"] = PAID_CPU
        return {name: seconds * MICROSECONDS for name, seconds in limits.items()}


@dataclass(frozen=True, slots=True)
class WaitingCheck:
    """A check as received by the check process."""

    id: str
    kind: str
    input: Any
    accounts: Sequence[str]
    asked_us: int


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """Result of a check: `answer`, or why there is none.

    `problem`: the error raised by the check. `too_long`: it used up its CPU time or crashed.
    """

    answer: Any = None
    problem: dict[str, Any] | None = None
    too_long: bool = False


class CheckQueue:
    """The queue's two sides: requests checks; takes and answers them."""

    def __init__(
        self, client: redis.Redis, keys: Keys, watcher: Watcher, *, test_clock: bool = False
    ) -> None:
        self._client = client
        self._keys = keys
        self._watcher = watcher
        self._scripts = Scripts(client, keys, LUA, test_clock=test_clock)

    def ask(self, kind: str, input: Any, requester: CheckRequester) -> CheckOutcome:
        """Requests a check and waits for the result; raises Unavailable if none arrives in time."""
        id, until = new_id(), time.monotonic() + PATIENCE
        answer_key = self._keys.check_answer(id)
        with self._watcher.watch(answer_key) as watch:
            self._queue(id, kind, input, requester)
            while True:
                found = self._client.get(answer_key)
                if found is not None:
                    self._client.delete(answer_key)
                    return CheckOutcome(**json.loads(as_bytes(found)))
                left = until - time.monotonic()
                if left <= 0:
                    raise busy("the check did not end in time")
                watch.wait(min(left, _LOOK_AGAIN))

    def _queue(self, id: str, kind: str, input: Any, requester: CheckRequester) -> None:
        budgets = requester.budgets()
        check = {"id": id, "kind": kind, "accounts": list(budgets), "input": input}
        reply = self._scripts.run(
            CHECK_ASK,
            takers=self._keys.takers(LANE),
            callers=list(budgets),
            check=encode(check),
            silence=PRESENT_US,
            most=MOST_WAITING,
            first="1" if requester.paid else "",
            reserve=CPU_SECONDS * MICROSECONDS,
            window=WINDOW_S * 1000,
            budgets=list(budgets.values()),
        )
        if reply.answer is CheckAskAnswer.SPENT:
            raise ChecksSpent(retry_after=-(-int(reply.text()) // 1000))
        if reply.answer is CheckAskAnswer.ABSENT:
            raise busy("no process makes checks at the moment")
        if reply.answer is CheckAskAnswer.FULL:
            raise busy("too many checks wait")

    def take(self, wait: float) -> WaitingCheck | None:
        """The next check, if one arrives within `wait` seconds."""
        found: Any = self._client.blpop([self._keys.checks], timeout=wait)
        if found is None:
            return None
        asked_us, _, text = as_bytes(found[1]).partition(b" ")
        check = json.loads(text)
        return WaitingCheck(check["id"], check["kind"], check["input"], check["accounts"], int(asked_us))

    def answer(self, check: WaitingCheck, result: CheckOutcome, cpu_us: int) -> None:
        stored = {"answer": result.answer, "problem": result.problem, "too_long": result.too_long}
        self._scripts.value(
            "check_answer",
            id=check.id,
            callers=list(check.accounts),
            answer=encode(stored),
            life=_ANSWER_MS,
            unused=max(0, CPU_SECONDS * MICROSECONDS - cpu_us),
        )


def busy(message: str) -> Unavailable:
    return Unavailable(message, code="WORKER_BUSY", retry_after=2)
