"""What the doctor found last, recorded by a clock for processes that must not ask services themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from worker.store.data_model import Keys

GOOD = "ok"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One check's result; see `worker doctor`."""

    name: str
    level: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings at one time; 0 and none while no doctor has run."""

    at: int = 0
    findings: tuple[DoctorFinding, ...] = ()

    @property
    def troubles(self) -> list[DoctorFinding]:
        return [each for each in self.findings if each.level != GOOD]


class DoctorRecord:
    """The last report in the store."""

    def __init__(self, client: redis.Redis, keys: Keys, now: Callable[[], int]) -> None:
        self._client = client
        self._key = keys.doctor
        self._now = now

    def write(self, findings: Sequence[dict[str, str]]) -> None:
        self._client.set(self._key, json.dumps({"at": self._now(), "findings": list(findings)}))

    def read(self) -> DoctorReport:
        found: Any = self._client.get(self._key)
        if not found:
            return DoctorReport()
        report = json.loads(found)
        return DoctorReport(report["at"], tuple(DoctorFinding(**each) for each in report["findings"]))
