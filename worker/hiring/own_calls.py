"""A waiting request's calls to the facilitator: they outlive it, and tell it what they learnt."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.core.greenlets import let_greenlets_run
from worker.payments.answers import VerifiedAnswer
from worker.payments.ledger_reader import Reading
from worker.payments.settlement_lease import ClaimedPayment


@dataclass
class OwnCalls:
    """One request's verification and settlement. `tell` wakes the request.

    `payment`: the one that this request has claimed. `recorded_at`: when the verification's outcome was about
    to be recorded (monotonic); before that nothing is told that the request must not miss. `began_after`: the
    same if that made the work begin.
    """

    spawn: Callable[[Callable[[], object]], None]
    payment: ClaimedPayment | None = None
    recorded_at: float = float("inf")
    began_after: float = field(default=float("-inf"), init=False)
    tell: Callable[[], None] = field(default_factory=lambda: _nobody, init=False)
    completed: Reading | None = field(default=None, init=False)
    settling: bool = field(default=False, init=False)
    settled_once: bool = field(default=False, init=False)
    asked_again: bool = field(default=False, init=False)
    # Whether the lease that came with the seal was used or given back: nobody can tell afterwards which.
    lease_used: bool = field(default=False, init=False)
    # Whether the record may show what nobody tells.
    look: bool = field(default=False, init=False)

    def about_to_record(self) -> None:
        self.recorded_at = time.monotonic()

    def begun_with_claim(self, after: float) -> None:
        """The claim, which was made after that moment (monotonic), made the work begin."""
        self.recorded_at = self.began_after = after

    def verify(self, call: Callable[[], str]) -> None:
        """Starts the verification."""

        def run() -> None:
            status = ""
            try:
                status = call()
            finally:
                if status == VerifiedAnswer.WORKING:
                    self.began_after = self.recorded_at
                else:
                    self.look = True
                    self.tell()

        self.spawn(run)

    def complete(self, reading: Reading) -> None:
        """Lets the request answer before its settlement is logged."""
        self.completed = reading
        self.tell()
        let_greenlets_run()

    def settle(self, call: Callable[[], Reading | None]) -> None:
        """Starts the settlement of work that is done, unless it is under way.

        If that one ends without a result, because another caller was first, it is tried again.
        """
        if self.settling:
            self.asked_again = True
            return
        self.settling = self.settled_once = True

        def run() -> None:
            try:
                self.completed = call()
            finally:
                self.look, self.settling = self.completed is None, False
                self.settled_once, self.asked_again = not self.asked_again, False
                self.tell()

        self.spawn(run)


def _nobody() -> None:
    """The request waits no longer, or does not wait yet."""
