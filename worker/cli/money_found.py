"""`worker money found`: transfers without a payment in the ledger, and three decisions about them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from worker.core.amounts import to_text
from worker.core.errors import NotFound
from worker.core.ids import is_id
from worker.engine.events import iso
from worker.parts import Parts
from worker.payments.found import FoundTransfer
from worker.payments.unresolved import UnresolvedMoney


def add_arguments(found: argparse.ArgumentParser) -> None:
    found.add_argument("transaction", nargs="?", metavar="TRANSACTION", help="decide about this transfer")
    found.add_argument("--log-index", type=int, help="which transfer, where the transaction has several")
    decision = found.add_mutually_exclusive_group()
    decision.add_argument("--bind", metavar="ID", help="it pays for this execution, or for this contract")
    decision.add_argument("--refund", action="store_true", help="refund it to its payer")
    decision.add_argument("--dismiss", action="store_true", help="it is not from a seeker")


def found_lines(unresolved: UnresolvedMoney) -> Iterator[str]:
    """One line per transfer that needs a decision."""
    return map(_line, unresolved.transfers())


def all_lines(parts: Parts) -> Iterator[str]:
    """One line per transfer, decided or not."""
    return map(_line, parts.found.listed())


def decide(parts: Parts, args: argparse.Namespace) -> str:
    """Applies the operator's decision; returns what happened to the money."""
    decisions = parts.found_decisions
    listed = decisions.find(args.transaction, args.log_index)
    if args.refund:
        decisions.refund(listed)
        return f"{to_text(listed.amount)} USDC refund to {listed.payer} queued"
    if args.dismiss:
        decisions.dismiss(listed)
        return "dismissed"
    if args.bind is None:
        return _line(listed)
    if is_id(args.bind):
        return f"settled: {decisions.bind_to_execution(listed, args.bind)}"
    contract = parts.book.find(args.bind)
    if contract is None:
        raise NotFound("no execution and no contract has this id")
    decisions.bind_to_contract(listed, contract)
    return "bound: the seeker's next request gets the work without another payment"


def _line(found: FoundTransfer) -> str:
    which = f"found  {found.transaction} {found.log_index}  {to_text(found.amount)}"
    return f"{which}  from {found.payer}  {iso(found.time_us)}  {found.outcome}"
