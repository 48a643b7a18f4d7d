"""Purchases on disk: what was bought, and every payment signed for it, written before it is sent.

A file per purchase, for its owner's eyes only: it holds the contract's id, which opens the result.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from worker.errors import BadRequest
from worker.seeker.problems import PurchaseBusy
from worker.seeker.wallet import SignedPayment


class Fate(StrEnum):
    """What is known of a payment. `open`: it is out, or may be, and may be taken."""

    OPEN = "open"
    REFUSED = "refused"
    SETTLED = "settled"


class Ending(StrEnum):
    """Whether a purchase needs anything more."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class KeptPayment:
    """A signed payment and what became of it."""

    signed: SignedPayment
    fate: Fate = Fate.OPEN
    reason: str = ""

    def may_move_money(self, now_s: int) -> bool:
        """A refused payment's signature stays good until its window ends, whatever its refuser said."""
        return self.fate is not Fate.REFUSED or now_s < self.signed.valid_before_s


@dataclass(frozen=True, slots=True)
class Purchase:
    """One thing to buy. With a contract `url` is the worker's base, else the resource itself.

    `wants_input`: the worker has refused the body, and takes a corrected one on the payment that is out.
    """

    ref: str
    url: str
    method: str
    body: str | None
    contract: dict[str, Any] | None = None
    payments: tuple[KeptPayment, ...] = ()
    ending: Ending = Ending.OPEN
    task_id: str = ""
    wants_input: bool = False

    @property
    def payment(self) -> KeptPayment | None:
        """The one that counts: the last."""
        return self.payments[-1] if self.payments else None

    @property
    def unsettled(self) -> KeptPayment | None:
        """The payment whose outcome nobody has told us."""
        last = self.payment
        return last if last is not None and last.fate is Fate.OPEN else None

    def exposed(self, now_s: int) -> int:
        """What all payments signed for this could cost together."""
        return sum(each.signed.amount for each in self.payments if each.may_move_money(now_s))

    def with_payment(self, signed: SignedPayment) -> Purchase:
        return replace(self, payments=(*self.payments, KeptPayment(signed)))

    def with_fate(self, fate: Fate, reason: str = "") -> Purchase:
        """The same with the last payment's fate known; what has settled stays settled."""
        last = self.payment
        if last is None or last.fate is Fate.SETTLED:
            return self
        return replace(self, payments=(*self.payments[:-1], replace(last, fate=fate, reason=reason)))


class Drawer:
    """The directory of purchases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, purchase: Purchase) -> None:
        """Returns when the purchase would survive a power cut."""
        self._make()
        text = json.dumps(asdict(purchase), ensure_ascii=False, indent=1)
        path = self._path(purchase.ref)
        fresh = path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def find(self, ref: str) -> Purchase | None:
        path = self._path(ref)
        return _read(path) if path.exists() else None

    def unfinished(self) -> list[Purchase]:
        """Purchases that are neither delivered nor given up, oldest first."""
        paths = sorted(self.directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        return [found for path in paths if (found := _read(path)).ending is Ending.OPEN]

    @contextmanager
    def hold(self, ref: str) -> Iterator[None]:
        """Only one process works at a purchase: two could each sign a payment for it."""
        self._make()
        with self._path(ref).with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PurchaseBusy(ref=ref) from None
            yield

    def _make(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as fault:
            raise BadRequest(
                f"{str(self.directory)!r} cannot keep payments", advice="Name a directory you can write to."
            ) from fault

    def _path(self, ref: str) -> Path:
        return self.directory / f"{ref}.json"


def _read(path: Path) -> Purchase:
    """A file that cannot be read may hold a payment, so it is never passed over."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        payments = tuple(
            KeptPayment(SignedPayment(**each["signed"]), Fate(each["fate"]), each["reason"])
            for each in raw["payments"]
        )
        return Purchase(**{**raw, "payments": payments, "ending": Ending(raw["ending"])})
    except (OSError, ValueError, LookupError, TypeError) as fault:
        raise BadRequest(
            f"the purchase in {str(path)!r} cannot be read",
            advice="It may hold a payment that is out: look at it before you move it away.",
        ) from fault
