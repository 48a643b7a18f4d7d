"""The overview: what needs a human, what happens now, and money."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Blueprint, Response, request

from worker.core.states import State
from worker.doors.dashboard_attention import attention
from worker.doors.dashboard_charts import BarChart, stacked
from worker.doors.dashboard_format import Format
from worker.doors.dashboard_view import DashboardView
from worker.engine.activity import Bucket, success_rate
from worker.engine.events import iso
from worker.engine.listing import Filter
from worker.payments.journal import newest_days
from worker.payments.report import Totals

_HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """How far back the chart of executions looks."""

    name: str
    hours: int
    buckets: int

    def around(self, now: int) -> tuple[int, int]:
        """From when until when, so that a bucket begins at a full half hour, or the like."""
        width = self.hours * _HOUR_US // self.buckets
        until = (now // width + 1) * width
        return until - self.hours * _HOUR_US, until


STRETCHES = {
    each.name: each for each in (Stretch("day", 24, 48), Stretch("week", 168, 56), Stretch("month", 720, 60))
}
_NEWEST = 8
_DAYS = 30


def add(blueprint: Blueprint, view: DashboardView) -> None:
    @blueprint.get("/", strict_slashes=False)
    def overview() -> Response:
        services = view.services
        now = services.store.now()
        show = Format(now)
        stretch = STRETCHES.get(request.args.get("over", ""), STRETCHES["day"])
        buckets = services.activity.over_time(*stretch.around(now), stretch.buckets)
        found, queue = services.journal.snapshot(), services.queue_status.read()
        days = newest_days(found.books, now, _DAYS)
        return view.page(
            "overview",
            items=attention(view, found, queue, show),
            stretches=STRETCHES,
            stretch=stretch,
            total=sum(each.total for each in buckets),
            rate=success_rate(buckets),
            buckets=buckets,
            chart=_executions_chart(buckets, stretch),
            counts=services.activity.counts(),
            recent=services.activity.recent(),
            queue=queue,
            connected=services.connection_list.connected(),
            today=[*days.values()][-1],
            month=_sum(days),
            days=days,
            money_chart=money_chart(days),
            newest=services.executions.page(Filter(), limit=_NEWEST).executions,
        )


def _executions_chart(buckets: list[Bucket], stretch: Stretch) -> BarChart:
    part = slice(11, 16) if stretch.hours == 24 else slice(5, 10)
    order = (State.COMPLETED, State.FAILED, State.CANCELLED, State.RUNNING, State.BLOCKED, State.PENDING)
    return stacked(
        [iso(each.since)[part] for each in buckets],
        {state: [each.counts[state] for each in buckets] for state in order},
    )


def money_chart(groups: dict[str, Totals]) -> BarChart:
    """Settled and open money by group, in cents."""
    return stacked(
        [name[5:] for name in groups],
        {
            "settled": [totals.settled // 10_000 for totals in groups.values()],
            "open": [totals.open // 10_000 for totals in groups.values()],
        },
        unit=" (cents)",
    )


def _sum(days: dict[str, Totals]) -> Totals:
    whole = Totals()
    for totals in days.values():
        for name in Totals.names():
            setattr(whole, name, getattr(whole, name) + getattr(totals, name))
    return whole
