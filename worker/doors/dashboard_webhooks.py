"""Webhooks: hosts that fail, what waits for its next attempt, the newest deliveries, and sending again."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response

from worker.core.errors import NotFound
from worker.delivery.outbound import redact
from worker.delivery.outbox import Notice, NoticeHistory
from worker.delivery.webhooks import hooks_of
from worker.doors.answers import whole
from worker.doors.dashboard_view import DashboardView
from worker.engine.listing import Filter

_EXAMINED, _SHOWN = 200, 25


@dataclass(frozen=True, slots=True)
class Delivery:
    """The attempts of one notice, and where they went."""

    history: NoticeHistory
    url: str


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/webhooks")
    def webhooks() -> Response:
        outbox = view.services.outbox
        pending = outbox.pending()
        newest = view.services.executions.page(Filter(), limit=_EXAMINED).executions
        ids = dict.fromkeys([*(each.execution for each in pending), *(each.id for each in newest)])
        having = outbox.having([*ids])[:_SHOWN]
        return view.page(
            "webhooks",
            hosts=outbox.failing(),
            pending=len(pending),
            deliveries=[each for id in having for each in deliveries(view, id)],
        )

    @blueprint.post("/webhooks")
    def resend() -> Response:
        id, kind = view.execution_id(), view.text("kind", required=True, most=40)
        hook = whole(view.text("hook", required=True, most=4), 0)
        view.services.executions.get(id)
        with view.change("resend webhook", f"execution {id}", f"{kind} to webhook {hook}") as change:
            if " " in kind or not view.services.outbox.resend(Notice(id, kind, hook)):
                raise NotFound("there is no such notice")
            change.outcome = "done: queued for delivery"
        return view.back_with(change)


def deliveries(view: DashboardView, id: str) -> list[Delivery]:
    """All notices of an execution."""
    found = view.services.executions.many([id])
    urls = [redact(hook.url) for hook in hooks_of(found[0])] if found else []
    return [
        Delivery(each, urls[each.notice.hook] if each.notice.hook < len(urls) else "")
        for each in view.services.outbox.journal(id)
    ]
