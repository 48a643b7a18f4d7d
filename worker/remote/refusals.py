"""Maps script refusals to errors.

Messages to remote agents and runners use the wording that their client library parses.
"""

from __future__ import annotations

from typing import Any, NoReturn

from worker.core.errors import BadRequest, Conflict, Forbidden, NotFound, Unauthorized
from worker.engine.refusals import ExecutionEnded, already_ended
from worker.store.scripts import Reply


class SessionNotFound(Unauthorized):
    kind = "session not found"


class SessionExpired(Unauthorized):
    kind = "session expired"


class ExecutionBlocked(Conflict):
    kind = "execution is blocked"


class StepResolved(Conflict):
    kind = "step already resolved"


def step_unknown(step: str) -> NotFound:
    return NotFound(f"step {step[:64]}")


def refuse(why: Reply[Any], id: str, session: str, *, foreign: bool = False, step: str = "") -> NoReturn:
    """Raises the error for a script's refusal. `foreign`: the session belongs to another execution."""
    match why.answer:
        case "unknown" if foreign:
            raise BadRequest(f"session {session} does not belong to execution {id}")
        case "unknown":
            raise SessionNotFound(f"session {session}")
        case "expired":
            raise SessionExpired(f"session {session}")
        case "foreign":
            raise Forbidden(f"execution {id} belongs to another agent")
        case "terminal":
            raise already_ended(id, why.text())
        case "sealed":
            raise ExecutionEnded(f"execution {id} has finished its work; its payment is still open")
        case "blocked":
            reason = "pending approval" if why.text() == "approval" else "until a signal arrives"
            raise ExecutionBlocked(f"execution {id} is blocked {reason}")
        case "steps":
            raise Conflict("cannot complete with active steps in progress")
        case "mismatch":
            raise Conflict("the idempotency key was used for another intent")
        case "full":
            raise Conflict(f"the log of execution {id} is full")
        case "resolved":
            raise StepResolved(f"step {step}")
    raise AssertionError(why.answer)
