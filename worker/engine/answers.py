"""Answers of the scripts that act on an execution.

Each enum has the answers listed in its script's manifest; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum

from worker.store.scripts import Script


class AppendAnswer(StrEnum):
    OK = "ok"
    FULL = "full"
    LOST = "lost"


class CancelAnswer(StrEnum):
    CANCELLED = "cancelled"
    TERMINAL = "terminal"
    SEALED = "sealed"
    FORFEITS = "forfeits"
    UNKNOWN = "unknown"


class CreateAnswer(StrEnum):
    CREATED = "created"
    KNOWN = "known"


class ExpireAnswer(StrEnum):
    FAILED = "failed"
    GONE = "gone"


class HintAnswer(StrEnum):
    QUEUED = "queued"
    ATTEND = "attend"
    EARLY = "early"
    GONE = "gone"


class ParkAnswer(StrEnum):
    PARKED = "parked"
    LOST = "lost"


class RememberAnswer(StrEnum):
    KEPT = "kept"
    LOST = "lost"


class RenewAnswer(StrEnum):
    HELD = "held"
    LOST = "lost"
    OVERTIME = "overtime"


class RequeueAnswer(StrEnum):
    QUEUED = "queued"
    LATER = "later"
    FAILED = "failed"
    GONE = "gone"


class SealAnswer(StrEnum):
    OK = "ok"
    SETTLING = "settling"
    LOST = "lost"


class StepBeginAnswer(StrEnum):
    NEW = "new"
    AGAIN = "again"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    MISMATCH = "mismatch"
    FULL = "full"
    LOST = "lost"


class StepEndAnswer(StrEnum):
    OK = "ok"
    AGAIN = "again"
    SPENT = "spent"
    LOST = "lost"


class StepExpireAnswer(StrEnum):
    FAILED = "failed"
    GONE = "gone"


class TakeAnswer(StrEnum):
    TAKEN = "taken"
    GONE = "gone"


class TakeHandedAnswer(StrEnum):
    TAKEN = "taken"
    LAST = "last"
    GONE = "gone"


class TakeNextAnswer(StrEnum):
    TAKEN = "taken"
    LAST = "last"
    OTHER = "other"


APPEND = Script("append", AppendAnswer)
CANCEL = Script("cancel", CancelAnswer)
CREATE = Script("create", CreateAnswer)
EXPIRE = Script("expire", ExpireAnswer)
HINT = Script("hint", HintAnswer)
PARK = Script("park", ParkAnswer)
REMEMBER = Script("remember", RememberAnswer)
RENEW = Script("renew", RenewAnswer)
REQUEUE = Script("requeue", RequeueAnswer)
SEAL = Script("seal", SealAnswer)
STEP_BEGIN = Script("step_begin", StepBeginAnswer)
STEP_END = Script("step_end", StepEndAnswer)
STEP_EXPIRE = Script("step_expire", StepExpireAnswer)
TAKE = Script("take", TakeAnswer)
TAKE_HANDED = Script("take_handed", TakeHandedAnswer)
TAKE_NEXT = Script("take_next", TakeNextAnswer)
