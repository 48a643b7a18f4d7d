"""Every error a caller can receive, and what it contains.

    Problem                       a request could not be served; has a code, a status and advice
    ├── InvalidInput              422  the input breaks the agent's rules (authors raise it)
    ├── BadRequest                400  the request itself is malformed
    ├── Unauthorized              401
    ├── Forbidden                 403
    ├── NotFound                  404  unknown or someone else's: both look the same
    ├── Conflict                  409  conflicts with the record
    ├── TooLarge                  413
    ├── UnsupportedMedia          415
    └── Unavailable               503  try again

    Transient                     an author's function hit a temporary fault: the engine retries
    Failed                        an author's function gives up, with its own code
    ToolDenied, ToolFailed        raised by `job.tool` inside an author's function
    WaitExpired                   raised by `job.wait` there

`details` may be shown to anyone: never put an exception's text into it. `charged` is None when it is
unknown whether money moved.
"""

from __future__ import annotations

from typing import Any


class Problem(Exception):
    """An error the caller can act on. `pending`: the same request may still get another answer."""

    code = "INTERNAL_ERROR"
    status = 500
    message = "internal error"
    advice = "Try again later; if it persists, tell the operator the request id."
    pending = False
    charged: bool | None = False

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        field: str | None = None,
        expected: Any = None,
        received: Any = None,
        advice: str | None = None,
        status: int | None = None,
        retry_after: int | None = None,
        charge_known: bool = True,
        **details: Any,
    ) -> None:
        super().__init__(message or self.message)
        self.message = message or self.message
        self.code = code or self.code
        self.advice = advice or self.advice
        self.status = status or self.status
        self.retry_after = retry_after
        self.charged: bool | None = False if charge_known else None
        self.details: dict[str, Any] = {}
        if field is not None:
            self.details["field"] = field
        if expected is not None:
            self.details["expected"] = expected
        if received is not None:
            self.details["received"] = received
        self.details.update(details)


class InvalidInput(Problem):
    code, status = "INVALID_INPUT", 422
    message = "the input is not valid for this capability"
    advice = "Correct the named field and send the request again. You were not charged."


class BadRequest(Problem):
    code, status = "INVALID_REQUEST", 400
    message = "the request is malformed"
    advice = "Correct the request. You were not charged."


class Unauthorized(Problem):
    code, status = "UNAUTHORIZED", 401
    message = "unauthorized"
    advice = "Send valid credentials."


class Forbidden(Problem):
    code, status = "FORBIDDEN", 403
    message = "forbidden"
    advice = "Use other credentials, or wait for another state."


class NotFound(Problem):
    code, status = "NOT_FOUND", 404
    message = "not found"
    advice = "Check the id."


class Conflict(Problem):
    code, status = "CONFLICT", 409
    message = "the current state does not allow this"
    advice = "Read the current state first."


class TooLarge(Problem):
    code, status = "TOO_LARGE", 413
    message = "the request is too large"
    advice = "Send less."


class UnsupportedMedia(Problem):
    code, status = "UNSUPPORTED_MEDIA_TYPE", 415
    message = "the body must be JSON"
    advice = "Send application/json."


class Unavailable(Problem):
    code, status = "SERVICE_UNAVAILABLE", 503
    message = "not possible right now"
    advice = "Try again after the time in Retry-After. You were not charged."

    def __init__(self, message: str | None = None, *, retry_after: int = 5, **details: Any) -> None:
        super().__init__(message, retry_after=retry_after, **details)


class Transient(Exception):
    """A temporary fault inside an agent or a tool that is worth a retry."""

    def __init__(self, message: str = "a temporary failure", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class Failed(Exception):
    """An agent gives up. `code` and `message` are shown to the seeker."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details = details


class WaitExpired(Exception):
    """A wait timed out without an answer. Uncaught, the execution fails with WAIT_EXPIRED."""

    def __init__(self, signal_type: str) -> None:
        super().__init__(signal_type)
        self.signal_type = signal_type


class ToolDenied(Exception):
    """The tool policy denied a call. Uncaught, the execution fails with TOOL_DENIED."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason


class ToolFailed(Exception):
    """A tool used up its attempts. Uncaught, the execution fails with TOOL_FAILED."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason


class ToolMissing(ToolFailed):
    """No tool of this name is registered where the agent runs."""
