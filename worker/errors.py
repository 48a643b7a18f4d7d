"""Every error a caller can meet, and what it tells them.

    Problem                       a request could not be served; has a code, a status, an advice
    ├── InvalidInput              422  the input breaks the agent's rules (authors raise it)
    ├── BadRequest                400  the request itself is malformed
    ├── Unauthorized              401
    ├── Forbidden                 403
    ├── NotFound                  404  unknown, or somebody else's: both look the same
    ├── Conflict                  409  the record says otherwise
    ├── TooLarge                  413
    ├── UnsupportedMedia          415
    └── Unavailable               503  try again, nothing was charged

    Transient                     an author's function met a passing fault: the engine tries again
    Failed                        an author's function gives up, with a code of its own
    ToolDenied, ToolFailed        what `job.tool` raises inside an author's function
    WaitExpired                   what `job.wait` raises there

`details` may be shown to anyone: never put an exception's text into it.
"""

from __future__ import annotations

from typing import Any


class Problem(Exception):
    """A refusal that a caller can act on."""

    code = "INTERNAL_ERROR"
    status = 500
    message = "internal error"
    advice = "Try again later; if it persists, tell the operator the request id."
    charged = False

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
        **details: Any,
    ) -> None:
        super().__init__(message or self.message)
        self.message = message or self.message
        self.code = code or self.code
        self.advice = advice or self.advice
        self.status = status or self.status
        self.retry_after = retry_after
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
    message = "the input is not what this capability takes"
    advice = "Correct the named field and send the request again; nothing was charged."


class BadRequest(Problem):
    code, status = "INVALID_REQUEST", 400
    message = "the request is malformed"
    advice = "Correct the request; nothing was charged."


class Unauthorized(Problem):
    code, status = "UNAUTHORIZED", 401
    message = "unauthorized"
    advice = "Send valid credentials."


class Forbidden(Problem):
    code, status = "FORBIDDEN", 403
    message = "forbidden"
    advice = "This needs other credentials or another state."


class NotFound(Problem):
    code, status = "NOT_FOUND", 404
    message = "not found"
    advice = "Check the id."


class Conflict(Problem):
    code, status = "CONFLICT", 409
    message = "the present state does not allow this"
    advice = "Read the present state first."


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
    advice = "Try again after the time in Retry-After; nothing was charged."

    def __init__(self, message: str | None = None, *, retry_after: int = 5, **details: Any) -> None:
        super().__init__(message, retry_after=retry_after, **details)


class Transient(Exception):
    """A passing fault inside an agent or a tool: worth another try."""

    def __init__(self, message: str = "a passing fault", *, retry_after: float | None = None) -> None:
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
    """Nobody answered a wait in time. Uncaught, the execution fails with WAIT_EXPIRED."""

    def __init__(self, signal_type: str) -> None:
        super().__init__(signal_type)
        self.signal_type = signal_type


class ToolDenied(Exception):
    """The tool policy refused a call. Uncaught, the execution fails with TOOL_DENIED."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason


class ToolFailed(Exception):
    """A tool used up its tries. Uncaught, the execution fails with TOOL_FAILED."""

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"{tool}: {reason}")
        self.tool = tool
        self.reason = reason
