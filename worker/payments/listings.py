"""Records each capability's catalog status and last payment: a listing lapses without payments.

A facilitator reports in a header of verify and settle whether it listed the paid endpoint. Recording that is
separate from the money path: nothing here may delay or change a payment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from worker.payments.facilitator import Facilitator
from worker.payments.facilitator_call import OpenCall
from worker.store.client import as_bytes, as_mapping
from worker.store.data_model import Keys
from worker.x402.facilitator_answers import CatalogStatus, FacilitatorAnswer

DAY_US = 86_400_000_000
# Catalogs drop an endpoint without payments for this long; the operator is warned some days before.
LAPSES_US, WARNED_US = 30 * DAY_US, 25 * DAY_US
# An unchanged fact is rewritten only after this time.
_AGAIN_S = 600.0
SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class ListingStatus:
    """Status of one capability's listing; times in us, 0 for never."""

    capability: str
    status: str = ""
    reason: str = ""
    at: int = 0
    settled: int = 0

    @property
    def level(self) -> int:
        """1 listed, -1 rejected, 0 unknown or undecided."""
        return {"success": 1, "rejected": -1}.get(self.status, 0)

    def warning(self, now: int) -> str:
        """What the operator should do about it, or ''."""
        if self.level < 0:
            return f"{self.capability} was rejected by the catalog: {self.reason or 'no reason given'}"
        days = (now - self.settled) // DAY_US
        if self.settled and now - self.settled > LAPSES_US:
            return f"{self.capability} was last paid for {days} days ago; catalogs have dropped it"
        if self.settled and now - self.settled > WARNED_US:
            return f"{self.capability} was last paid for {days} days ago; catalogs drop it after 30"
        return ""


@dataclass
class ListingBook:
    """The listings in the store."""

    client: redis.Redis
    keys: Keys
    now: Callable[[], int]

    def note_status(self, capability: str, status: CatalogStatus) -> None:
        facts = {"status": status.status, "reason": status.reason, "at": str(self.now())}
        self._write(capability, facts)

    def note_settled(self, capability: str) -> None:
        self._write(capability, {SETTLED: str(self.now())})

    def all(self) -> dict[str, ListingStatus]:
        found: dict[str, dict[str, str]] = {}
        for name, value in as_mapping(self.client.hgetall(self.keys.listings)).items():
            capability, _, fact = name.rpartition(" ")
            found.setdefault(capability, {})[fact] = as_bytes(value).decode()
        return {
            capability: ListingStatus(
                capability,
                facts.get("status", ""),
                facts.get("reason", ""),
                int(facts.get("at", 0)),
                int(facts.get(SETTLED, 0)),
            )
            for capability, facts in sorted(found.items())
        }

    def warnings(self) -> list[str]:
        listings = self.all()
        now = self.now() if listings else 0
        return [text for each in listings.values() if (text := each.warning(now))]

    def _write(self, capability: str, facts: Mapping[str, str]) -> None:
        pairs = [part for name, value in facts.items() for part in (f"{capability} {name}", value)]
        self.client.hset(self.keys.listings, items=pairs)


@dataclass
class ListeningFacilitator:
    """A facilitator whose listing reports are recorded. `capability_at` maps an address to a capability."""

    inner: Facilitator
    book: ListingBook
    capability_at: Callable[[str], str | None]
    spawn: Callable[[Callable[[], object]], None]
    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[str, str], float] = field(default_factory=dict, init=False)

    def verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        return self._heard(self.inner.verify(payload, requirements), payload, settling=False)

    def begin_verify(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> OpenCall | None:
        call = self.inner.begin_verify(payload, requirements)
        return call and _HeardCall(call, lambda answer: self._heard(answer, payload, settling=False))

    def settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> FacilitatorAnswer:
        return self._heard(self.inner.settle(payload, requirements), payload, settling=True)

    def begin_settle(self, payload: Mapping[str, Any], requirements: Mapping[str, Any]) -> OpenCall:
        call = self.inner.begin_settle(payload, requirements)
        return _HeardCall(call, lambda answer: self._heard(answer, payload, settling=True))

    def supported(self) -> FacilitatorAnswer:
        return self.inner.supported()

    def _heard(
        self, answer: FacilitatorAnswer, payload: Mapping[str, Any], *, settling: bool
    ) -> FacilitatorAnswer:
        resource = payload.get("resource")
        url = resource.get("url") if isinstance(resource, Mapping) else None
        capability = self.capability_at(url) if isinstance(url, str) else None
        if capability is None:
            return answer
        status = answer.catalog
        if status is not None and self._is_news(capability, f"{status.status} {status.reason}"):
            self.spawn(lambda: self.book.note_status(capability, status))
        settled = settling and answer.body is not None and answer.body.get("success") is True
        if settled and self._is_news(capability, SETTLED):
            self.spawn(lambda: self.book.note_settled(capability))
        return answer

    def _is_news(self, capability: str, fact: str) -> bool:
        now = self.clock()
        if now - self._known.get((capability, fact), float("-inf")) < _AGAIN_S:
            return False
        if fact != SETTLED:
            # A new status replaces the last one, which is news again if it returns.
            kept = {key: at for key, at in self._known.items() if key[0] != capability or key[1] == SETTLED}
            self._known = kept
        self._known[capability, fact] = now
        return True


@dataclass
class _HeardCall:
    """A call whose answer is heard when somebody waits for it."""

    inner: OpenCall
    heard: Callable[[FacilitatorAnswer], FacilitatorAnswer]

    def answer(self) -> FacilitatorAnswer:
        return self.heard(self.inner.answer())

    def answer_within(self, seconds: float) -> FacilitatorAnswer | None:
        answer = self.inner.answer_within(seconds)
        return None if answer is None else self.heard(answer)

    def leave(self) -> None:
        self.inner.leave()
