"""Answers of the script that admits a kernel's task."""

from __future__ import annotations

from enum import StrEnum

from worker.store.scripts import Script


class AdmitAnswer(StrEnum):
    KNOWN = "known"
    ADMITTED = "admitted"
    OPEN = "open"
    EXPIRED = "expired"
    SPENT = "spent"
    STOPPED = "stopped"
    NOBODY = "nobody"
    FULL = "full"


ADMIT = Script("admit", AdmitAnswer)
