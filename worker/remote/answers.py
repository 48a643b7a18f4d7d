"""Answers of the scripts for remote agents and runners.

Each enum lists the answers in its script's manifest; a test keeps the two in sync.
"""

from __future__ import annotations

from enum import StrEnum

from worker.store.scripts import Script


class AskAnswer(StrEnum):
    BLOCKED = "blocked"
    KNOWN = "known"
    FULL = "full"
    LOST = "lost"


class AssignAnswer(StrEnum):
    ASSIGNED = "assigned"
    LATER = "later"
    NOT_FIRST = "not_first"
    FULL = "full"
    TURN = "turn"
    LOST = "lost"
    GONE = "gone"


class CompleteAnswer(StrEnum):
    NEW = "new"
    AGAIN = "again"
    MISMATCH = "mismatch"
    STEPS = "steps"
    CHECK = "check"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    TERMINAL = "terminal"
    SEALED = "sealed"
    BLOCKED = "blocked"


class ConnectAnswer(StrEnum):
    NEW = "new"
    ADOPTED = "adopted"
    OTHER = "other"


class DenyAnswer(StrEnum):
    NEW = "new"
    AGAIN = "again"
    MISMATCH = "mismatch"
    FULL = "full"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    TERMINAL = "terminal"
    SEALED = "sealed"
    BLOCKED = "blocked"


class DispatchAnswer(StrEnum):
    SENT = "sent"
    GONE = "gone"
    EARLY = "early"
    BEHIND = "behind"
    BUSY = "busy"


class DropAnswer(StrEnum):
    WAITS = "waits"
    FAILED = "failed"
    STAYS = "stays"
    GONE = "gone"


class InvokeAnswer(StrEnum):
    NEW = "new"
    AGAIN = "again"
    DENIED = "denied"
    MISMATCH = "mismatch"
    FULL = "full"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    TERMINAL = "terminal"
    SEALED = "sealed"
    BLOCKED = "blocked"


class JobResultAnswer(StrEnum):
    OK = "ok"
    RETRIED = "retried"
    AGAIN = "again"
    STEP = "step"
    RESOLVED = "resolved"
    MOVED = "moved"
    FOREIGN = "foreign"


class LoseJobAnswer(StrEnum):
    WAITS = "waits"
    FAILED = "failed"
    GONE = "gone"


class PlaceAnswer(StrEnum):
    WAITS = "waits"
    EARLY = "early"
    GONE = "gone"


class SendJobAnswer(StrEnum):
    OK = "ok"
    KNOWN = "known"
    LOST = "lost"


class SessionAnswer(StrEnum):
    OK = "ok"
    AGAIN = "again"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    TERMINAL = "terminal"
    SEALED = "sealed"
    BLOCKED = "blocked"


class SignalAnswer(StrEnum):
    OK = "ok"
    MISMATCH = "mismatch"
    MOVED = "moved"
    FULL = "full"
    TERMINAL = "terminal"
    UNKNOWN = "unknown"


class StartedAnswer(StrEnum):
    OK = "ok"
    STEP = "step"
    FOREIGN = "foreign"


class StepResultAnswer(StrEnum):
    OK = "ok"
    AGAIN = "again"
    STEP = "step"
    RESOLVED = "resolved"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    TERMINAL = "terminal"
    SEALED = "sealed"
    BLOCKED = "blocked"


class WaitAnswer(StrEnum):
    NEW = "new"
    AGAIN = "again"
    MISMATCH = "mismatch"
    FULL = "full"
    UNKNOWN = "unknown"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    TERMINAL = "terminal"
    SEALED = "sealed"
    BLOCKED = "blocked"


class WaitBeginAnswer(StrEnum):
    ANSWERED = "answered"
    EXPIRED = "expired"
    BLOCKED = "blocked"
    MISMATCH = "mismatch"
    FULL = "full"
    LOST = "lost"


ASK = Script("ask", AskAnswer)
ASSIGN = Script("assign", AssignAnswer)
COMPLETE = Script("complete", CompleteAnswer)
CONNECT = Script("connect", ConnectAnswer)
DENY = Script("deny", DenyAnswer)
DISPATCH = Script("dispatch", DispatchAnswer)
DROP = Script("drop", DropAnswer)
INVOKE = Script("invoke", InvokeAnswer)
JOB_RESULT = Script("job_result", JobResultAnswer)
LOSE_JOB = Script("lose_job", LoseJobAnswer)
PLACE = Script("place", PlaceAnswer)
SEND_JOB = Script("send_job", SendJobAnswer)
SESSION = Script("session", SessionAnswer)
SIGNAL = Script("signal", SignalAnswer)
STARTED = Script("started", StartedAnswer)
STEP_RESULT = Script("step_result", StepResultAnswer)
WAIT = Script("wait", WaitAnswer)
WAIT_BEGIN = Script("wait_begin", WaitBeginAnswer)
