"""A chain in memory that answers evidence queries like a node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.payments.chain import MICROSECONDS, Authorization, ChainProof, ChainUnavailable, Head, Transfer
from worker.payments.standing import Round, Standing, Wanted

ASSET = "0x036cbd53842c5426634e7929541ec2318f3dcf7e"


class NotAccepted(Exception):
    """The contract would have reverted."""


@dataclass(frozen=True)
class _Cancelled:
    tx_hash: str
    block: int


class MemoryChain:
    """Blocks hold one event each. `down` makes every query fail; `confirmations` works as with a node.

    `asked` is called before every query.
    """

    def __init__(
        self, *, asset: str = ASSET, confirmations: int = 0, time_us: int = 1_800_000_000_000_000
    ) -> None:
        self.down = False
        self.asked: Callable[[], None] = lambda: None
        self.asset = asset.lower()
        self.confirmations = confirmations
        self.proof_blocks = 0
        self.rounds = 0
        # Transactions that the node knows but that are in no block yet.
        self.waiting: set[str] = set()
        self._times = [time_us]
        self._balances: dict[str, int] = {}
        self._used: set[tuple[str, str]] = set()
        self._transfers: list[Transfer] = []
        self._cancelled: dict[tuple[str, str], _Cancelled] = {}

    # Activity on the chain

    def mine(self, blocks: int = 1, *, seconds: int = 2) -> int:
        """Adds empty blocks, each so many seconds after the last; returns the newest one's number."""
        for _ in range(blocks):
            self._times.append(self._times[-1] + seconds * MICROSECONDS)
        return len(self._times) - 1

    def mint(self, address: str, amount: int) -> None:
        self._balances[address.lower()] = self._held(address) + amount

    def transfer(self, payer: str, pay_to: str, amount: int) -> str:
        """A plain transfer, without an authorization."""
        return self._move(payer, pay_to, amount, None)

    def settle(self, authorization: Authorization, pay_to: str, amount: int) -> str:
        """Settles a signed authorization, as a facilitator does."""
        key = self._spend(authorization)
        tx_hash = self._move(key[0], pay_to, amount, key[1])
        self._used.add(key)
        return tx_hash

    def cancel(self, authorization: Authorization) -> str:
        key = self._spend(authorization)
        self._used.add(key)
        block = self.mine()
        self._cancelled[key] = _Cancelled(self._hash(block), block)
        return self._cancelled[key].tx_hash

    def _spend(self, authorization: Authorization) -> tuple[str, str]:
        key = (authorization[0].lower(), authorization[1].lower())
        if key in self._used:
            raise NotAccepted("authorization is used or canceled")
        return key

    def _move(self, payer: str, pay_to: str, amount: int, nonce: str | None) -> str:
        if self._held(payer) < amount:
            raise NotAccepted("transfer amount exceeds balance")
        self._balances[payer.lower()] = self._held(payer) - amount
        self._balances[pay_to.lower()] = self._held(pay_to) + amount
        block = self.mine()
        index = 0 if nonce is None else 1
        place = (self._hash(block), index, block, self._times[block])
        self._transfers.append(Transfer(*place, payer.lower(), pay_to.lower(), amount, nonce))
        return self._hash(block)

    def catch_up(self, time_us: int) -> None:
        """Adds a block with this time unless the newest is at least as recent."""
        if time_us > self._times[-1]:
            self._times.append(time_us)

    def is_used(self, authorization: Authorization) -> bool:
        return (authorization[0].lower(), authorization[1].lower()) in self._used

    def received(self, payer: str, pay_to: str) -> int:
        """How much this payer's authorizations have transferred to that address."""
        return sum(
            each.amount
            for each in self._transfers
            if each.payer == payer.lower() and each.pay_to == pay_to.lower()
        )

    def _held(self, address: str) -> int:
        return self._balances.get(address.lower(), 0)

    def _hash(self, block: int) -> str:
        return "0x" + hashlib.sha256(f"transaction in block {block}".encode()).hexdigest()

    # Queries

    def _listening(self) -> int:
        self.asked()
        if self.down:
            raise ChainUnavailable
        return max(0, len(self._times) - 1 - self.confirmations)

    def head(self) -> Head:
        number = self._listening()
        return Head(number, self._times[number])

    def block_at(self, time_us: int) -> int:
        head = self._listening()
        return next((n for n, time in enumerate(self._times[: head + 1]) if time >= time_us), head + 1)

    def balance(self, address: str) -> int:
        self._listening()
        return self._held(address)

    def transfer_of(
        self, authorization: Authorization, pay_to: str, amount: int, asset: str, from_block: int
    ) -> ChainProof | None:
        head = self._listening()
        for transfer in self._transfers:
            if from_block <= transfer.block <= head and self._proves(
                transfer, authorization, pay_to, amount, asset
            ):
                return ChainProof(transfer.tx_hash, transfer.block, transfer.time_us)
        return None

    def authorization_cancelled(self, authorization: Authorization, from_block: int) -> ChainProof | None:
        head = self._listening()
        found = self._cancelled.get((authorization[0].lower(), authorization[1].lower()))
        if found is None or not from_block <= found.block <= head:
            return None
        return ChainProof(found.tx_hash, found.block, self._times[found.block])

    def transfers_to(self, pay_to: str, from_block: int, to_block: int) -> list[Transfer]:
        if to_block > self._listening():
            raise ChainUnavailable("the node has not seen the last requested block", received=to_block)
        wanted = range(from_block, to_block + 1)
        return [each for each in self._transfers if each.pay_to == pay_to.lower() and each.block in wanted]

    def confirm(
        self, tx_hash: str, authorization: Authorization, pay_to: str, amount: int, asset: str
    ) -> ChainProof | None:
        found = self.transfer_of(authorization, pay_to, amount, asset, 0)
        return found if found is not None and found.tx_hash == tx_hash.lower() else None

    def standings(self, wanted: Sequence[Wanted]) -> Round:
        number = self._listening()
        self.rounds += 1
        proven = max(0, number - self.proof_blocks)
        heads = Head(number, self._times[number]), Head(proven, self._times[proven])
        return Round(*heads, [self._standing(each) for each in wanted])

    def _standing(self, wanted: Wanted) -> Standing:
        who = (wanted.payer, wanted.nonce)
        first = self.block_at(wanted.since_us)
        mined = any(each.tx_hash == wanted.named for each in self._transfers)
        return Standing(
            landed=self.transfer_of(who, wanted.pay_to, wanted.amount, wanted.asset, first),
            cancelled=self.authorization_cancelled(who, first),
            used=self.is_used(who),
            known=mined or wanted.named in self.waiting,
        )

    def undo(self, tx_hash: str) -> None:
        """A reorganisation: the transaction was never mined."""
        (gone,) = (each for each in self._transfers if each.tx_hash == tx_hash)
        self._transfers.remove(gone)
        self._used.discard((gone.payer, str(gone.nonce)))
        self._balances[gone.payer] += gone.amount
        self._balances[gone.pay_to] -= gone.amount

    def _proves(
        self, transfer: Transfer, authorization: Authorization, pay_to: str, amount: int, asset: str
    ) -> bool:
        payer, nonce = authorization
        wanted = (payer.lower(), nonce.lower(), pay_to.lower(), amount, self.asset)
        return wanted == (transfer.payer, transfer.nonce, transfer.pay_to, transfer.amount, asset.lower())
