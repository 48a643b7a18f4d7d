"""`worker money`: reports, and the few decisions about money that only an operator makes."""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from functools import partial

from worker.cli.money_found import add_arguments, all_lines, decide, found_lines
from worker.cli.money_unknown import unknown_lines
from worker.cli.target import add_command, settings_with_key
from worker.cli.terminal import table
from worker.core.amounts import to_atomic, to_text
from worker.core.errors import BadRequest
from worker.core.logs import configure
from worker.engine.events import iso
from worker.parts import Parts
from worker.payments.attention import attention
from worker.payments.journal import GROUPS
from worker.payments.leg import LegState
from worker.payments.refunds import REASONS
from worker.payments.report import Totals, imbalances, read_line


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `money` and its commands. Each sets `handler`: arguments in, exit code out."""
    money = subparsers.add_parser(
        "money", help="payments claimed and settled, fees and refunds owed and paid"
    )
    commands = money.add_subparsers(dest="money_command", required=True, metavar="COMMAND")
    command = partial(add_command, commands)

    report = command("report", run_report, "sums, and whether they balance (exit code 1 if not)")
    report.add_argument("--by", choices=GROUPS, help="a line each, not one for all")
    report.add_argument("--csv", action="store_true", help="for a spreadsheet")
    command("unknown", run_unknown, "payments, legs and transfers that wait for an answer or for you")
    found = command(
        "found", run_found, "money that no payment explains: list it, or bind, refund or dismiss it"
    )
    add_arguments(found)
    resolve = command("resolve", run_resolve, "resolve a payment whose outcome is unknown")
    resolve.add_argument("execution", metavar="EXECUTION", help="its id, as `unknown` shows it")
    resolve.add_argument("number", type=int, metavar="NUMBER", help="which of its payments")
    outcome = resolve.add_mutually_exclusive_group(required=True)
    outcome.add_argument("--settled", metavar="HASH", help="the transaction, which the chain must confirm")
    outcome.add_argument("--refused", action="store_true", help="it can no longer settle")
    refund = command("refund", run_refund, "refund a payment, or retry a refused refund")
    refund.add_argument("execution", metavar="EXECUTION", help="the id of what was paid for")
    refund.add_argument("--number", type=int, help="which payment (default: the one that bought the work)")
    refund.add_argument("--amount", help="USDC (default: all that is left)")
    refund.add_argument(
        "--reason",
        choices=REASONS,
        default="quality_rejected",
        help="shown in the receipt (default: quality_rejected)",
    )
    fees = command("fees", run_fees, "platform fees by wallet: gathering, owed, paid")
    fees.add_argument("--retry", action="store_true", help="retry refused fee legs")
    journal = command("journal", run_journal, "all journal entries, oldest first")
    journal.add_argument("execution", nargs="?", metavar="EXECUTION", help="of one execution, with receipts")


def _parts(args: argparse.Namespace) -> Parts:
    settings = settings_with_key(args.state, os.environ)
    configure(settings)  # standard output is for the report only
    return Parts(settings, "cli")


# report


def run_report(args: argparse.Namespace) -> int:
    """0 when the sums balance, 1 when they do not."""
    parts = _parts(args)
    found = parts.journal.snapshot()
    if args.by:
        grouped = found.books.grouped(parts.journal.grouping(args.by, found.books))
        _table(args.by, grouped, as_csv=args.csv)
    else:
        _table("all", {"all": found.books.totals()}, as_csv=args.csv)
    wrong = imbalances(found.books, found.counters, found.gathered)
    for line in found.books.strays:
        print(f"note: {line.fact} {line.id} {line.number} {line.detail}", file=sys.stderr)
    for subject, text in attention(parts.leg_books, parts.audit_book, parts.listings).items():
        print(f"note: {subject}: {text}", file=sys.stderr)
    for each in wrong:
        print(f"does not balance: {each}", file=sys.stderr)
    if not wrong:
        print("balanced: claimed = settled + refused + released + open", file=sys.stderr)
        print("balanced: settled = kept + fees + refunds", file=sys.stderr)
    return 1 if wrong else 0


def _table(what: str, groups: dict[str, Totals], *, as_csv: bool) -> None:
    names = Totals.names()
    rows = [[what, *names]]
    for name, totals in groups.items():
        amounts = [_usdc(getattr(totals, column)) for column in names[1:]]
        rows.append([name, str(totals.payments), *amounts])
    if as_csv:
        csv.writer(sys.stdout).writerows(rows)
        return
    print("\n".join(table(rows[0], rows[1:], right=names)))


def _usdc(amount: int) -> str:
    return to_text(amount) if amount >= 0 else f"-{to_text(-amount)}"


# unknown, resolve


def run_unknown(args: argparse.Namespace) -> int:
    """0 when nothing is pending, 1 when something is."""
    parts = _parts(args)
    lines = list(unknown_lines(parts.unresolved, parts.journal.snapshot().books))
    for line in lines:
        print(line)
    if not lines:
        print("nothing is unknown, refused or unexplained", file=sys.stderr)
    return 1 if lines else 0


def run_found(args: argparse.Namespace) -> int:
    """0 when no decision is pending or the decision was made."""
    parts = _parts(args)
    if args.transaction:
        print(decide(parts, args))
        return 0
    if args.bind or args.refund or args.dismiss:
        raise BadRequest("name the transfer's transaction", field="TRANSACTION")
    for line in all_lines(parts):
        print(line)
    return 1 if any(found_lines(parts.unresolved)) else 0


def run_resolve(args: argparse.Namespace) -> int:
    parts = _parts(args)
    if args.settled:
        outcome = parts.resolutions.settled(args.execution, args.number, args.settled)
        print(f"settled: {outcome}")
    else:
        print(f"refused: {parts.resolutions.refused(args.execution, args.number)}")
    return 0


# refund, fees, journal


def run_refund(args: argparse.Namespace) -> int:
    parts = _parts(args)
    amount = None if args.amount is None else to_atomic(args.amount, field="--amount")
    print(parts.refunds.owe(args.execution, args.number, amount, args.reason))
    return 0


def run_fees(args: argparse.Namespace) -> int:
    parts = _parts(args)
    found = parts.journal.snapshot()
    for wallet in sorted({*found.books.fees_by_wallet, *found.gathered}):
        legs = parts.leg_books.fee_legs(wallet)
        paid = sum(leg.amount for leg in legs if leg.state is LegState.SETTLED)
        owed = sum(leg.amount for leg in legs if leg.state is not LegState.SETTLED)
        gathering = found.gathered.get(wallet, 0)
        print(f"{wallet}  gathering {to_text(gathering)}  owed {to_text(owed)}  paid {to_text(paid)}")
        for leg in legs:
            more = leg.transaction or leg.code or leg.cause
            print(f"  {leg.name.number}  {to_text(leg.amount)}  {leg.state}  {more}".rstrip())
            if args.retry and leg.state is LegState.REFUSED:
                print(parts.refunds.retry(leg.name))
    if not found.books.fees_by_wallet and not found.gathered:
        print("no platform fees: no settled contract has asked for one", file=sys.stderr)
    return 0


def _nothing_booked(parts: Parts, execution: str | None) -> str:
    if execution is None:
        return "nothing is booked yet: nobody has paid"
    if parts.store.get(execution) is None:
        return f"there is no execution {execution[:64]}, and no money under that id"
    return f"no money was ever booked for {execution[:64]}: nobody paid for it"


def _of_execution(parts: Parts, id: str) -> Iterator[str]:
    execution = parts.store.get(id)
    return parts.journal.lines_of(id, execution.created if execution else 0)


def run_journal(args: argparse.Namespace) -> int:
    parts = _parts(args)
    booked = _of_execution(parts, args.execution) if args.execution else parts.journal.lines()
    lines = list(map(read_line, booked))
    if not lines:
        print(_nothing_booked(parts, args.execution), file=sys.stderr)
    for line in lines:
        amount = to_text(line.amount)
        print(f"{iso(line.at)}  {line.fact}  {line.id}  {line.number}  {amount}  {line.detail}")
    money = parts.ledger.money(args.execution) if args.execution else None
    for payment in money.payments if money else ():
        for receipt in parts.leg_books.receipts(args.execution, payment.number):
            print(f"refund receipt {payment.number}.{receipt.ordinal}: {receipt.signed or '(none)'}")
    return 0
