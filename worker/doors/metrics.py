"""Renders `/metrics`: work, money, latency, and the kernel API's own metric names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from worker.core.states import State
from worker.doors import kernel_metrics
from worker.doors.prometheus import family, histograms
from worker.doors.services import OpsServices
from worker.store.request_counts import LATENCIES_US

# Our metric families by name: kind and help. A test checks the alert rules and the dashboard against it.
FAMILIES = {
    "worker_executions_total": ("counter", "Executions by what became of them."),
    "worker_resets_total": ("counter", "Running executions that were queued again, by reason."),
    "worker_bugs_total": ("counter", "Errors that no outage explains, by where they were met."),
    "worker_storage_errors_total": ("counter", "Files that could not be stored or read."),
    "worker_http_requests_total": ("counter", "Requests answered."),
    "worker_facilitator_failures_total": ("counter", "Calls that the facilitator did not answer properly."),
    "worker_revenue_units_total": ("counter", "Settled for an agent's work, in millionths of a dollar."),
    "worker_settlements_total": ("counter", "Settled payments for an agent's work."),
    "worker_executions": ("gauge", "Executions in the store by state."),
    "worker_queue_depth": ("gauge", "Ids waiting in a lane."),
    "worker_queue_age_seconds": ("gauge", "How long the oldest queued execution has waited."),
    "worker_clock_age_seconds": ("gauge", "Time since any clock ticked."),
    "worker_money_units": ("gauge", "Sums of the ledger by what became of them, in millionths of a dollar."),
    "worker_payments_open": ("gauge", "Payments that have not ended."),
    "worker_payments_unknown": ("gauge", "Settlements whose outcome is not known yet."),
    "worker_settlements_to_prove": ("gauge", "Settlements that the chain has not proven yet."),
    "worker_settlements_unproven": ("gauge", "Settlements that never landed, as the chain shows."),
    "worker_listing": ("gauge", "Whether the catalog lists a capability: 1 yes, 0 undecided, -1 rejected."),
    "worker_listing_last_settlement_seconds": ("gauge", "Time since a capability was paid for."),
    "worker_webhooks_failing": ("gauge", "Hosts that have refused webhooks within the last day."),
    "worker_legs_failing": ("gauge", "Refunds and fees that keep failing."),
}
HISTOGRAMS = {
    "worker_http_request_seconds": ("request", "endpoint", "Time until a request's answer begins."),
    "worker_queue_wait_seconds": ("wait", "lane", "Time from being queued to being taken."),
    "worker_run_seconds": ("run", "agent", "Time of one run of an agent."),
}
# Hosts whose webhooks were given up are forgotten only with the next one.
_DAY_US = 24 * 3600 * 1_000_000
_SAMPLE = re.compile(r"([a-z_]+)(.*)", re.DOTALL)


def render(services: OpsServices) -> str:
    """All families in the Prometheus text format."""
    stats = services.store.stats()
    return "".join(f"{line}\n" for line in _lines(services, stats)) + kernel_metrics.render(
        stats, _active(services)
    )


def _lines(services: OpsServices, stats: Mapping[str, bytes]) -> Iterator[str]:
    rows: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for sample, value in sorted(_samples(services, stats).items()):
        found = _SAMPLE.fullmatch(sample)
        if found is not None:
            rows[found[1]].append((found[2], value))
    for name, samples in rows.items():
        yield from family(name, *FAMILIES.get(name, ("untyped", name)), samples)
    for name, (observed, label, text) in HISTOGRAMS.items():
        yield from family(name, "histogram", text, histograms(stats, observed, label, LATENCIES_US))


def _active(services: OpsServices) -> int:
    states = (State.PENDING, State.RUNNING, State.BLOCKED)
    return sum(services.store.count_in(state) for state in states)


def _samples(services: OpsServices, stats: Mapping[str, bytes]) -> dict[str, float]:
    samples: dict[str, float] = {
        name: int(value) for name, value in stats.items() if name.startswith("worker_")
    }
    for state in State:
        samples[f'worker_executions{{state="{state}"}}'] = services.store.count_in(state)
    samples['worker_queue_depth{lane="queue"}'] = len(services.queue)
    samples['worker_queue_depth{lane="express"}'] = services.store.express_length()
    oldest = services.store.oldest_queued()
    samples["worker_queue_age_seconds"] = max(0, services.store.now() - oldest) / 1e6 if oldest else 0
    age = services.store.clock_age()
    if age is not None:
        samples["worker_clock_age_seconds"] = age
    return samples | _money(services)


def _money(services: OpsServices) -> dict[str, float]:
    gauges = services.money_gauges
    samples: dict[str, float] = {
        f'worker_money_units{{kind="{kind}"}}': units for kind, units in gauges.sums().items()
    }
    to_prove, unproven = services.audit_book.counts()
    samples["worker_settlements_to_prove"] = to_prove
    samples["worker_settlements_unproven"] = unproven
    now = services.store.now()
    for each in services.listings.all().values():
        samples[f'worker_listing{{capability="{each.capability}"}}'] = each.level
        if each.settled:
            age_s = max(0, now - each.settled) // 1_000_000
            samples[f'worker_listing_last_settlement_seconds{{capability="{each.capability}"}}'] = age_s
    since = now - _DAY_US
    samples["worker_webhooks_failing"] = sum(each.last > since for each in services.outbox.failing())
    samples["worker_legs_failing"] = len(services.leg_books.failing())
    samples["worker_payments_open"] = gauges.open()
    samples["worker_payments_unknown"] = gauges.unknown()
    return samples
