"""Money that arrived without a payment in the ledger: what it can only be for, or a line on a list.

A store that lost its last second has forgotten who paid. A transfer that is exactly what one open
contract asks for, from its seeker and after it was made, pays that contract; any other waits for the
operator.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.contracts.terms import parse_terms
from worker.errors import Problem
from worker.executions.scripts import Arg
from worker.executions.states import Phase, State
from worker.payments.chain import Transfer
from worker.payments.ledger import Ledger
from worker.payments.legs import leg_payload, leg_requirements
from worker.payments.networks import Network
from worker.payments.stored import Stored
from worker.payments.typed_data import Authorization, keccak

MOST_LISTED = 10_000
MOST_LOOKED_AT_AGAIN = 500
_WAITING = frozenset({Phase.OFFERED, Phase.PAYMENT_DUE})
_UNSIGNED = bytes(65)


@dataclass(frozen=True, slots=True)
class FoundTransfer:
    """One line of the list. `outcome` is `listed`, or what the money was bound to."""

    transaction: str
    log_index: int
    block: int
    time_us: int
    payer: str
    amount: int
    nonce: str
    outcome: str


@dataclass(frozen=True, slots=True)
class FoundPayment:
    """Money that waits for its contract's seeker: to be claimed as it stands, then recorded as settled."""

    key: str
    payload: str
    transaction: str


@dataclass(frozen=True, slots=True)
class _Open:
    """Something that waits for money: an execution, or a contract that none was made for yet."""

    id: str
    contract_ref: str
    created: int
    execution: bool


_Wanted = tuple[str, int]


@dataclass
class FoundMoney(Stored):
    """Binds found money and keeps the list."""

    ledger: Ledger
    network: Network

    @property
    def _list(self) -> tuple[str, str]:
        return f"{self.keys.prefix}:found", f"{self.keys.prefix}:found:about"

    def bind(self, transfers: Sequence[Transfer]) -> list[tuple[str, int, str]]:
        """(execution, number, transaction) of what was bound and is now to be recorded as settled."""
        if not transfers:
            return []
        waiting = self._waiting()
        bound = []
        for transfer in transfers:
            of_its_kind = waiting.get((transfer.payer, transfer.amount), [])
            # A block's time is whole seconds.
            younger = [
                each for each in of_its_kind if transfer.time_us >= each.created // 1_000_000 * 1_000_000
            ]
            only = younger[0] if len(younger) == 1 else None
            number = self._found(transfer, only)
            if only is not None and number:
                bound.append((only.id, number, transfer.tx_hash))
        return bound

    def list_only(self, transfer: Transfer) -> None:
        """Money with a payment in the ledger that does not fit it: only the operator can judge that."""
        self._run(transfer, None, "odd")

    def listed(self) -> list[FoundTransfer]:
        """All found money, oldest first."""
        by_time, about = self._list
        names: Any = self.client.zrange(by_time, 0, -1)
        lines: Any = self.client.hmget(about, names) if names else []
        return [_parse(line.decode()) for line in lines if line is not None]

    def unclaimed(self) -> list[Transfer]:
        """The newest signed transfers that no execution has; one may be claimed by its seeker meanwhile."""
        newest = self.listed()[-MOST_LOOKED_AT_AGAIN:]
        return [
            Transfer(
                *(each.transaction, each.log_index, each.block, each.time_us, each.payer),
                pay_to="",
                amount=each.amount,
                nonce=each.nonce,
            )
            for each in newest
            if each.nonce != "-" and not each.outcome.startswith("execution ")
        ]

    def waiting_for(self, contract_ref: str) -> FoundPayment | None:
        """What the seeker of this contract has paid already, as the chain shows."""
        names = ["found_key", "found", "found_tx", "execution"]
        found: Any = self.client.hmget(self.keys.contract(contract_ref), names)
        if found[0] is None or found[3] is not None:
            return None
        return FoundPayment(*(value.decode() for value in found[:3]))

    def _found(self, transfer: Transfer, only: _Open | None) -> int:
        reply = self._run(transfer, only)
        if reply[0] == b"taken":
            reply = self._run(transfer, None)
        return int(reply[1]) if reply[0] == b"bound" else 0

    def _run(self, transfer: Transfer, only: _Open | None, mode: str = "list") -> list[bytes]:
        authorization = _authorization(transfer)
        requirements = leg_requirements(authorization, self.network, 600)
        payload = leg_payload(authorization, _UNSIGNED, requirements)
        key = self.key(transfer.payer, authorization.nonce)
        id, ref = "-", "-"
        if only is not None:
            id, mode, ref = only.id, "execution" if only.execution else "contract", only.contract_ref
        name = f"{transfer.tx_hash} {transfer.log_index}"
        where = f"{name} {transfer.block} {transfer.time_us}"
        line = f"{where} {transfer.payer} {transfer.amount} {transfer.nonce or '-'}"
        args: list[Arg] = [
            id,
            mode,
            name,
            line,
            transfer.time_us,
            MOST_LISTED,
            transfer.payer,
            transfer.amount,
        ]
        args += [key, _json(payload), _json(requirements), authorization.valid_before, transfer.tx_hash]
        keys = [self.keys.contract(ref), self.keys.payment(key), *self._list, self.keys.contracts]
        reply: list[bytes] = self._scripts("found", [*self.keys.transition(id), *keys], args)
        return reply

    def key(self, payer: str, nonce: str) -> str:
        """The payment key of an authorization that moved money on our network."""
        return "/".join((self.network.caip2, self.network.asset, payer, nonce)).lower()

    # What waits for money

    def _waiting(self) -> Mapping[_Wanted, list[_Open]]:
        found: dict[_Wanted, list[_Open]] = defaultdict(list)
        for wanted, each in (*self._executions(), *self._contracts()):
            found[wanted].append(each)
        return found

    def _executions(self) -> Iterable[tuple[_Wanted, _Open]]:
        ids: list[str] = []
        for state in (State.PENDING, State.RUNNING, State.BLOCKED):
            members: Any = self.client.zrange(self.keys.by_state(state), 0, -1)
            ids += [member.decode() for member in members]
        with self.client.pipeline(transaction=False) as pipe:
            for id in ids:
                pipe.hmget(self.keys.record(id), ["phase", "contract"])
            records = pipe.execute()
        for id, (phase, contract) in zip(ids, records, strict=True):
            if contract is None or phase.decode() not in _WAITING:
                continue
            money = self.ledger.money(id)
            payment = money.payment() if money and not money.paid else None
            created: Any = self.client.hget(self.keys.contract(contract.decode()), "created")
            if payment is not None and created is not None:
                yield (payment.payer, payment.amount), _Open(id, contract.decode(), int(created), True)

    def _contracts(self) -> Iterable[tuple[_Wanted, _Open]]:
        names: Any = self.client.zrange(self.keys.contracts, 0, -1)
        with self.client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hmget(name, ["document", "execution", "found"])
            contracts = pipe.execute()
        for name, (document, execution, found) in zip(names, contracts, strict=True):
            if document is None or execution is not None or found is not None:
                continue
            try:
                terms = parse_terms(json.loads(document))
            except Problem:
                continue
            ref = name.decode().rpartition(":")[2]
            yield (terms.seeker_wallet.lower(), terms.price), _Open(ref, ref, terms.created_at, False)


def _authorization(transfer: Transfer) -> Authorization:
    """What moved the money; a plain transfer gets a nonce that follows from where it stands."""
    place = f"{transfer.tx_hash}/{transfer.log_index}".encode()
    return Authorization(
        payer=transfer.payer,
        to=transfer.pay_to,
        value=transfer.amount,
        valid_after=0,
        valid_before=transfer.time_us // 1_000_000,
        nonce=transfer.nonce or "0x" + keccak(place).hex(),
    )


def _parse(line: str) -> FoundTransfer:
    tx, index, block, time_us, payer, amount, nonce, outcome = line.split(" ", 7)
    return FoundTransfer(tx, int(index), int(block), int(time_us), payer, int(amount), nonce, outcome)


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"))
