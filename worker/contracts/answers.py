"""Contract scripts and their answers."""

from __future__ import annotations

from enum import StrEnum

from worker.store.scripts import Script


class DraftAnswer(StrEnum):
    KEPT = "kept"
    DIFFERS = "differs"


class RegisterAnswer(StrEnum):
    KEPT = "kept"
    KNOWN = "known"
    DIFFERS = "differs"
    FULL = "full"
    CROWDED = "crowded"


DRAFT = Script("draft", DraftAnswer)
REGISTER = Script("register", RegisterAnswer)
