"""A question to the facilitator that is asked before its payment is claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from worker.core.greenlets import let_greenlets_run
from worker.payments.facilitator_call import OpenCall
from worker.store.outage import note
from worker.x402.facilitator_answers import FacilitatorAnswer, Valid, classify_verify


class EarlyVerification:
    """A question that was sent. Whoever does not want to wait for the answer has it later."""

    def __init__(self, call: OpenCall, spawn: Callable[[Callable[[], object]], None]) -> None:
        self._call = call
        self._spawn = spawn
        self._answered = threading.Event()
        self._answer = FacilitatorAnswer(fault="transport")
        # Those who are about to ask do so now: what comes after the answers then comes together, too.
        let_greenlets_run()

    def agreed(self, within: float) -> bool:
        """Whether the facilitator has said within this time (seconds) that it would settle the payment."""
        try:
            answer = self._call.answer_within(within)
        except Exception as error:  # a bug: the claim has no need of the answer
            note(error, "payment.early")
            self._call.leave()
            answer = self._answer
        if answer is None:
            self._spawn(self._wait)
            return False
        self._answer = answer
        self._answered.set()
        return isinstance(classify_verify(answer), Valid)

    def answer(self) -> FacilitatorAnswer:
        """The answer, as soon as there is one."""
        self._answered.wait()
        return self._answer

    def leave(self) -> None:
        """There will be no claim."""
        self._call.leave()

    def _wait(self) -> None:
        try:
            self._answer = self._call.answer()
        finally:
            self._answered.set()
