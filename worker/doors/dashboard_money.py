"""Money: sums, what is unresolved with its evidence and the operator's decisions, reports, the chain."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Response, request

from worker.contracts.book import Contract
from worker.core.amounts import to_atomic
from worker.core.errors import BadRequest, Conflict, NotFound
from worker.core.ids import is_id
from worker.doors.answers import whole
from worker.doors.dashboard_charts import WIDE, BarChart, stacked
from worker.doors.dashboard_format import exact
from worker.doors.dashboard_view import DashboardView
from worker.payments.found import FoundTransfer
from worker.payments.journal import GROUPS, Snapshot
from worker.payments.leg import LegKey
from worker.payments.payment import Payment
from worker.payments.refunds import REASONS
from worker.payments.report import Totals, imbalances
from worker.payments.unresolved import UnresolvedPayment
from worker.queue.deferred_calls import REFUSED, SETTLED

MOST_GROUPS = 60
MOST_PAYMENTS = 50


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of an unresolved payment. `nonce`: its authorization's. `asked`: a decision under way."""

    unresolved: UnresolvedPayment
    payment: Payment | None
    nonce: str
    asked: str


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/money")
    def money() -> Response:
        services = view.services
        found = services.journal.snapshot()
        by = request.args.get("by", "day")
        by = by if by in GROUPS else "day"
        groups = _newest(by, grouped(view, found, by))
        unresolved = [*services.unresolved.payments(found.books)]
        asked = {call.subject: call.kind for call in services.deferred_calls.waiting()}
        return view.page(
            "money",
            totals=found.books.totals(),
            counters=found.counters,
            wrong=imbalances(found.books, found.counters, found.gathered),
            strays=found.books.strays,
            unresolved=[_evidence(view, each, asked) for each in unresolved[:MOST_PAYMENTS]],
            left_out=max(0, len(unresolved) - MOST_PAYMENTS),
            transfers=services.found_decisions.found.listed(),
            legs=services.unresolved.legs(),
            gathered=found.gathered,
            by=by,
            kinds=GROUPS,
            names=Totals.names(),
            groups=groups,
            chart=_chart(groups),
            compared=services.comparison_mark.standing(),
            held=bool(services.settings.rpc_url) and services.comparison_mark.comparison_pending(0) > 0,
            reasons=REASONS,
        )

    @blueprint.get("/money.csv")
    def report() -> Response:
        by = request.args.get("by", "day")
        if by not in GROUPS:
            raise BadRequest("this is no way to group payments", field="by", expected=[*GROUPS])
        found = view.services.journal.snapshot()
        text = as_csv(by, grouped(view, found, by))
        response = Response(text, mimetype="text/csv")
        response.headers["Content-Disposition"] = f'attachment; filename="money-by-{by}.csv"'
        response.headers["Cache-Control"] = "private, no-store"
        return response

    @blueprint.post("/money")
    def decide_money() -> Response:
        actions = {
            "settled": _resolve,
            "refused": _resolve,
            "refund": _refund,
            "retry": _retry,
            "bind": _found,
            "give back": _found,
            "dismiss": _found,
        }
        action = actions.get(view.text("action"))
        if action is None:
            raise BadRequest("this is no decision about money", field="action", expected=[*actions])
        return action(view)


def grouped(view: DashboardView, found: Snapshot, by: str) -> dict[str, Totals]:
    return found.books.grouped(view.services.journal.grouping(by, found.books))


def as_csv(by: str, groups: dict[str, Totals]) -> str:
    """The same columns as `worker money report --csv`."""
    names, out = Totals.names(), io.StringIO()
    writer = csv.writer(out)
    writer.writerow([by, *names])
    for name, totals in groups.items():
        writer.writerow([name, totals.payments, *(exact(getattr(totals, each)) for each in names[1:])])
    return out.getvalue()


def _newest(by: str, groups: dict[str, Totals]) -> dict[str, Totals]:
    """The newest days, or those who paid most; the CSV has them all."""
    if by == "day":
        return dict([*groups.items()][-MOST_GROUPS:])
    return dict(sorted(groups.items(), key=lambda each: -each[1].settled)[:MOST_GROUPS])


def _chart(groups: dict[str, Totals]) -> BarChart:
    def cents(name: str) -> list[int]:
        return [getattr(totals, name) // 10_000 for totals in groups.values()]

    columns = [name if len(name) <= 12 else f"{name[:6]}…{name[-3:]}" for name in groups]
    return stacked(
        columns, {name: cents(name) for name in ("settled", "open", "refused")}, width=WIDE, unit=" (cents)"
    )


def _evidence(view: DashboardView, each: UnresolvedPayment, asked: Mapping[str, str]) -> Evidence:
    services, row = view.services, each.row
    money = services.ledger.money(row.id)
    payment = money.payment(row.number) if money else None
    payload = json.loads(services.ledger.payload(row.id, row.number)[0]) if payment else {}
    authorization = payload.get("payload", {}).get("authorization", {})
    under_way = asked.get(_subject(row.id, row.number), "")
    return Evidence(each, payment, str(authorization.get("nonce", "")), under_way)


def _subject(id: str, number: int) -> str:
    return f"payment {number} of execution {id}"


def _number(view: DashboardView) -> int:
    number = whole(view.text("number", required=True, most=10), 0)
    if not number:
        raise BadRequest("this is no number of a payment", field="number", expected="1, 2, 3, ...")
    return number


def _resolve(view: DashboardView) -> Response:
    """Leaves the decision to the clock, which asks the chain first; the journal has its outcome."""
    id, number, action = view.execution_id(), _number(view), view.text("action")
    subject, transaction = _subject(id, number), view.text("transaction", most=80)
    money = view.services.ledger.money(id)
    if money is None or money.payment(number) is None:
        raise NotFound("there is no such payment")
    if action == "settled" and not transaction:
        raise BadRequest(
            "the transaction is missing", field="transaction", expected="its hash, 0x and 64 hex digits"
        )
    with view.change(f"resolve as {action}", subject, transaction) as change:
        who, calls = view.visitor.name, view.services.deferred_calls
        if any(call.subject == subject for call in calls.waiting()):
            raise Conflict(
                "a decision about this payment is under way", advice="Its answer will stand in the journal."
            )
        if action == "settled":
            calls.ask(SETTLED, who, subject, id=id, number=str(number), transaction=transaction)
        else:
            calls.ask(REFUSED, who, subject, id=id, number=str(number))
        change.outcome = "done: the clock asks the chain and then decides"
    return view.back_with(change)


def _refund(view: DashboardView) -> Response:
    id, reason, text = view.execution_id(), view.text("reason", required=True), view.text("amount", most=30)
    if reason not in REASONS:
        raise BadRequest("this is no reason for a refund", field="reason", expected=[*REASONS])
    amount = to_atomic(text, field="amount") if text else None
    with view.change("refund", f"execution {id}", f"{text or 'all that is left'}, {reason}") as change:
        change.outcome = f"done: {view.services.refunds.owe(id, _number(view), amount, reason)}"
    return view.back_with(change)


def _retry(view: DashboardView) -> Response:
    member = view.text("leg", required=True, most=200)
    try:
        leg = LegKey.parse(member)
    except ValueError:
        leg = None
    if leg is None:
        raise BadRequest("this is no leg", field="leg")
    with view.change("retry leg", member) as change:
        change.outcome = f"done: {view.services.refunds.retry(leg)}"
    return view.back_with(change)


def _found(view: DashboardView) -> Response:
    """Binds, gives back or dismisses a transfer that no payment explains."""
    decisions, action = view.services.found_decisions, view.text("action")
    transaction = view.text("transaction", required=True, most=80)
    listed = decisions.find(transaction, whole(view.text("log_index", required=True, most=10), 0))
    wanted = view.text("to", most=300) if action == "bind" else ""
    contract = _contract(view, wanted) if wanted and not is_id(wanted) else None
    # A contract's id is a credential, which whoever reads the journal must not get.
    detail = f"to contract {contract.ref}" if contract else wanted
    with view.change(f"{action} found money", f"transfer {transaction} {listed.log_index}", detail) as change:
        change.outcome = f"done: {_decided(view, listed, action, contract or wanted)}"
    return view.back_with(change)


def _contract(view: DashboardView, wanted: str) -> Contract:
    contract = view.services.book.find(wanted) or view.services.contract_list.get(wanted)
    if contract is None:
        raise NotFound("no execution and no contract has this id")
    return contract


def _decided(view: DashboardView, listed: FoundTransfer, action: str, to: Contract | str) -> str:
    decisions: Any = view.services.found_decisions
    if action == "dismiss":
        decisions.dismiss(listed)
        return "dismissed"
    if action == "give back":
        decisions.refund(listed)
        return f"{exact(listed.amount)} USDC refund to {listed.payer} queued"
    if isinstance(to, str):
        return f"settled: {decisions.bind_to_execution(listed, to)}"
    decisions.bind_to_contract(listed, to)
    return "bound: the seeker's next request gets the work without another payment"
