"""Contract operations for seekers: draft, register, look up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.contracts.book import Contract, ContractBook
from worker.engine.service import Executions
from worker.hiring.refusals import no_contract


@dataclass(frozen=True)
class ContractService:
    """The contract book for the hire door.

    `check_room` refuses new contracts while the store is full; `has_paid` tells whether a wallet has paid.
    """

    book: ContractBook
    executions: Executions
    check_room: Callable[[], None]
    has_paid: Callable[[str], bool]

    def sign(self, draft: Mapping[str, Any], network: str) -> dict[str, Any]:
        return self.book.sign(draft, network)

    def register(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._view(self.book.register(document))

    def show(self, contract_id: str) -> dict[str, Any]:
        contract = self.book.find(contract_id)
        if contract is None:
            raise no_contract()
        return self._view(contract)

    def seeker_wallet(self, contract_id: str) -> str:
        """The wallet that may pay for the contract; '' if the contract is unknown."""
        contract = self.book.remembered(contract_id) or self.book.find(contract_id)
        return contract.terms.seeker_wallet if contract else ""

    def _view(self, contract: Contract) -> dict[str, Any]:
        state = "SIGNED"
        if contract.execution is not None:
            ended = self.executions.get(contract.execution).state.terminal
            state = "COMPLETED" if ended else "EXECUTING"
        return {"state": state, "contract": contract.document, "hash": contract.hash}
