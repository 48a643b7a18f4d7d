"""A question to the facilitator that is asked before its payment is claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from worker.core.greenlets import let_greenlets_run
from worker.x402.facilitator_answers import FacilitatorAnswer, Valid, classify_verify


class EarlyVerification:
    """Begins at once; whoever does not want to wait for the answer has it later."""

    def __init__(
        self, ask: Callable[[], FacilitatorAnswer], spawn: Callable[[Callable[[], object]], None]
    ) -> None:
        self._ask = ask
        self._answered = threading.Event()
        self._answer = FacilitatorAnswer(fault="transport")
        spawn(self._run)
        # The question goes out now, and what its caller does next it does meanwhile.
        let_greenlets_run()

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        finally:
            self._answered.set()

    def agreed(self, within: float) -> bool:
        """Whether the facilitator has said within this time (seconds) that it would settle the payment."""
        return self._answered.wait(within) and isinstance(classify_verify(self._answer), Valid)

    def answer(self) -> FacilitatorAnswer:
        """The answer, as soon as there is one."""
        self._answered.wait()
        return self._answer
