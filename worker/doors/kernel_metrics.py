"""The kernel's own metrics, under the names that its users' dashboards know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from worker.requests_count import BUCKETS_US

_STATUSES = ("created", "completed", "failed", "cancelled")


def render(stats: Mapping[str, bytes], active: int) -> str:
    """All families, in the text form of Prometheus."""
    lines = [
        *_family("rebuno_executions_total", "counter", "Executions by status.", _executions(stats)),
        *_family("rebuno_intents_total", "counter", "Intents by type and decision.", _intents(stats)),
        *_family("rebuno_active_executions", "gauge", "Executions that have not ended.", [("", active)]),
        *_family(
            "rebuno_step_duration_seconds",
            "histogram",
            "From a step's creation to its success.",
            _steps(stats),
        ),
        *_family(
            "rebuno_policy_eval_seconds",
            "histogram",
            "What a decision of the tool policy took.",
            _histogram(stats, "policy", "", 'action="tool.invoke"') if "policy count" in stats else (),
        ),
    ]
    return "".join(f"{line}\n" for line in lines)


def _family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for suffix, value in rows:
        yield f"{name}{suffix} {value:.15g}"


def _executions(stats: Mapping[str, bytes]) -> Iterator[tuple[str, float]]:
    for status in _STATUSES:
        found = stats.get(f'worker_executions_total{{status="{status}"}}')
        if found is not None:
            yield f'{{status="{status}"}}', int(found)


def _intents(stats: Mapping[str, bytes]) -> Iterator[tuple[str, float]]:
    for name in sorted(stats):
        if name.startswith("rebuno_intents_total"):
            yield name.removeprefix("rebuno_intents_total"), int(stats[name])


def _steps(stats: Mapping[str, bytes]) -> Iterator[tuple[str, float]]:
    tools = sorted(name.removeprefix("step count ") for name in stats if name.startswith("step count "))
    for tool in tools:
        yield from _histogram(stats, "step", tool, f'tool_id="{_escaped(tool)}"')


def _histogram(stats: Mapping[str, bytes], what: str, of: str, label: str) -> Iterator[tuple[str, float]]:
    end = f" {of}" if of else ""
    below = 0
    for limit in BUCKETS_US:
        below += int(stats.get(f"{what} le {limit}{end}", 0))
        yield f'_bucket{{{label},le="{limit / 1e6:g}"}}', below
    count = int(stats.get(f"{what} count{end}", 0))
    yield f'_bucket{{{label},le="+Inf"}}', count
    yield f"_sum{{{label}}}", int(stats.get(f"{what} us{end}", 0)) / 1e6
    yield f"_count{{{label}}}", count


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
