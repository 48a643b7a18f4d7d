"""Renders the Prometheus text format: families with help, and histograms from the store's counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence


def family(name: str, kind: str, text: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    """The lines of one family; a row is the sample name's suffix and its value."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for suffix, value in rows:
        # Keeps large counters exact.
        yield f"{name}{suffix} {value:.15g}"


def histogram(
    stats: Mapping[str, bytes], observed: str, of: str, label: str, limits: Sequence[int]
) -> Iterator[tuple[str, float]]:
    """Rows of one cumulative histogram in seconds; the store counts each bucket separately."""
    end = f" {of}" if of else ""
    below = 0
    for limit in limits:
        below += int(stats.get(f"{observed} le {limit}{end}", 0))
        yield f'_bucket{{{label},le="{limit / 1e6:g}"}}', below
    count = int(stats.get(f"{observed} count{end}", 0))
    yield f'_bucket{{{label},le="+Inf"}}', count
    yield f"_sum{{{label}}}", int(stats.get(f"{observed} us{end}", 0)) / 1e6
    yield f"_count{{{label}}}", count


def histograms(
    stats: Mapping[str, bytes], observed: str, label: str, limits: Sequence[int]
) -> Iterator[tuple[str, float]]:
    """Rows of all histograms observed under a name."""
    begin = f"{observed} count "
    for of in sorted(name.removeprefix(begin) for name in stats if name.startswith(begin)):
        yield from histogram(stats, observed, of, f'{label}="{escaped(of)}"', limits)


def escaped(value: str) -> str:
    """A label's value, escaped for use between quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
