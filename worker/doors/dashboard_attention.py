"""What needs a human, most urgent first, each with the place or the button that settles it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from worker.core.states import State
from worker.doors.dashboard_format import Format
from worker.doors.dashboard_view import DashboardView
from worker.doors.ops import CLOCK_SECONDS
from worker.payments.journal import Snapshot
from worker.payments.leg import LegKind
from worker.queue.queue_status import QueueStatus
from worker.remote.waits import APPROVAL, OpenWait, open_waits

# Of each kind this many are listed; the page behind has them all.
MOST = 5


@dataclass(frozen=True, slots=True)
class Button:
    """A form with one button; `where` is under the dashboard."""

    label: str
    where: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to look at. `level` is bad or warn."""

    level: str
    title: str
    detail: str
    where: str
    button: Button | None = field(default=None)


def attention(view: DashboardView, found: Snapshot, queue: QueueStatus, show: Format) -> list[Item]:
    """Money first, then what waits for a decision, then what is about to break."""
    items = [
        *_payments(view, found, show),
        *_transfers(view, show),
        *_approvals(view, show),
        *_processes(view, queue, show),
        *_legs(view, show),
        *_webhooks(view, show),
        *(Item("warn", "Listing", text, "/agents") for text in view.services.listings.warnings()),
        *_doctor(view),
    ]
    return sorted(items, key=lambda item: item.level != "bad")


def _payments(view: DashboardView, found: Snapshot, show: Format) -> Iterator[Item]:
    titles = {"unknown": "Unknown payment", "unproven": "Unproven payment", "presumed": "Presumed payment"}
    waiting = [each for each in view.services.unresolved.payments(found.books) if each.standing in titles]
    for each in waiting[:MOST]:
        row = each.row
        level = "warn" if each.standing == "presumed" else "bad"
        detail = f"{show.usd(row.amount)} USDC of {show.short(row.payer)}, claimed {show.ago(row.claimed_at)}"
        yield Item(level, titles[each.standing], detail, f"/money#payment-{row.id}-{row.number}")
    if len(waiting) > MOST:
        yield Item(
            "bad", "More payments", f"{len(waiting) - MOST} more wait for an answer", "/money#unresolved"
        )


def _transfers(view: DashboardView, show: Format) -> Iterator[Item]:
    transfers = view.services.unresolved.transfers()
    for each in transfers[:MOST]:
        detail = f"{show.usd(each.amount)} USDC from {show.short(each.payer)}, {show.ago(each.time_us)}"
        yield Item("bad", "Money that no payment explains", detail, "/money#found")
    if len(transfers) > MOST:
        yield Item("bad", "More found money", f"{len(transfers) - MOST} more transfers", "/money#found")


def _approvals(view: DashboardView, show: Format) -> Iterator[Item]:
    services = view.services
    blocked = services.store.page(services.store.keys.by_state(State.BLOCKED), cursor=None, most=50)
    waits = [(wait, at) for id, at in blocked for wait in open_waits(services.remote_store, id)]
    wanted = [(wait, at) for wait, at in waits if wait.reason == APPROVAL]
    for wait, at in wanted[:MOST]:
        where = f"/executions/{wait.execution}"
        fields = {"action": "approve", "step": wait.ref, "back": "/dashboard"}
        arguments, whole = _arguments(view, wait, show)
        detail = f"{arguments} for {show.short(wait.execution)}, created {show.ago(at)}"
        button = Button("Approve", where, fields) if whole else None
        yield Item("warn", f"Approval of {wait.tool}", detail, where, button)
    if len(wanted) > MOST:
        yield Item("warn", "More approvals", f"{len(wanted) - MOST} more wait", "/executions?status=blocked")


def _arguments(view: DashboardView, wait: OpenWait, show: Format) -> tuple[str, bool]:
    """With what the tool would be called, and whether that is all of it: nobody approves unseen."""
    asked = view.approvals(wait.execution).get(wait.ref, {})
    if "arguments" not in asked or "arguments_omitted" in asked:
        return "long arguments", False
    line = show.line(asked["arguments"])
    return line, not line.endswith("…")


def _processes(view: DashboardView, queue: QueueStatus, show: Format) -> Iterator[Item]:
    newest = min((each.age_us for each in queue.clocks), default=None)
    if newest is None or newest > CLOCK_SECONDS * 1e6:
        yield Item(
            "bad", "No clock ticks", "nothing is sold, and nothing that breaks is finished", "/settings"
        )
    idle = [lane for lane in ("express", "queue") if not queue.processes[lane]]
    if idle:
        detail = f"no process takes work from: {', '.join(idle)}"
        yield Item("bad", "Work stands still", detail, "/executions?status=pending")
    if sum(queue.depths.values()) >= view.services.settings.queue_limit:
        yield Item("bad", "The queue is full", "new work is refused", "/executions?status=pending")
    elif queue.oldest_us > 60_000_000:
        detail = f"the oldest has waited {show.seconds(queue.oldest_us)}"
        yield Item("warn", "Work waits long", detail, "/executions?status=pending")


def _legs(view: DashboardView, show: Format) -> Iterator[Item]:
    legs = view.services.unresolved.legs()
    for each in [leg for leg in legs if leg.keeps_failing][:MOST]:
        detail = f"{show.usd(each.amount)} USDC: {each.code or each.cause or each.state}"
        yield Item("bad", f"A {each.name.kind} keeps failing", detail, "/money#legs")
    due = [leg for leg in legs if leg.name.kind is LegKind.REFUND and not leg.keeps_failing]
    if due:
        detail = f"{show.usd(sum(leg.amount for leg in due))} USDC, on their way by themselves"
        yield Item("warn", f"{len(due)} refund{'s' if len(due) > 1 else ''} due", detail, "/money#legs")


def _webhooks(view: DashboardView, show: Format) -> Iterator[Item]:
    hosts = view.services.outbox.failing()
    for each in hosts[:MOST]:
        detail = f"{each.failures} failed since {show.when(each.since)}, the last {show.ago(each.last)}"
        yield Item("warn", f"Webhooks to {each.host} fail", detail, "/webhooks")
    if len(hosts) > MOST:
        yield Item("warn", "More webhooks fail", f"{len(hosts) - MOST} more hosts", "/webhooks")


def _doctor(view: DashboardView) -> Iterator[Item]:
    for each in view.services.doctor_record.read().troubles:
        # Unknown: a hosted store hides it; nobody can do anything about that.
        if each.level != "unknown" and each.name != "money":
            level = "bad" if each.level == "wrong" else "warn"
            yield Item(
                level, f"Doctor: {each.name}", f"{each.found}; expected: {each.expected}", "/settings#doctor"
            )
