"""The ledger of legs: which refunds and fees are owed, what was signed for them, and their outcome.

A refund is stored in the money hash of its execution, beside the payment that it gives back. A wallet's fees
have their own hash, numbered in the same way. Only scripts check and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from worker.payments.answers import (
    LEG_AGAIN,
    LEG_BEGIN,
    LEG_FIX,
    LEG_OWE,
    LEG_REFUSED,
    LEG_SETTLED,
    LEG_SIGNED,
    LEG_UNKNOWN,
    LEG_WAIT,
    LegAgainAnswer,
    LegBeginAnswer,
    LegFixAnswer,
    LegOweAnswer,
    LegRefusedAnswer,
    LegSettledAnswer,
    LegSignedAnswer,
)
from worker.payments.leg import (
    STORED_FIELDS,
    Leg,
    LegKey,
    LegKind,
    LegLease,
    LegState,
    RefundFacts,
    RefundRecord,
)
from worker.payments.money_store import MoneyStore
from worker.payments.retry_delays import RETRY_US, SECOND_US, spaced
from worker.store.money_fields import fee_field, fee_wallet, leg_field, payment_field, refunded_field
from worker.store.scripts import A, Arg, Reply, Script
from worker.x402.payment_keys import PaymentKey

LEG_LEASE_US = 5 * SECOND_US
# How long a leg's authorization is valid, and how long after its end a block may still confirm it.
LEG_WINDOW_S = 3600
CONFIRM_US = 600 * SECOND_US
# Legs are less urgent than payments, so one that keeps failing is retried less and less often.
LEG_RETRY_US = (*RETRY_US, 300 * SECOND_US, 900 * SECOND_US, 3600 * SECOND_US)
# Intervals for checking the wallet's balance for a leg that it could not pay.
BALANCE_US = tuple(seconds * SECOND_US for seconds in (5, 15, 30, 60))


class LegLedger(MoneyStore):
    """Legs in the store."""

    # What is owed

    def due(self, at: int) -> tuple[list[LegKey], list[tuple[str, int]]]:
        """Legs that are due, and (wallet, since when) of fees that still gather.

        Returns all: gathering fees sort first by their age, and a limit would let them hide the refunds.
        """
        found: Any = self.client.zrangebyscore(self.keys.legs, "-inf", at, withscores=True)
        legs: list[LegKey] = []
        gathering: list[tuple[str, int]] = []
        for member, score in found:
            text = member.decode()
            leg = LegKey.parse(text)
            if leg is not None:
                legs.append(leg)
            elif (wallet := fee_wallet(text)) is not None:
                gathering.append((wallet, int(score)))
        return legs, gathering

    def open(self) -> list[LegKey]:
        """Every leg that is not settled, for whatever reason."""
        found: Any = self.client.zrange(self.keys.legs, 0, -1)
        parsed = (LegKey.parse(member.decode()) for member in found)
        return [leg for leg in parsed if leg is not None]

    def failing(self, most: int = 200) -> list[Leg]:
        """Legs that keep failing, the refused ones first; checks `most` legs at most."""
        found: Any = self.client.zrevrange(self.keys.legs, 0, most - 1)
        names = [LegKey.parse(member.decode()) for member in found]
        legs = [self.get(name) for name in names if name is not None]
        return [leg for leg in legs if leg is not None and leg.keeps_failing]

    def gathered(self, wallets: Sequence[str]) -> dict[str, int]:
        """Fees not in a leg yet, by wallet."""
        if not wallets:
            return {}
        amounts = self.client.hmget(self.keys.wallets, [fee_field(wallet) for wallet in wallets])
        return {wallet: int(amount or 0) for wallet, amount in zip(wallets, amounts, strict=True)}

    def all_gathered(self) -> dict[str, int]:
        found: Any = self.client.hscan_iter(self.keys.wallets, match=fee_field("*"))
        wallets = ((fee_wallet(name.decode()), int(amount)) for name, amount in found)
        return {wallet: amount for wallet, amount in wallets if wallet is not None}

    def fix(self, wallet: str, threshold: int, period_us: int) -> LegKey | None:
        """Makes a leg of a wallet's gathered fees, if they are large or old enough."""
        reply = self._scripts.run(
            LEG_FIX,
            money=self.keys.fees(wallet),
            wallet=wallet,
            threshold=threshold,
            period=period_us,
        )
        fixed = reply.answer is LegFixAnswer.FIXED
        return LegKey(LegKind.FEE, wallet, int(reply.text())) if fixed else None

    def owe(self, id: str, number: int, amount: int | None, reason: str) -> tuple[LegOweAnswer, str]:
        """Records the operator's refund; without an amount, all that is left of the payment."""
        wanted = "" if amount is None else amount
        reply = self._scripts.run(LEG_OWE, id=id, number=number, wanted=wanted, reason=reason)
        return reply.answer, reply.text()

    # Life of a leg

    def begin(self, leg: LegKey, token: str, window_s: int = LEG_WINDOW_S) -> LegLease | None:
        """Takes the lease on the leg; None when it needs nothing or somebody else holds the lease."""
        reply = self._run(LEG_BEGIN, leg, token=token, lease=LEG_LEASE_US, valid_for=window_s)
        if reply.answer in (LegBeginAnswer.BUSY, LegBeginAnswer.NO):
            return None
        at, ordinal, amount, valid_before = (int(part) for part in reply.values[:4])
        leave = LegLease(at, ordinal, amount, valid_before)
        if reply.answer is LegBeginAnswer.SIGN:
            return leave
        payload, requirements, unknown = reply.values[4:]
        return replace(leave, payload=payload, requirements=requirements, earlier_unknown=unknown == b"1")

    def signed(self, leg: LegKey, token: str, payload: str, requirements: str) -> bool:
        """Stores what is about to be sent; False when somebody else took the leg over."""
        reply = self._run(LEG_SIGNED, leg, token=token, new_payload=payload, requirements=requirements)
        return reply.answer is LegSignedAnswer.GO

    def renew(self, leg: LegKey, token: str) -> bool:
        return bool(
            self._scripts.value(
                "leg_renew",
                money=self._money(leg),
                id=leg.id,
                number=leg.number,
                kind=leg.kind,
                token=token,
                lease=LEG_LEASE_US,
            )
        )

    def settled(self, leg: LegKey, transaction: str, how: str, receipt: str) -> LegSettledAnswer:
        return self._run(LEG_SETTLED, leg, tx=transaction, how=how, receipt=receipt).answer

    def refused(self, leg: LegKey, code: str, *, certain: bool = False) -> LegRefusedAnswer:
        return self._run(LEG_REFUSED, leg, code=code, certain="1" if certain else "").answer

    def unknown(self, leg: LegKey, token: str, cause: str, transaction: str) -> None:
        delays = spaced(LEG_RETRY_US)
        self._run(LEG_UNKNOWN, leg, token=token, cause=cause, tx=transaction, delay_list=delays)

    def wait(self, leg: LegKey, delays_us: Sequence[int]) -> None:
        """Schedules the next check of a refused leg, later each time."""
        self._scripts.run(
            LEG_WAIT,
            money=self._money(leg),
            id=leg.id,
            number=leg.number,
            kind=leg.kind,
            delay_list=spaced(delays_us),
        )

    def next_ordinal(self, leg: LegKey, dead: int) -> LegAgainAnswer:
        """Moves on to the next ordinal after the chain has shown that this one can never land."""
        return self._run(LEG_AGAIN, leg, dead=dead, confirmed=CONFIRM_US).answer

    def retry(self, leg: LegKey) -> LegAgainAnswer:
        """Signs anew under the same nonce, at the operator's request."""
        return self._run(LEG_AGAIN, leg, dead="", confirmed=CONFIRM_US).answer

    # Reading

    def get(self, leg: LegKey) -> Leg | None:
        values = self._read(
            self._money(leg), [leg_field(leg.number, leg.kind, name) for name in STORED_FIELDS]
        )
        raw = {name: value for name, value in zip(STORED_FIELDS, values, strict=True) if value is not None}
        return Leg.read(leg, raw) if "state" in raw else None

    def fee_legs(self, wallet: str) -> list[Leg]:
        """All legs ever made for a wallet's fees."""
        count = int(self.client.hget(self.keys.fees(wallet), "count") or 0)
        found = (self.get(LegKey(LegKind.FEE, wallet, number)) for number in range(1, count + 1))
        return [leg for leg in found if leg is not None]

    def refund_facts(self, leg: LegKey) -> RefundFacts:
        names = ["payer", "key", "tx", "refund reason"]
        fields = [payment_field(leg.number, name) for name in names]
        found = self._read(self.keys.money(leg.id), [*fields, "contract"])
        payer, key, payment, reason, contract = (value or "" for value in found)
        parts = PaymentKey.parse(key)
        digest: Any = self.client.hget(self.keys.contract(contract), "hash") or b""
        return RefundFacts(payer, key, payment, parts.network, parts.asset, reason, digest.decode())

    def receipts(self, id: str, number: int) -> list[RefundRecord]:
        """Refunds of a payment, oldest first."""
        leg = self.get(LegKey(LegKind.REFUND, id, number))
        if leg is None:
            return []
        earlier = [self._earlier(id, number, ordinal) for ordinal in range(leg.ordinal)]
        found = [receipt for receipt in earlier if receipt is not None]
        if leg.state is LegState.SETTLED:
            found.append(RefundRecord(leg.ordinal, leg.amount, leg.transaction, leg.how, leg.receipt))
        return found

    def _earlier(self, id: str, number: int, ordinal: int) -> RefundRecord | None:
        """None for an ordinal that was skipped because its authorization could never land."""
        names = [refunded_field(number, ordinal, name) for name in ("amount", "tx", "how", "receipt")]
        amount, tx, how, signed = self._read(self.keys.money(id), names)
        return (
            None if amount is None else RefundRecord(ordinal, int(amount), tx or "", how or "", signed or "")
        )

    def _read(self, key: str, names: Sequence[str]) -> list[str | None]:
        found: Any = self.client.hmget(key, names)
        return [None if value is None else value.decode() for value in found]

    def _run(self, script: Script[A], leg: LegKey, **arguments: Arg) -> Reply[A]:
        return self._scripts.run(
            script, money=self._money(leg), id=leg.id, number=leg.number, kind=leg.kind, **arguments
        )

    def _money(self, leg: LegKey) -> str:
        """Key of the hash that holds the leg."""
        return self.keys.fees(leg.id) if leg.kind is LegKind.FEE else self.keys.money(leg.id)
