"""Transfers without a payment in the ledger: bound to the one contract they fit, or listed.

A store that lost its last second has forgotten who paid. A transfer that matches exactly what one open
contract asks for, comes from its seeker and is younger than the contract, pays that contract; any other is
listed for the operator.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.contracts.book import Contract
from worker.contracts.packed_document import unpack_document
from worker.contracts.terms import parse_terms
from worker.core.errors import Problem
from worker.core.evm import keccak
from worker.core.states import Phase, State
from worker.payments.answers import (
    FOUND_FOR_CONTRACT,
    FOUND_FOR_EXECUTION,
    FOUND_LIST,
    FoundForContractAnswer,
    FoundForExecutionAnswer,
)
from worker.payments.chain import Transfer
from worker.payments.ledger import Ledger
from worker.payments.leg_authorization import leg_payload, leg_requirements
from worker.payments.money_store import MoneyStore
from worker.store.scripts import A, Arg, Reply, Script
from worker.x402.networks import Network
from worker.x402.payment_keys import PaymentKey
from worker.x402.typed_data import Authorization

MOST_LISTED = 10_000
MOST_LOOKED_AT_AGAIN = 500
_WAITING = frozenset({Phase.OFFERED, Phase.PAYMENT_DUE})
_UNSIGNED = bytes(65)
_FRESH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class FoundTransfer:
    """One entry of the list. `outcome`: `listed`, what it was bound to, or the operator's decision."""

    transaction: str
    log_index: int
    block: int
    time_us: int
    payer: str
    amount: int
    nonce: str
    outcome: str

    @property
    def is_open(self) -> bool:
        """Whether it may still become a contract's payment."""
        return self.outcome == "listed" or self.outcome.startswith("contract ")

    @property
    def needs_decision(self) -> bool:
        return self.outcome == "listed"


@dataclass(frozen=True, slots=True)
class FoundPayment:
    """Money waiting for its contract's seeker: to be claimed unchanged, then recorded as settled."""

    key: str
    payload: str
    transaction: str


@dataclass(frozen=True, slots=True)
class AwaitsMoney:
    """An open claim on money: an execution, or a contract that has no execution yet."""

    id: str
    contract_ref: str
    created: int
    execution: bool


@dataclass(frozen=True, slots=True)
class _Payment:
    """Ledger fields of a payment that only the chain shows."""

    key: str
    payload: str
    requirements: str
    valid_before: int


_Wanted = tuple[str, int]


@dataclass
class FoundMoney(MoneyStore):
    """Binds found money and keeps the list."""

    ledger: Ledger
    network: Network
    _looked_at: float = field(default=float("-inf"), init=False)
    _open: dict[_Wanted, int] = field(default_factory=dict, init=False)

    def bind(self, transfers: Sequence[Transfer]) -> list[tuple[str, int, str]]:
        """(execution, number, transaction) of each bound transfer, now to be recorded as settled."""
        if not transfers:
            return []
        waiting = self._waiting()
        bound = []
        for transfer in transfers:
            of_its_kind = waiting.get((transfer.payer, transfer.amount), [])
            # Block times are whole seconds.
            younger = [
                each for each in of_its_kind if transfer.time_us >= each.created // 1_000_000 * 1_000_000
            ]
            only = younger[0] if len(younger) == 1 else None
            number = self._found(transfer, only)
            if only is not None and number:
                bound.append((only.id, number, transfer.tx_hash))
        return bound

    def list_only(self, transfer: Transfer) -> None:
        """Lists money whose payment in the ledger does not fit it: only the operator can judge that."""
        self._list_found(transfer, misfit=True)

    def listed(self, newest: int = MOST_LISTED) -> list[FoundTransfer]:
        """Found money, oldest first."""
        names: Any = self.client.zrange(self.keys.found, -newest, -1)
        lines: Any = self.client.hmget(self.keys.found_about, names) if names else []
        return [_parse(line.decode()) for line in lines if line is not None]

    def unclaimed(self, pay_to: str) -> list[Transfer]:
        """The newest signed transfers without an execution; seekers may have claimed some meanwhile."""
        newest = self.listed(MOST_LOOKED_AT_AGAIN)
        return [
            Transfer(
                *(each.transaction, each.log_index, each.block, each.time_us, each.payer),
                pay_to=pay_to,
                amount=each.amount,
                nonce=each.nonce,
            )
            for each in newest
            if each.nonce and each.is_open
        ]

    def take_off(self, transfers: Iterable[Transfer]) -> None:
        """Removes transfers from the list that have become payments."""
        with self.client.pipeline(transaction=True) as pipe:
            for transfer in transfers:
                name, _ = _written(transfer)
                pipe.zrem(self.keys.found, name)
                pipe.hdel(self.keys.found_about, name)
            pipe.execute()

    def take(self, contract: Contract, payment_key: str) -> bool:
        """Binds a listed transfer to a contract without an execution whose seeker has shown its payment."""
        terms = contract.terms
        wanted = (terms.seeker_wallet.lower(), terms.price)
        for transfer in self.unclaimed(terms.worker_wallet.lower()):
            if self.key(transfer.payer, transfer.nonce or "") == payment_key:
                only = AwaitsMoney(contract.ref, contract.ref, terms.created_at, False)
                fits = (transfer.payer, transfer.amount) == wanted and contract.execution is None
                return fits and self.for_contract(transfer, only) is FoundForContractAnswer.WAITS
        return False

    def may_have_paid(self, contract: Contract) -> bool:
        """Whether a listed transfer matches this contract. Reads the list at most once a second."""
        now = time.monotonic()
        if now - self._looked_at > _FRESH_SECONDS:
            self._open = _newest(self.unclaimed(contract.terms.worker_wallet.lower()))
            self._looked_at = now
        terms = contract.terms
        moved = self._open.get((terms.seeker_wallet.lower(), terms.price), -1)
        return contract.execution is None and moved >= terms.created_at // 1_000_000 * 1_000_000

    def waiting_for(self, contract_ref: str) -> FoundPayment | None:
        """What the seeker of this contract has already paid, according to the chain."""
        names = ["found_key", "found", "found_tx", "execution"]
        found: Any = self.client.hmget(self.keys.contract(contract_ref), names)
        if found[0] is None or found[3] is not None:
            return None
        return FoundPayment(*(value.decode() for value in found[:3]))

    def _found(self, transfer: Transfer, only: AwaitsMoney | None) -> int:
        """The number of the payment it was bound to; 0 when it was listed, or waits for its seeker."""
        if only is None:
            self._list_found(transfer)
        elif not only.execution:
            if self.for_contract(transfer, only) is FoundForContractAnswer.TAKEN:
                self._list_found(transfer)
        else:
            reply = self.for_execution(transfer, only)
            if reply.answer is FoundForExecutionAnswer.BOUND:
                return int(reply.text())
            if reply.answer is FoundForExecutionAnswer.TAKEN:
                self._list_found(transfer)
        return 0

    def _list_found(self, transfer: Transfer, *, misfit: bool = False) -> None:
        key = self.key(transfer.payer, _authorization(transfer).nonce)
        self._scripts.run(FOUND_LIST, key=key, misfit="1" if misfit else "", **listing_of(transfer))

    def for_contract(self, transfer: Transfer, only: AwaitsMoney) -> FoundForContractAnswer:
        payment = self.payment_of(transfer)
        return self._scripts.run(
            FOUND_FOR_CONTRACT,
            contract=only.contract_ref,
            amount=transfer.amount,
            key=payment.key,
            payload=payment.payload,
            tx=transfer.tx_hash,
            **listing_of(transfer),
        ).answer

    def for_execution(self, transfer: Transfer, only: AwaitsMoney) -> Reply[FoundForExecutionAnswer]:
        payment = self.payment_of(transfer)
        return self._scripts.run(
            FOUND_FOR_EXECUTION,
            id=only.id,
            payer=transfer.payer,
            amount=transfer.amount,
            key=payment.key,
            payload=payment.payload,
            requirements=payment.requirements,
            valid_before=payment.valid_before,
            tx=transfer.tx_hash,
            **listing_of(transfer),
        )

    def run(self, script: Script[A], **given: Arg) -> Reply[A]:
        """Applies one of the operator's decisions."""
        return self._scripts.run(script, **given)

    def payment_of(self, transfer: Transfer) -> _Payment:
        """The payment as the ledger would hold it, had it been claimed."""
        authorization = _authorization(transfer)
        requirements = leg_requirements(authorization, self.network, 600)
        payload = leg_payload(authorization, _UNSIGNED, requirements)
        key = self.key(transfer.payer, authorization.nonce)
        return _Payment(key, _json(payload), _json(requirements), authorization.valid_before)

    def key(self, payer: str, nonce: str) -> str:
        """The payment key of an authorization that moved money on our network."""
        return str(PaymentKey(self.network.caip2, self.network.asset, payer, nonce))

    # Open claims on money

    def _waiting(self) -> Mapping[_Wanted, list[AwaitsMoney]]:
        found: dict[_Wanted, list[AwaitsMoney]] = defaultdict(list)
        for wanted, each in (*self._executions(), *self._contracts()):
            found[wanted].append(each)
        return found

    def _executions(self) -> Iterable[tuple[_Wanted, AwaitsMoney]]:
        ids: list[str] = []
        for state in (State.PENDING, State.RUNNING, State.BLOCKED):
            members: Any = self.client.zrange(self.keys.by_state(state), 0, -1)
            ids += [member.decode() for member in members]
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(self.keys.record(id), ["phase", "contract", "door"])
            records = pipe.execute()
        for id, (phase, contract, door) in zip(ids, records, strict=True):
            if contract is None or phase.decode() not in _WAITING:
                continue
            # A purchase without a contract has just one payment, and its payer may be unproven.
            if door == b"buy":
                continue
            money = self.ledger.money(id)
            payment = money.payment() if money and not money.paid else None
            created: Any = self.client.hget(self.keys.contract(contract.decode()), "created")
            if payment is not None and created is not None:
                yield (payment.payer, payment.amount), AwaitsMoney(id, contract.decode(), int(created), True)

    def _contracts(self) -> Iterable[tuple[_Wanted, AwaitsMoney]]:
        names: Any = self.client.zrange(self.keys.contracts, 0, -1)
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(name, ["document", "hash", "execution", "found"])
            contracts = pipe.execute()
        for name, (document, hash, execution, found) in zip(names, contracts, strict=True):
            if document is None or execution is not None or found is not None:
                continue
            try:
                terms = parse_terms(json.loads(unpack_document(document.decode(), hash.decode())))
            except Problem:
                continue
            ref = name.decode().rpartition(":")[2]
            yield (terms.seeker_wallet.lower(), terms.price), AwaitsMoney(ref, ref, terms.created_at, False)


def _newest(transfers: Iterable[Transfer]) -> dict[_Wanted, int]:
    """When each payer last sent each amount."""
    found: dict[_Wanted, int] = {}
    for each in transfers:
        wanted = each.payer, each.amount
        found[wanted] = max(each.time_us, found.get(wanted, -1))
    return found


def _authorization(transfer: Transfer) -> Authorization:
    """The authorization that moved the money; a plain transfer gets a nonce derived from its position."""
    place = f"{transfer.tx_hash}/{transfer.log_index}".encode()
    return Authorization(
        payer=transfer.payer,
        to=transfer.pay_to,
        value=transfer.amount,
        valid_after=0,
        valid_before=transfer.time_us // 1_000_000,
        nonce=transfer.nonce or "0x" + keccak(place).hex(),
    )


def _written(transfer: Transfer) -> tuple[str, str]:
    """A transfer's name in the list, and its line; the script appends the outcome."""
    name = f"{transfer.tx_hash} {transfer.log_index}"
    about = f"{transfer.block} {transfer.time_us} {transfer.payer} {transfer.amount} {transfer.nonce or '-'}"
    return name, f"{name} {about}"


def listing_of(transfer: Transfer) -> dict[str, Arg]:
    """Script arguments that list a transfer."""
    name, line = _written(transfer)
    return {"transfer": name, "line": line, "moved": transfer.time_us, "most": MOST_LISTED}


def _parse(line: str) -> FoundTransfer:
    """Inverse of `_written`; an unsigned transfer has no nonce."""
    tx, index, block, time_us, payer, amount, nonce, outcome = line.split(" ", 7)
    nonce = "" if nonce == "-" else nonce
    return FoundTransfer(tx, int(index), int(block), int(time_us), payer, int(amount), nonce, outcome)


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
