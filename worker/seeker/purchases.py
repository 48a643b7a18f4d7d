"""Purchases on disk, with every payment signed for them, written before it is sent.

One file per purchase, readable by its owner only: it holds the contract's id, which opens the result.
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

from worker.core.errors import BadRequest
from worker.seeker.problems import PurchaseBusy
from worker.seeker.wallet import SignedPayment


class PaymentFate(StrEnum):
    """What is known of a payment. `open`: it is, or may be, outstanding and may still be taken."""

    OPEN = "open"
    REFUSED = "refused"
    SETTLED = "settled"


class PurchaseEnding(StrEnum):
    """Whether a purchase is finished, and how."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StoredPayment:
    """A signed payment and its outcome."""

    signed: SignedPayment
    fate: PaymentFate = PaymentFate.OPEN
    reason: str = ""

    def may_move_money(self, now_s: int) -> bool:
        """A refused payment's signature stays valid until its window ends, whatever the refusal said."""
        return self.fate is not PaymentFate.REFUSED or now_s < self.signed.valid_before_s


@dataclass(frozen=True, slots=True)
class Purchase:
    """One thing to buy. With a contract `url` is the worker's base, else the resource itself.

    `wants_input`: the worker refused the body, and accepts a corrected one on the outstanding payment.
    """

    ref: str
    url: str
    method: str
    body: str | None
    contract: dict[str, Any] | None = None
    payments: tuple[StoredPayment, ...] = ()
    ending: PurchaseEnding = PurchaseEnding.OPEN
    task_id: str = ""
    wants_input: bool = False

    @property
    def payment(self) -> StoredPayment | None:
        """The current payment: the last one."""
        return self.payments[-1] if self.payments else None

    @property
    def signed_contract(self) -> dict[str, Any]:
        """The contract of a purchase that has one."""
        if self.contract is None:
            raise ValueError("this purchase has no contract: it is of a resource")
        return self.contract

    @property
    def unsettled(self) -> StoredPayment | None:
        """The payment whose outcome is unknown."""
        last = self.payment
        return last if last is not None and last.fate is PaymentFate.OPEN else None

    def exposed(self, now_s: int) -> int:
        """The most that all payments signed for this purchase could cost together."""
        return sum(each.signed.amount for each in self.payments if each.may_move_money(now_s))

    def with_payment(self, signed: SignedPayment) -> Purchase:
        return replace(self, payments=(*self.payments, StoredPayment(signed)))

    def with_fate(self, fate: PaymentFate, reason: str = "") -> Purchase:
        """A copy with the last payment's fate set; a settled payment stays settled."""
        last = self.payment
        if last is None or last.fate is PaymentFate.SETTLED:
            return self
        return replace(self, payments=(*self.payments[:-1], replace(last, fate=fate, reason=reason)))


class PurchaseStore:
    """The directory of purchases."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, purchase: Purchase) -> None:
        """Returns once the purchase would survive a power cut."""
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
        """Purchases neither delivered nor abandoned, oldest first."""
        paths = sorted(self.directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
        return [found for path in paths if (found := _read(path)).ending is PurchaseEnding.OPEN]

    @contextmanager
    def hold(self, ref: str) -> Iterator[None]:
        """Lock a purchase for one process: two could each sign a payment for it."""
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
    """An unreadable file may hold a payment, so it is never skipped."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        payments = tuple(
            StoredPayment(SignedPayment(**each["signed"]), PaymentFate(each["fate"]), each["reason"])
            for each in raw["payments"]
        )
        return Purchase(**{**raw, "payments": payments, "ending": PurchaseEnding(raw["ending"])})
    except (OSError, ValueError, LookupError, TypeError) as fault:
        raise BadRequest(
            f"the purchase in {str(path)!r} cannot be read",
            advice="It may contain a payment that can still settle: check it before you move it.",
        ) from fault
