"""The kernel's metrics under Rebuno's names, for existing dashboards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from worker.doors.prometheus import family, histogram, histograms
from worker.store.request_counts import BUCKETS_US

_STATUSES = ("created", "completed", "failed", "cancelled")


def render(stats: Mapping[str, bytes], active: int) -> str:
    """All families in the Prometheus text format."""
    lines = [
        *family("rebuno_executions_total", "counter", "Executions by status.", _executions(stats)),
        *family("rebuno_intents_total", "counter", "Intents by type and decision.", _intents(stats)),
        *family("rebuno_active_executions", "gauge", "Executions that have not ended.", [("", active)]),
        *family(
            "rebuno_step_duration_seconds",
            "histogram",
            "Time from a step's creation to its success.",
            histograms(stats, "step", "tool_id", BUCKETS_US),
        ),
        *family(
            "rebuno_policy_eval_seconds",
            "histogram",
            "Duration of a tool policy decision.",
            histogram(stats, "policy", "", 'action="tool.invoke"', BUCKETS_US)
            if "policy count" in stats
            else (),
        ),
    ]
    return "".join(f"{line}\n" for line in lines)


def _executions(stats: Mapping[str, bytes]) -> Iterator[tuple[str, float]]:
    for status in _STATUSES:
        found = stats.get(f'worker_executions_total{{status="{status}"}}')
        if found is not None:
            yield f'{{status="{status}"}}', int(found)


def _intents(stats: Mapping[str, bytes]) -> Iterator[tuple[str, float]]:
    for name in sorted(stats):
        if name.startswith("rebuno_intents_total"):
            yield name.removeprefix("rebuno_intents_total"), int(stats[name])
