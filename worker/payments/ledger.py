"""The ledger: every payment ever claimed, its outcome, and who may act on it now.

One hash per execution, one journal over all. Only scripts check and write.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from worker.contracts.packed_document import pack_document
from worker.engine.creation import NewExecution
from worker.payments.answers import (
    CLAIM,
    REPAY,
    SETTLE_BEGIN,
    SETTLE_DOUBTED,
    SETTLE_REFUSED,
    SETTLE_UNKNOWN,
    SETTLED,
    UNPARK,
    VERIFIED,
    VERIFY_REFUSED,
    ClaimAnswer,
    RepayAnswer,
    SettleBeginAnswer,
    SettledAnswer,
    SettleDoubtedAnswer,
    SettleRefusedAnswer,
    UnparkAnswer,
    VerifiedAnswer,
    VerifyRefusedAnswer,
)
from worker.payments.claim import Claim
from worker.payments.ledger_reader import LedgerReader, Reading
from worker.payments.packed_payment import SentPayment, pack_response
from worker.payments.retry_delays import RETRY_US, SECOND_US, spaced
from worker.payments.safe_writes import SafeWrites
from worker.payments.settlement_lease import (
    SETTLE_LEASE_US,
    ClaimedPayment,
    SettlementLease,
    renewed_before,
)
from worker.store.client import as_bytes
from worker.store.commands import Word, checked
from worker.store.data_version import PACKED, all_have
from worker.store.money_fields import payment_field
from worker.store.outage import note
from worker.store.scripts import Arg, Reply, Value, read_reply

# Delay between a reported settlement and its audit against the chain.
AUDIT_US = 5 * SECOND_US
SEALED_WAITS_US = 24 * 3600 * SECOND_US
# Delay before a lease that was given back, because no replica had it, is requested again.
NO_REPLICA_US = SECOND_US
# A payment was refused, which dropped the input, but it landed after all.
_INPUT_DUE = (
    b'{"error":"the payment has arrived; please send the input again","code":"INVALID_INPUT",'
    b'"details":{},"retryable":true}'
)


@dataclass(frozen=True, slots=True)
class SettledReply:
    """What became of the execution whose payment has settled; `reading` if that completed it."""

    answer: SettledAnswer
    lane: str = ""
    reading: Reading | None = None


@dataclass
class Ledger(LedgerReader):
    """The ledger in the store. `audited`: a node is configured, and the clock proves settlements."""

    audited: bool = field(default=False, kw_only=True)

    safe: SafeWrites = field(default=None, kw_only=True)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.safe = self.safe or SafeWrites(
            self.client, self.keys, apart=self.client, test_clock=self.test_clock
        )

    def claim_values(
        self, new: NewExecution, claim: Claim, fields: Mapping[str, Arg], created: bytes
    ) -> dict[str, Value]:
        """What `claim` needs. `fields` of the record; `created`: the payload of its first event."""
        return claim.values(
            new,
            fields,
            created,
            indexes=self._indexes(new),
            document=self._document(claim),
            writer=self.safe.name,
        )

    def claim(
        self, values: Mapping[str, Value], *, verified: bool = False, waits: bool = False
    ) -> Reply[ClaimAnswer]:
        """Binds the payment to the contract and creates the execution.

        `verified`: the facilitator would settle it, and the request `waits` here for short work that is paid
        for afterwards. `claimed` comes with the payment's number, '1' where the claim may be relied on, and
        '1' where the work has begun.
        """
        said = ("1" if waits else "0") if verified else ""
        reply, replicated = self.safe.make(CLAIM, **values, verified=said)
        if reply.answer is ClaimAnswer.CLAIMED:
            number, begun = reply.values[0], reply.values[4]
            return Reply(reply.answer, [number, b"1" if replicated else b"", begun])
        return reply

    def order_queue(self, id: str, waiting: str, *append: tuple[Word, ...]) -> None:
        """Moves an execution that these commands append to a list of waiting work to its proper place."""
        self._scripts.send_together(*append, self._scripts.call("order_queue", id=id, waiting_list=waiting))

    def verified(self, id: str, number: int, *, waits: bool = False) -> tuple[VerifiedAnswer, str]:
        """`waits`: the request that claimed it waits in this process."""
        reply = self._scripts.run(VERIFIED, id=id, number=number, waits="1" if waits else "")
        return reply.answer, reply.text()

    def verified_in_queue(
        self, id: str, number: int, waiting: str, *append: tuple[Word, ...], waits: bool
    ) -> tuple[VerifiedAnswer, str]:
        """The same, and `order_queue`, in one round trip. The clock finds work whose message is lost."""
        verified = self._scripts.call(VERIFIED.name, id=id, number=number, waits="1" if waits else "")
        order = self._scripts.call("order_queue", id=id, waiting_list=waiting)
        recorded, *queued = self._scripts.send_each(verified, *append, order)
        for error in queued:
            if isinstance(error, Exception):  # it must not hide the record
                note(error, "queue.push", execution_id=id)
                break
        reply = read_reply(VERIFIED, checked([recorded])[0])
        return reply.answer, reply.text()

    def verify_refused(self, id: str, number: int, code: str) -> tuple[VerifyRefusedAnswer, str]:
        """Returns the answer, and the reference of the input file that the record no longer refers to."""
        reply = self._scripts.run(
            VERIFY_REFUSED, id=id, number=number, code=code, contract=self.contract_ref(id)
        )
        return reply.answer, reply.text()

    def forget_unpaid(self, id: str) -> str:
        """Drops the input of work that ended before it began; returns its file's reference."""
        return as_bytes(self._scripts.value("forget_unpaid", id=id, contract=self.contract_ref(id))).decode()

    def ask_again(self, id: str, number: int, question: str) -> int:
        delays = spaced(RETRY_US)
        return int(
            self._scripts.value("ask_again", id=id, number=number, question=question, delay_list=delays)
        )

    def settle_begin(self, id: str, token: str, *, looks: bool = True) -> SettlementLease | None:
        """`looks`: the caller has a chain; a refusal waits for a caller that does."""
        asked_at = time.monotonic()
        reply, replicated = self.safe.make(
            SETTLE_BEGIN,
            id=id,
            token=token,
            lease=SETTLE_LEASE_US,
            writer=self.safe.name,
            chain="1" if looks else "",
        )
        if reply.answer is not SettleBeginAnswer.GO:
            return None
        number, _, _, _, payload, requirements, payer, unknown, maybe, *rest = reply.values
        refusal, refused, named, contract = rest
        return SettlementLease(
            number=int(number),
            token=token,
            payload=payload,
            requirements=requirements,
            payer=payer.decode(),
            renew_at=renewed_before(asked_at),
            earlier_unknown=unknown == b"1",
            may_have_landed=maybe == b"1",
            refusal=refusal.decode(),
            refused_us=int(refused or 0),
            named=named.decode(),
            replicated=replicated,
            contract_ref=contract.decode(),
        )

    def lease_with_seal(self, payment: ClaimedPayment, told: bytes, sealed_after: float) -> SettlementLease:
        """The lease that came with the seal; lua/_hooks.lua says what was told of it."""
        _, writes, life = told.decode().split(" ")
        self.safe.wrote(life, int(writes))
        return SettlementLease.with_seal(payment, sealed_after)

    def settle_back(self, id: str, number: int, token: str, *, pause_us: int = NO_REPLICA_US) -> None:
        """Returns a lease with which no call was made; nobody has another one during the pause."""
        self._scripts.value("settle_back", id=id, number=number, token=token, pause=pause_us)

    def settle_renew(self, id: str, number: int, token: str) -> bool:
        renewed = self._scripts.value(
            "settle_renew", id=id, number=number, token=token, lease=SETTLE_LEASE_US
        )
        return bool(renewed)

    def settled(
        self,
        id: str,
        number: int,
        transaction: str,
        response: str,
        how: str,
        *,
        packed: SentPayment | None = None,
        contract_ref: str = "",
        by_claimant: bool = False,
    ) -> SettledReply:
        """`packed`: what was sent about the payment, and `contract_ref`, if the caller has them.

        `by_claimant`: for the request that claimed it, which the end need not be told then.
        """
        stored = pack_response(response, packed.key, transaction) if packed else response
        reply = self._scripts.run(
            SETTLED,
            id=id,
            number=number,
            tx=transaction,
            payload=packed.payload if packed else "",
            requirements=packed.requirements if packed else "",
            response=stored,
            how=how,
            audit=AUDIT_US if self.audited else "",
            contract=contract_ref or self.contract_ref(id),
            claimant="1" if by_claimant else "",
            problem=_INPUT_DUE,
        )
        if reply.answer is not SettledAnswer.COMPLETED:
            return SettledReply(reply.answer, reply.text())
        sequence, recorded, booked = reply.values
        money, name = _pairs(booked), payment_field(number, "response")
        if money.get(name) == stored.encode():
            money[name] = response.encode()  # as it was before it was packed
        return SettledReply(reply.answer, reading=Reading.of(_pairs(recorded), money, sequence))

    @cached_property
    def packs(self) -> bool:
        """Whether no process is left that cannot read the short forms."""
        return all_have(self.client, self.keys, PACKED)

    def _indexes(self, new: NewExecution) -> list[str]:
        indexes = self.keys.indexes_of_hire if self.packs else self.keys.indexes
        return indexes(new.agent, new.door, new.labels)

    def _document(self, claim: Claim) -> str:
        if claim.document and self.packs:
            return pack_document(claim.document, claim.document_hash)
        return claim.document

    def settle_refused(
        self, id: str, number: int, code: str, response: str, *, by_chain: bool = False
    ) -> SettleRefusedAnswer:
        return self._scripts.run(
            SETTLE_REFUSED,
            id=id,
            number=number,
            code=code,
            response=response,
            waits=SEALED_WAITS_US,
            by_chain="1" if by_chain else "",
        ).answer

    def settle_unknown(
        self, id: str, number: int, token: str, cause: str, transaction: str, *, may_have_landed: bool
    ) -> None:
        self._scripts.run(
            SETTLE_UNKNOWN,
            id=id,
            number=number,
            token=token,
            cause=cause,
            tx=transaction,
            delay_list=spaced(RETRY_US),
            maybe="1" if may_have_landed else "",
        )

    def settle_doubted(self, id: str, number: int, token: str, code: str) -> SettleDoubtedAnswer:
        """Records a refusal that must first be checked against the chain."""
        delays = spaced((0, *RETRY_US))
        return self._scripts.run(
            SETTLE_DOUBTED, id=id, number=number, token=token, code=code, delay_list=delays
        ).answer

    def unpark(
        self, id: str, digest: str, input: bytes, input_ref: bytes, context: bytes
    ) -> tuple[UnparkAnswer, str]:
        reply = self._scripts.run(
            UNPARK, id=id, digest=digest, input=input, input_ref=input_ref, context=context
        )
        return reply.answer, reply.text()

    def repay(self, id: str) -> RepayAnswer:
        return self._scripts.run(REPAY, id=id).answer


def _pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    """A hash from a script's flat reply."""
    return {flat[at].decode(): flat[at + 1] for at in range(0, len(flat), 2)}
