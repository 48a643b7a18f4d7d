"""The books: every payment that was ever claimed, what became of it, and who may act on it now.

One hash and one ledger per execution, one journal over all. Scripts check and write; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from worker.executions.scripts import Arg
from worker.executions.store import New
from worker.payments.stored import Stored
from worker.store import as_bytes, as_mapping, as_texts

SECOND_US = 1_000_000
SETTLE_LEASE_US = 5 * SECOND_US
# When the identical call is made again: after 1, 2, 5, 10, 30 s, then each minute.
RETRY_US = tuple(seconds * SECOND_US for seconds in (1, 2, 5, 10, 30, 60))
# A verification that nobody finished is asked again by the clock.
VERIFY_US = 20 * SECOND_US
SEALED_WAITS_US = 24 * 3600 * SECOND_US


class PaymentState(StrEnum):
    CLAIMED = "claimed"
    VERIFIED = "verified"
    SETTLING = "settling"
    UNKNOWN = "unknown"
    SETTLED = "settled"
    REFUSED = "refused"
    RELEASED = "released"

    @property
    def ended(self) -> bool:
        return self in (PaymentState.SETTLED, PaymentState.REFUSED, PaymentState.RELEASED)


@dataclass(frozen=True, slots=True)
class Claim:
    """All that a claim binds together. JSON is given as text, times in microseconds."""

    contract_ref: str
    payment_key: str
    identifier: str
    payer: str
    amount: int
    payload: str
    requirements: str
    valid_before_s: int
    mode: str
    fee: int
    fee_wallet: str
    deadline_us: int
    latency_us: int | None
    most_open: int
    most_refused: int


@dataclass(frozen=True, slots=True)
class Payment:
    """One payment as the books have it; `pending` is a hash that was named before its outcome was known."""

    number: int
    state: PaymentState
    payer: str
    amount: int
    valid_before_s: int
    transaction: str = ""
    pending: str = ""
    response: str = ""
    code: str = ""
    how: str = ""
    calls: int = 0
    claimed: int = 0
    refund: str = ""
    refund_amount: int = 0


@dataclass(frozen=True, slots=True)
class Money:
    """All payments of one execution; `current` is the one that counts now."""

    contract_ref: str
    mode: str
    payments: tuple[Payment, ...] = ()
    current: int = 0
    paid: int = 0

    def payment(self, number: int | None = None) -> Payment | None:
        number = self.current if number is None else number
        return self.payments[number - 1] if 0 < number <= len(self.payments) else None


@dataclass(frozen=True, slots=True)
class SettleLeave:
    """Leave to make one settle call.

    `earlier_unknown`: a call of this payment ended without a certain answer. `may_have_landed`: one of
    them may have moved the money; a call that met a used nonce did not.
    """

    number: int
    payload: bytes
    requirements: bytes
    payer: str
    earlier_unknown: bool
    may_have_landed: bool


class Ledger(Stored):
    """The books in the store."""

    def claim(self, new: New, claim: Claim, fields: Mapping[str, Arg], payload: bytes) -> list[bytes]:
        """Binds the payment to the contract and makes the execution; see claim.lua for the answers."""
        replaceable = {"input": new.input, "input_ref": new.input_ref}
        apart = {*replaceable, "hooks"}
        rest = {name: value for name, value in fields.items() if name not in apart}
        pairs: list[Arg] = [part for pair in [*replaceable.items(), *rest.items()] for part in pair]
        args: list[Arg] = [
            new.id,
            claim.payment_key,
            claim.payer.lower(),
            claim.amount,
            claim.payload,
            claim.requirements,
            claim.valid_before_s,
            claim.identifier,
            new.digest,
            new.lane,
            claim.mode,
            claim.fee,
            claim.fee_wallet,
            claim.contract_ref,
            claim.deadline_us,
            VERIFY_US,
            claim.most_open,
            claim.most_refused,
            payload,
            fields.get("hooks", b""),
            len(replaceable),
            *pairs,
        ]
        keys = [
            self.keys.contract(claim.contract_ref),
            self.keys.payment(claim.payment_key),
            self.keys.payment_identifier(claim.contract_ref, claim.identifier),
            self.keys.contracts,
            *self.keys.indexes(new.agent, new.door, new.labels),
        ]
        reply: list[bytes] = self._move("claim", new.id, args, keys)
        return reply

    def verified(self, id: str, number: int) -> tuple[str, str]:
        return _pair(self._move("verified", id, [id, number]))

    def verify_refused(self, id: str, number: int, code: str) -> str:
        return str(self._move("verify_refused", id, [id, number, code]).decode())

    def ask_again(self, id: str, number: int, what: str) -> int:
        return int(self._move("ask_again", id, [id, number, what, _spaced(RETRY_US)]))

    def settle_begin(self, id: str, token: str) -> SettleLeave | None:
        reply = self._move("settle_begin", id, [id, token, SETTLE_LEASE_US])
        if reply[0] != b"go":
            return None
        _, number, payload, requirements, payer, unknown, maybe = reply
        return SettleLeave(int(number), payload, requirements, payer.decode(), unknown == b"1", maybe == b"1")

    def settle_renew(self, id: str, number: int, token: str) -> bool:
        return bool(self._move("settle_renew", id, [id, number, token, SETTLE_LEASE_US]))

    def settled(self, id: str, number: int, transaction: str, response: str, how: str) -> tuple[str, str]:
        return _pair(self._move("settled", id, [id, number, transaction, response, how]))

    def settle_refused(
        self, id: str, number: int, code: str, response: str, *, by_chain: bool = False
    ) -> str:
        args: list[Arg] = [id, number, code, response, SEALED_WAITS_US, "1" if by_chain else ""]
        return str(self._move("settle_refused", id, args).decode())

    def settle_unknown(
        self, id: str, number: int, token: str, cause: str, transaction: str, *, may_have_landed: bool
    ) -> None:
        args: list[Arg] = [id, number, token, cause, transaction, _spaced(RETRY_US)]
        self._move("settle_unknown", id, [*args, "1" if may_have_landed else ""])

    def unpark(self, id: str, digest: str, input: bytes, input_ref: bytes) -> tuple[str, str]:
        return _pair(self._move("unpark", id, [id, digest, input, input_ref]))

    def repay(self, id: str) -> str:
        return str(self._move("repay", id, [id]).decode())

    def money(self, id: str) -> Money | None:
        found = as_mapping(self.client.hgetall(self.keys.money(id)))
        raw = {name: value.decode() for name, value in found.items()}
        return _money(raw) if raw else None

    def input_ref(self, id: str) -> bytes:
        """The reference to the file that holds the execution's input, if one does."""
        return as_bytes(self.client.hget(self.keys.record(id), "input_ref") or b"")

    def payload(self, id: str, number: int) -> tuple[str, str]:
        """What is sent to the facilitator: the stored payment and our requirements."""
        names = [f"{number} payload", f"{number} requirements"]
        payload, requirements = self.client.hmget(self.keys.money(id), names)
        return as_bytes(payload or b"{}").decode(), as_bytes(requirements or b"{}").decode()

    def due(self, at: int, most: int = 50) -> list[str]:
        """Executions whose money waits for somebody."""
        found = self.client.zrangebyscore(self.keys.open_payments, "-inf", at, start=0, num=most)
        return as_texts(found)

    def bound(self, payment_key: str) -> tuple[str, int] | None:
        """The execution and number that a payment key is bound to."""
        found = self.client.get(self.keys.payment(payment_key))
        if found is None:
            return None
        id, number = as_bytes(found).decode().split(" ")
        return id, int(number)

    def sums(self) -> dict[str, int]:
        return {name: int(value) for name, value in as_mapping(self.client.hgetall(self.keys.sums)).items()}


def _money(raw: Mapping[str, str]) -> Money:
    count = int(raw.get("count", 0))
    return Money(
        contract_ref=raw["contract"],
        mode=raw["mode"],
        payments=tuple(_payment(raw, number) for number in range(1, count + 1)),
        current=int(raw.get("current", 0)),
        paid=int(raw.get("paid", 0)),
    )


def _payment(raw: Mapping[str, str], number: int) -> Payment:
    def get(name: str, default: str = "") -> str:
        return raw.get(f"{number} {name}", default)

    return Payment(
        number=number,
        state=PaymentState(get("state")),
        payer=get("payer"),
        amount=int(get("amount", "0")),
        valid_before_s=int(get("valid_before", "0")),
        transaction=get("tx"),
        pending=get("hash"),
        response=get("response"),
        code=get("code"),
        how=get("how"),
        calls=int(get("calls", "0")),
        claimed=int(get("claimed", "0")),
        refund=get("refund state"),
        refund_amount=int(get("refund amount", "0")),
    )


def _pair(reply: Sequence[bytes]) -> tuple[str, str]:
    return reply[0].decode(), reply[1].decode() if len(reply) > 1 else ""


def _spaced(delays: Sequence[int]) -> str:
    return " ".join(str(delay) for delay in delays)
