"""Error answers for requests that an execution can no longer accept."""

from __future__ import annotations

from worker.core.errors import Conflict, NotFound, Problem


class ExecutionEnded(Conflict):
    kind = "execution is in terminal state"


class Forfeits(Conflict):
    """A cancel after paid work began. Nothing was done, because the seeker would lose its money."""

    code = "CANCEL_FORFEITS_PAYMENT"
    message = "the work was paid for and has begun: cancelling ends it without a refund"
    advice = (
        "Wait for the result, or DELETE again with ?forfeit=true: "
        "the work then ends, nothing is delivered and the payment is not refunded."
    )

    def __init__(self, amount: int) -> None:
        super().__init__(field="forfeit", expected="true", received="nothing")
        self.charged = True
        self.amount = amount


def already_ended(id: str, state: str) -> ExecutionEnded:
    return ExecutionEnded(f"execution {id} is already {state}")


def not_cancelled(id: str, answer: str, detail: str) -> Problem:
    """Explains why a cancel changed nothing, from the answer of its script."""
    match answer:
        case "terminal":
            return already_ended(id, detail)
        case "sealed":
            return Conflict(f"execution {id} has finished its work; its payment is still open")
        case "forfeits":
            return Forfeits(int(detail))
    return NotFound(f"execution {id}")
