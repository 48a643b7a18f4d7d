"""Answers of the scripts about checks."""

from __future__ import annotations

from enum import StrEnum

from worker.store.scripts import Script


class CheckAskAnswer(StrEnum):
    QUEUED = "queued"
    ABSENT = "absent"
    SPENT = "spent"
    FULL = "full"


CHECK_ASK = Script("check_ask", CheckAskAnswer)
