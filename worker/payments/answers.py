"""Answers of the money scripts.

Each enum lists the answers of one script's manifest; a test keeps them in step.
"""

from __future__ import annotations

from enum import StrEnum

from worker.store.scripts import Script


class AuditEndAnswer(StrEnum):
    PROVEN = "proven"
    UNPROVEN = "unproven"
    GONE = "gone"


class ClaimAnswer(StrEnum):
    CLAIMED = "claimed"
    HELD = "held"
    SAME = "same"
    EXISTS = "exists"
    CONFLICT = "conflict"
    PAYING = "paying"
    USED = "used"
    IDENTIFIER = "identifier"
    UNSIGNED = "unsigned"
    FOUND = "found"
    LATE = "late"
    BUDGET = "budget"
    PAYMENTS = "payments"
    BUSY = "busy"


class CompareBeginAnswer(StrEnum):
    WAIT = "wait"
    GO = "go"


class FoundDismissAnswer(StrEnum):
    LISTED = "listed"
    KNOWN = "known"


class FoundRefundAnswer(StrEnum):
    BOUND = "bound"
    KNOWN = "known"


class FoundForContractAnswer(StrEnum):
    WAITS = "waits"
    KNOWN = "known"
    TAKEN = "taken"


class FoundForExecutionAnswer(StrEnum):
    BOUND = "bound"
    KNOWN = "known"
    TAKEN = "taken"


class FoundListAnswer(StrEnum):
    LISTED = "listed"
    KNOWN = "known"


class LegAgainAnswer(StrEnum):
    DUE = "due"
    EARLY = "early"
    GONE = "gone"


class LegBeginAnswer(StrEnum):
    SIGN = "sign"
    SEND = "send"
    BUSY = "busy"
    NO = "no"


class LegFixAnswer(StrEnum):
    FIXED = "fixed"
    EARLY = "early"


class LegOweAnswer(StrEnum):
    DUE = "due"
    NONE = "none"
    OPEN = "open"
    UNSETTLED = "unsettled"
    UNDER_WAY = "under_way"
    ABOVE = "above"


class LegRefusedAnswer(StrEnum):
    REFUSED = "refused"
    UNKNOWN = "unknown"
    GONE = "gone"


class LegSettledAnswer(StrEnum):
    SETTLED = "settled"
    KNOWN = "known"
    LOST = "lost"


class LegSignedAnswer(StrEnum):
    GO = "go"
    LOST = "lost"


class LegUnknownAnswer(StrEnum):
    AGAIN = "again"
    GONE = "gone"


class LegWaitAnswer(StrEnum):
    AGAIN = "again"
    GONE = "gone"


class RepayAnswer(StrEnum):
    PAYMENT_DUE = "payment_due"
    GONE = "gone"


class SettleBeginAnswer(StrEnum):
    GO = "go"
    BUSY = "busy"
    NO = "no"


class SettleDoubtedAnswer(StrEnum):
    UNKNOWN = "unknown"
    GONE = "gone"


class SettleRefusedAnswer(StrEnum):
    PAYMENT_DUE = "payment_due"
    OFFERED = "offered"
    UNKNOWN = "unknown"
    GONE = "gone"


class SettleUnknownAnswer(StrEnum):
    AGAIN = "again"
    GONE = "gone"


class SettledAnswer(StrEnum):
    COMPLETED = "completed"
    WORKING = "working"
    INPUT_DUE = "input_due"
    REFUND = "refund"
    KNOWN = "known"
    LOST = "lost"


class UnparkAnswer(StrEnum):
    QUEUED = "queued"
    CONFLICT = "conflict"
    GONE = "gone"


class VerifiedAnswer(StrEnum):
    WORKING = "working"
    SETTLING = "settling"
    GONE = "gone"


class VerifyRefusedAnswer(StrEnum):
    OFFERED = "offered"
    PAYMENT_DUE = "payment_due"
    GONE = "gone"


AUDIT_END = Script("audit_end", AuditEndAnswer)
CLAIM = Script("claim", ClaimAnswer)
COMPARE_BEGIN = Script("compare_begin", CompareBeginAnswer)
FOUND_DISMISS = Script("found_dismiss", FoundDismissAnswer)
FOUND_REFUND = Script("found_refund", FoundRefundAnswer)
FOUND_FOR_CONTRACT = Script("found_for_contract", FoundForContractAnswer)
FOUND_FOR_EXECUTION = Script("found_for_execution", FoundForExecutionAnswer)
FOUND_LIST = Script("found_list", FoundListAnswer)
LEG_AGAIN = Script("leg_again", LegAgainAnswer)
LEG_BEGIN = Script("leg_begin", LegBeginAnswer)
LEG_FIX = Script("leg_fix", LegFixAnswer)
LEG_OWE = Script("leg_owe", LegOweAnswer)
LEG_REFUSED = Script("leg_refused", LegRefusedAnswer)
LEG_SETTLED = Script("leg_settled", LegSettledAnswer)
LEG_SIGNED = Script("leg_signed", LegSignedAnswer)
LEG_UNKNOWN = Script("leg_unknown", LegUnknownAnswer)
LEG_WAIT = Script("leg_wait", LegWaitAnswer)
REPAY = Script("repay", RepayAnswer)
SETTLE_BEGIN = Script("settle_begin", SettleBeginAnswer)
SETTLE_DOUBTED = Script("settle_doubted", SettleDoubtedAnswer)
SETTLE_REFUSED = Script("settle_refused", SettleRefusedAnswer)
SETTLE_UNKNOWN = Script("settle_unknown", SettleUnknownAnswer)
SETTLED = Script("settled", SettledAnswer)
UNPARK = Script("unpark", UnparkAnswer)
VERIFIED = Script("verified", VerifiedAnswer)
VERIFY_REFUSED = Script("verify_refused", VerifyRefusedAnswer)
