"""Lists of contracts: signed ones that wait for their payment, and those behind executions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from worker.contracts.book import Contract, ContractBook
from worker.core.errors import Problem
from worker.store.client import as_texts


@dataclass(frozen=True)
class ContractList:
    """Reads; the ids in the documents are credentials, so show references."""

    book: ContractBook

    def unpaid(self, most: int = 50) -> list[Contract]:
        """Signed contracts that nobody has paid for; the first to expire comes first."""
        names = as_texts(self.book.client.zrange(self.book.keys.contracts, 0, most - 1))
        return self.of(name.rpartition(":")[2] for name in names)

    def count_unpaid(self) -> int:
        return int(self.book.client.zcard(self.book.keys.contracts))

    def of(self, refs: Iterable[str]) -> list[Contract]:
        """The contracts with these references; unreadable and removed ones are left out."""
        found = (self.get(ref) for ref in refs)
        return [each for each in found if each is not None]

    def get(self, ref: str) -> Contract | None:
        try:
            return self.book.by_ref(ref)
        except Problem:
            return None
