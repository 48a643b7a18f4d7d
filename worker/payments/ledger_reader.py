"""Reads payments from the ledger; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker.engine import record
from worker.engine.record import Execution
from worker.payments.money_store import MoneyStore
from worker.payments.packed_payment import SentPayment
from worker.payments.payment import Bought, ExecutionMoney
from worker.store.client import as_bytes, as_mapping, as_texts
from worker.store.commands import ask_together
from worker.store.money_fields import payment_field


@dataclass(frozen=True, slots=True)
class Reading:
    """An execution, its money and the length of its log, read at one moment."""

    execution: Execution
    money: ExecutionMoney
    sequence: int

    @classmethod
    def of(cls, recorded: Mapping[str, bytes], booked: Mapping[str, bytes], sequence: int) -> Reading:
        money = ExecutionMoney.read({name: value.decode() for name, value in booked.items()})
        return cls(record.from_mapping(recorded), money, int(sequence))


@dataclass
class LedgerReader(MoneyStore):
    """Reads the ledger, one round trip per method."""

    def money(self, id: str) -> ExecutionMoney | None:
        found = as_mapping(self.client.hgetall(self.keys.money(id)))
        raw = {name: value.decode() for name, value in found.items()}
        return ExecutionMoney.read(raw) if raw else None

    def read(self, id: str) -> Reading | None:
        """An execution with its money, read together: separate reads could contradict each other."""
        with self.client.pipeline(transaction=True) as pipe:
            pipe.hgetall(self.keys.record(id))
            pipe.hgetall(self.keys.money(id))
            pipe.llen(self.keys.log(id))
            recorded, booked, sequence = pipe.execute()
        if not recorded or not booked:
            return None
        return Reading.of(as_mapping(recorded), as_mapping(booked), sequence)

    def unchanged(self, contract_ref: str, known: Reading) -> bool:
        """Whether this is still the contract's ended execution, and its only payment as it was read.

        Its audit may find another transaction, and the operator may refund it.
        """
        id = known.execution.id
        fields = ("count", *(payment_field(1, name) for name in ("tx", "proof", "refund state")))
        execution, ended, (count, tx, proof, refund) = ask_together(
            self.client,
            ("HGET", self.keys.contract(contract_ref), "execution"),
            ("HGET", self.keys.record(id), "ended"),
            ("HMGET", self.keys.money(id), *fields),
        )
        if execution != id.encode() or int(ended or 0) != known.execution.ended:
            return False
        stored = tuple((each or b"").decode() for each in (tx, proof, refund))
        payments = known.money.payments
        return int(count or 0) == len(payments) == 1 and stored == (
            payments[0].transaction,
            payments[0].proof,
            payments[0].refund,
        )

    def contract_ref(self, id: str) -> str:
        return as_bytes(self.client.hget(self.keys.money(id), "contract") or b"").decode()

    def input_ref(self, id: str) -> bytes:
        """Reference to the file that holds the execution's input, if any."""
        return as_bytes(self.client.hget(self.keys.record(id), "input_ref") or b"")

    def payload(self, id: str, number: int) -> tuple[str, str]:
        """What is sent to the facilitator: the stored payment and our requirements."""
        names = [payment_field(number, name) for name in ("payload", "requirements", "key")]
        payload, requirements, key = self.client.hmget(self.keys.money(id), names)
        sent = SentPayment(
            as_bytes(payload or b"{}").decode(),
            as_bytes(requirements or b"{}").decode(),
            as_bytes(key or b"").decode(),
        ).plain()
        return sent.payload, sent.requirements

    def due(self, at: int, most: int = 50) -> list[str]:
        """Executions whose money is due for attention."""
        found = self.client.zrangebyscore(self.keys.open_payments, "-inf", at, start=0, num=most)
        return as_texts(found)

    def binding(self, payment_key: str) -> str:
        """Execution and number; past its retention also the fields of `Bought`. Empty for an unknown key."""
        return as_bytes(self.client.get(self.keys.payment(payment_key)) or b"").decode()

    def _binding(self, payment_key: str) -> list[str]:
        return self.binding(payment_key).split()

    def bound(self, payment_key: str) -> tuple[str, int] | None:
        """The execution and number bound to a payment key."""
        words = self._binding(payment_key)
        return (words[0], int(words[1])) if words else None

    def bought(self, payment_key: str) -> Bought | None:
        """What a payment bought, when its execution is past its retention; None otherwise."""
        return Bought.read(self._binding(payment_key))

    def sums(self) -> dict[str, int]:
        return {name: int(value) for name, value in as_mapping(self.client.hgetall(self.keys.sums)).items()}
