"""Executions: lists with filters, and a page each with its timeline, its contents and what may be done."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, request

from worker.core.errors import BadRequest, Conflict
from worker.core.states import State
from worker.delivery.outbound import redact
from worker.delivery.webhooks import hooks_of
from worker.doors.dashboard_timeline import timeline
from worker.doors.dashboard_view import DashboardView
from worker.doors.pages import MOST_OUTPUT
from worker.engine.events import Event
from worker.engine.failure_causes import failure_causes
from worker.engine.listing import Filter, Page
from worker.engine.record import Execution
from worker.payments.refunds import REASONS
from worker.remote.signals import STEP_APPROVE
from worker.remote.waits import open_waits
from worker.store.outage import note

PAGE = 50
DOORS = ("hire", "buy", "swarm", "kernel", "cli")
_FILTERS = ("status", "agent", "door", "label", "contract")
_MOST_EVENTS = 1_000


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/executions")
    def executions() -> Response:
        given = {name: request.args.get(name, "").strip() for name in _FILTERS}
        page = _page(view, given, request.args.get("cursor", ""))
        more = {name: value for name, value in given.items() if value} | {"cursor": page.next_cursor}
        return view.page(
            "executions",
            given=given,
            executions=page.executions,
            briefs=view.services.payment_briefs.of([each.id for each in page.executions]),
            next=urlencode(more) if page.next_cursor else "",
            first=not request.args.get("cursor"),
            states=[*State],
            doors=DOORS,
            agents=sorted(view.services.catalog.all()),
        )

    @blueprint.get("/executions/<id>")
    def execution(id: str) -> Response:
        shown = _shown(view, view.services.executions.get(id))
        seen = shown["more_events"] + len(shown["events"])
        return view.page("execution", live=f"/executions/{id}/stream?seen={seen}", **shown)

    @blueprint.post("/executions/<id>")
    def decide_execution(id: str) -> Response:
        actions = {"cancel": _cancel, "signal": _signal, "approve": _approve, "deny": _approve}
        action = actions.get(view.text("action"))
        if action is None:
            raise BadRequest("this is no decision about an execution", field="action", expected=[*actions])
        return action(view, view.services.executions.get(id).id)


def _page(view: DashboardView, given: dict[str, str], cursor: str) -> Page[Execution]:
    services = view.services
    if given["contract"]:
        contract = services.contract_list.get(given["contract"])
        found = services.executions.many([contract.execution]) if contract and contract.execution else []
        return Page(found, "")
    if given["status"] and given["status"] not in tuple(State):
        raise BadRequest("this is no state", field="status", expected=[*State])
    name, _, value = given["label"].partition(":")
    labels = ((name.strip(), value.strip()),) if name else ()
    wanted = Filter(given["status"], given["agent"], given["door"], labels)
    return services.executions.page(wanted, cursor=cursor, limit=PAGE)


def _shown(view: DashboardView, execution: Execution) -> dict[str, Any]:
    services = view.services
    events = services.executions.events(execution.id, limit=_MOST_EVENTS)
    blocked = execution.state is State.BLOCKED
    return {
        "execution": execution,
        "events": events,
        "more_events": services.executions.last_sequence(execution.id) - len(events),
        "drawn": timeline(events, services.store.now()),
        "waits": open_waits(services.remote_store, execution.id) if blocked else [],
        "approvals": view.approvals(execution.id) if blocked else {},
        "causes": failure_causes(services.store.steps(execution.id)),
        "input": _content(lambda: services.executions.input(execution)),
        "output": _content(lambda: _output(view, execution)),
        "files": _files(view, execution),
        "said": _said(events),
        "money": services.ledger.money(execution.id),
        "receipts": services.leg_books.receipts,
        "hooks": [redact(hook.url) for hook in hooks_of(execution)],
        "notices": services.outbox.journal(execution.id),
        "reasons": REASONS,
    }


def _content(read: Any) -> Any:
    """An input or output; one whose file cannot be read must not hide the rest of the page."""
    try:
        return read()
    except Exception as error:  # a file's store may raise anything
        note(error, "dashboard.content")
        return "(cannot be read now)"


def _output(view: DashboardView, execution: Execution) -> Any:
    if execution.output_bytes > MOST_OUTPUT:
        return f"({execution.output_bytes:,} bytes: too long for this page, see the deliverables)"
    return view.services.executions.output(execution)


def _files(view: DashboardView, execution: Execution) -> list[dict[str, Any]]:
    """Deliverables with their addresses; the seeker's rules say when they open."""
    if execution.state is State.COMPLETED and execution.result:
        return view.services.deliverables.shown(execution).deliverables
    return [] if execution.state.terminal else view.services.deliverables.ready(execution)


def _said(events: list[Event]) -> str:
    return "".join(str(event.data().get("text", "")) for event in events if event.kind == "output.chunk")


def _cancel(view: DashboardView, id: str) -> Response:
    reason = view.text("reason", most=500) or "cancelled by the operator"
    with view.change("cancel", f"execution {id}", reason) as change:
        view.services.executions.cancel(id, reason)
    return view.back_with(change)


def _signal(view: DashboardView, id: str) -> Response:
    kind, text = view.text("signal", required=True, most=256), view.text("payload") or "null"
    payload = view.json(text, "payload")
    with view.change("signal", f"execution {id}", f"{kind} {text}") as change:
        view.services.executions.signal(id, kind, payload)
    return view.back_with(change)


def _approve(view: DashboardView, id: str) -> Response:
    approved, step = view.text("action") == "approve", view.text("step", required=True, most=256)
    reason = view.text("reason", required=not approved, most=500)
    decision = {"step_id": step, "approved": approved, **({"reason": reason} if reason else {})}
    waiting = {wait.ref: wait.tool for wait in open_waits(view.services.remote_store, id)}
    with view.change(
        "approve" if approved else "deny", f"execution {id}", f"{waiting.get(step, step)} {reason}"
    ) as change:
        if step not in waiting:
            raise Conflict("this step does not wait any more", advice="Look at its events.")
        view.services.executions.signal(id, STEP_APPROVE, decision)
    return view.back_with(change)
