"""What a remote agent or runner is told when it may not do something, in the words that its library reads."""

from __future__ import annotations

from typing import NoReturn

from worker.errors import BadRequest, Conflict, Forbidden, NotFound, Unauthorized


class SessionNotFound(Unauthorized):
    kind = "session not found"


class SessionExpired(Unauthorized):
    kind = "session expired"


class Ended(Conflict):
    kind = "execution is in terminal state"


class Blocked(Conflict):
    kind = "execution is blocked"


class StepResolved(Conflict):
    kind = "step already resolved"


def ended(id: str, state: str) -> Ended:
    return Ended(f"execution {id} is already {state}")


def step_unknown(step: str) -> NotFound:
    return NotFound(f"step {step[:64]}")


def refuse(why: list[bytes], id: str, session: str, *, foreign: bool = False, step: str = "") -> NoReturn:
    """Raises what a script's refusal means. `foreign`: the session is that of another execution."""
    match why[0]:
        case b"unknown" if foreign:
            raise BadRequest(f"session {session} does not belong to execution {id}")
        case b"unknown":
            raise SessionNotFound(f"session {session}")
        case b"expired":
            raise SessionExpired(f"session {session}")
        case b"foreign":
            raise Forbidden(f"execution {id} is another agent's")
        case b"terminal":
            raise ended(id, why[1].decode())
        case b"sealed":
            raise Ended(f"the work of execution {id} is done; only its payment is open")
        case b"blocked":
            what = "pending approval" if why[1] == b"approval" else "until a signal arrives"
            raise Blocked(f"execution {id} is blocked {what}")
        case b"steps":
            raise Conflict("cannot complete with active steps in progress")
        case b"mismatch":
            raise Conflict("the idempotency key was used for another intent")
        case b"full":
            raise Conflict(f"the log of execution {id} is full")
        case b"resolved":
            raise StepResolved(f"step {step}")
    raise AssertionError(why[0])
