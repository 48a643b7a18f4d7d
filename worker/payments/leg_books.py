"""The books of legs: which refunds and fees are owed, what was signed for them, and what became of it.

A refund lies in the money of its execution, beside the payment that it gives back. A wallet's fees lie
in a hash of its own, numbered in the same way. Scripts check and write; nothing else does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from worker.executions.scripts import Arg
from worker.payments.ledger import RETRY_US, SECOND_US
from worker.payments.legs import LegKind, LegState
from worker.payments.stored import Stored

LEG_LEASE_US = 5 * SECOND_US
# How long a leg's authorization is valid, and how long after its end a block may still confirm it.
LEG_WINDOW_S = 3600
CONFIRM_US = 600 * SECOND_US

_READ = (
    "state",
    "amount",
    "ordinal",
    "reason",
    "code",
    "cause",
    "tx",
    "how",
    "receipt",
    "payload",
    "valid_before",
    "calls",
    "settled",
)


@dataclass(frozen=True, slots=True)
class LegName:
    """Which leg: a refund of an execution's payment, or a fee leg of a wallet (its `id`)."""

    kind: LegKind
    id: str
    number: int

    @property
    def member(self) -> str:
        return f"{self.kind} {self.id} {self.number}"

    @classmethod
    def parse(cls, member: str) -> LegName | None:
        """None for fees that still gather."""
        parts = member.split(" ")
        return cls(LegKind(parts[0]), parts[1], int(parts[2])) if len(parts) == 3 else None


@dataclass(frozen=True, slots=True)
class Leg:
    """One leg as the books have it; amounts in atomic units, `settled` in microseconds."""

    name: LegName
    state: LegState
    amount: int
    ordinal: int
    reason: str = ""
    code: str = ""
    cause: str = ""
    transaction: str = ""
    how: str = ""
    receipt: str = ""
    payload: str = ""
    valid_before_s: int = 0
    calls: int = 0
    settled: int = 0


@dataclass(frozen=True, slots=True)
class RefundFacts:
    """What a refund leg follows from: the payment that goes back, and its contract."""

    payer: str
    payment_key: str
    payment: str
    network: str
    asset: str
    reason: str
    contract_hash: str


@dataclass(frozen=True, slots=True)
class LegLeave:
    """Leave to settle one leg. Without a payload there is nothing sent yet: it is to be signed."""

    at: int
    ordinal: int
    amount: int
    valid_before_s: int
    payload: bytes = b""
    requirements: bytes = b""
    earlier_unknown: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """One refund that was paid, with the statement that we signed about it, if it names both hashes."""

    ordinal: int
    amount: int
    transaction: str
    how: str
    signed: str


class LegBooks(Stored):
    """Legs in the store."""

    # What is owed

    def due(self, at: int) -> tuple[list[LegName], list[tuple[str, int]]]:
        """Legs whose time has come, and (wallet, since when) of fees that still gather.

        All of them: gathering fees stand first by their age, and a limit would let them hide the refunds.
        """
        found: Any = self.client.zrangebyscore(self.keys.legs, "-inf", at, withscores=True)
        legs: list[LegName] = []
        gathering: list[tuple[str, int]] = []
        for member, score in found:
            text = member.decode()
            leg = LegName.parse(text)
            if leg is None:
                gathering.append((text.split(" ")[1], int(score)))
            else:
                legs.append(leg)
        return legs, gathering

    def open(self) -> list[LegName]:
        """Every leg that is not settled, whatever keeps it."""
        found: Any = self.client.zrange(self.keys.legs, 0, -1)
        parsed = (LegName.parse(member.decode()) for member in found)
        return [leg for leg in parsed if leg is not None]

    def gathered(self, wallets: Sequence[str]) -> dict[str, int]:
        """Fees that no leg holds yet, by wallet."""
        if not wallets:
            return {}
        amounts = self.client.hmget(self.keys.wallets, [f"fee {wallet}" for wallet in wallets])
        return {wallet: int(amount or 0) for wallet, amount in zip(wallets, amounts, strict=True)}

    def all_gathered(self) -> dict[str, int]:
        found: Any = self.client.hscan_iter(self.keys.wallets, match="fee *")
        return {name.decode().split(" ")[1]: int(amount) for name, amount in found}

    def fix(self, wallet: str, threshold: int, period_us: int) -> LegName | None:
        """Makes a leg of what gathered for a wallet, if it is enough or has waited long enough."""
        reply = self._move("leg_fix", wallet, [wallet, threshold, period_us])
        return LegName(LegKind.FEE, wallet, int(reply[1])) if reply[0] == b"fixed" else None

    def owe(self, id: str, number: int, amount: int | None, reason: str) -> tuple[str, str]:
        """The operator's refund; see leg_owe.lua for the answers."""
        wanted: Arg = "" if amount is None else amount
        reply = self._move("leg_owe", id, [id, number, wanted, reason])
        return reply[0].decode(), reply[1].decode() if len(reply) > 1 else ""

    # Life of a leg

    def begin(self, leg: LegName, token: str, window_s: int = LEG_WINDOW_S) -> LegLeave | None:
        """Leave to act on the leg now; None when it needs nothing or somebody else acts."""
        reply = self._leg("leg_begin", leg, [token, LEG_LEASE_US, window_s])
        if reply[0] not in (b"sign", b"send"):
            return None
        at, ordinal, amount, valid_before = (int(part) for part in reply[1:5])
        leave = LegLeave(at, ordinal, amount, valid_before)
        if reply[0] == b"sign":
            return leave
        return replace(leave, payload=reply[5], requirements=reply[6], earlier_unknown=reply[7] == b"1")

    def signed(self, leg: LegName, token: str, payload: str, requirements: str) -> bool:
        """Keeps what is about to be sent; False when somebody else took the leg over."""
        return bool(self._leg("leg_signed", leg, [token, payload, requirements]) == b"go")

    def renew(self, leg: LegName, token: str) -> bool:
        return bool(self._leg("leg_renew", leg, [token, LEG_LEASE_US]))

    def settled(self, leg: LegName, transaction: str, how: str, receipt: str) -> str:
        return str(self._leg("leg_settled", leg, [transaction, how, receipt]).decode())

    def refused(self, leg: LegName, code: str, *, certain: bool = False) -> str:
        return str(self._leg("leg_refused", leg, [code, "1" if certain else ""]).decode())

    def unknown(self, leg: LegName, token: str, cause: str, transaction: str) -> None:
        delays = " ".join(str(delay) for delay in RETRY_US)
        self._leg("leg_unknown", leg, [token, cause, transaction, delays])

    def next_ordinal(self, leg: LegName, dead: int) -> str:
        """The chain has shown that this ordinal can never land."""
        return str(self._leg("leg_again", leg, [dead, CONFIRM_US]).decode())

    def retry(self, leg: LegName) -> str:
        """The operator's wish to sign anew under the same nonce: 'due', 'early' or 'gone'."""
        return str(self._leg("leg_again", leg, ["", CONFIRM_US]).decode())

    # Reading

    def get(self, leg: LegName) -> Leg | None:
        values = self._read(leg.id, [f"{leg.number} {leg.kind} {name}" for name in _READ])
        raw = {name: value for name, value in zip(_READ, values, strict=True) if value is not None}
        return _leg(leg, raw) if "state" in raw else None

    def fee_legs(self, wallet: str) -> list[Leg]:
        """All legs that were ever made for a wallet's fees."""
        count = int(self.client.hget(self.keys.money(wallet), "count") or 0)
        found = (self.get(LegName(LegKind.FEE, wallet, number)) for number in range(1, count + 1))
        return [leg for leg in found if leg is not None]

    def refund_facts(self, leg: LegName) -> RefundFacts:
        names = ["payer", "key", "tx", "refund reason"]
        fields = [f"{leg.number} {name}" for name in names]
        found = self._read(leg.id, [*fields, "contract"])
        payer, key, payment, reason, contract = (value or "" for value in found)
        network, _, rest = key.partition("/")
        digest: Any = self.client.hget(self.keys.contract(contract), "hash") or b""
        return RefundFacts(payer, key, payment, network, rest.partition("/")[0], reason, digest.decode())

    def receipts(self, id: str, number: int) -> list[Receipt]:
        """What was given back of a payment, oldest first."""
        leg = self.get(LegName(LegKind.REFUND, id, number))
        if leg is None:
            return []
        earlier = [self._earlier(id, number, ordinal) for ordinal in range(leg.ordinal)]
        found = [receipt for receipt in earlier if receipt is not None]
        if leg.state is LegState.SETTLED:
            found.append(Receipt(leg.ordinal, leg.amount, leg.transaction, leg.how, leg.receipt))
        return found

    def _earlier(self, id: str, number: int, ordinal: int) -> Receipt | None:
        """An ordinal may have been passed over because its authorization could never land."""
        names = [f"{number} refund {ordinal} {name}" for name in ("amount", "tx", "how", "receipt")]
        amount, tx, how, signed = self._read(id, names)
        return None if amount is None else Receipt(ordinal, int(amount), tx or "", how or "", signed or "")

    def _read(self, id: str, names: Sequence[str]) -> list[str | None]:
        found: Any = self.client.hmget(self.keys.money(id), names)
        return [None if value is None else value.decode() for value in found]

    def _leg(self, name: str, leg: LegName, args: Sequence[Arg]) -> Any:
        return self._move(name, leg.id, [leg.id, leg.number, leg.kind, *args])


def _leg(name: LegName, raw: Mapping[str, str]) -> Leg:
    return Leg(
        name=name,
        state=LegState(raw["state"]),
        amount=int(raw.get("amount", "0")),
        ordinal=int(raw.get("ordinal", "0")),
        reason=raw.get("reason", ""),
        code=raw.get("code", ""),
        cause=raw.get("cause", ""),
        transaction=raw.get("tx", ""),
        how=raw.get("how", ""),
        receipt=raw.get("receipt", ""),
        payload=raw.get("payload", ""),
        valid_before_s=int(raw.get("valid_before", "0")),
        calls=int(raw.get("calls", "0")),
        settled=int(raw.get("settled", "0")),
    )
