"""An execution's log drawn to scale: one row each for waiting, running, steps, waits, output and money."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from worker.engine.events import Event, Kind

WIDTH, LABELS, ROW = 1180, 170, 26
# Thinner bars and marks could not be seen.
_LEAST = 2.0
_MOST_ROWS = 60
_BEGUN = (Kind.EXECUTION_STARTED, Kind.EXECUTION_RESUMED)
_STEP_ENDS = {
    Kind.STEP_COMPLETED: "good",
    Kind.STEP_FAILED: "bad",
    Kind.STEP_TIMED_OUT: "bad",
    Kind.STEP_CANCELLED: "soft",
}
_MARKS = {
    Kind.OUTPUT_CHUNK: "output",
    Kind.FILE_WRITTEN: "files",
    Kind.SIGNAL_RECEIVED: "signals",
    Kind.PAYMENT_CLAIMED: "money",
    Kind.PAYMENT_VERIFIED: "money",
    Kind.PAYMENT_REFUSED: "money",
    Kind.PAYMENT_UNKNOWN: "money",
    Kind.PAYMENT_SETTLED: "money",
    Kind.EXECUTION_SEALED: "money",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time; one without length is a mark. `kind` is its class."""

    begins: int
    ends: int
    kind: str
    title: str


@dataclass(slots=True)
class Row:
    """Spans with one label."""

    label: str
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A span's place in the picture."""

    x: float
    width: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows with their places, and labels of the axis; times in seconds since the creation."""

    rows: tuple[tuple[str, tuple[Drawn, ...]], ...]
    axis: tuple[tuple[float, str], ...]
    width: int
    height: int
    labels: int = LABELS
    row: int = ROW


def timeline(events: Sequence[Event], now: int) -> Timeline:
    """Draws the log up to its end, or up to now."""
    begins = events[0].at if events else now
    ends = events[-1].at if events and events[-1].terminal else max(now, begins + 1)
    rows = rows_of(events, ends)[:_MOST_ROWS]
    length = max(1, ends - begins)
    scale = (WIDTH - LABELS) / length

    def draw(span: Span) -> Drawn:
        x = LABELS + (span.begins - begins) * scale
        width = max(_LEAST, (span.ends - span.begins) * scale)
        return Drawn(round(min(x, WIDTH - width), 2), round(width, 2), span.kind, span.title)

    shown = tuple((row.label, tuple(draw(span) for span in row.spans)) for row in rows)
    axis = tuple(
        (round(LABELS + (WIDTH - LABELS) * part / 4, 1), seconds(length * part // 4)) for part in range(5)
    )
    return Timeline(shown, axis, WIDTH, ROW * len(rows) + 24)


def rows_of(events: Sequence[Event], ends: int) -> list[Row]:
    """All rows: the execution's own first, then a row for each step, then marks."""
    states = Row("execution", list(_states(events, ends)))
    rows = [states, *_steps(events, ends)]
    marks: dict[str, Row] = {}
    for event in events:
        label = _MARKS.get(Kind(event.kind)) if event.kind in _MARKS else None
        if label is not None:
            row = marks.setdefault(label, Row(label))
            kind = "bad" if event.kind in (Kind.PAYMENT_REFUSED, Kind.PAYMENT_UNKNOWN) else label
            row.spans.append(Span(event.at, event.at, kind, _mark_title(event)))
    return [*rows, *marks.values()]


def _states(events: Sequence[Event], ends: int) -> Iterator[Span]:
    """Waiting, running, blocked and settling, one after the other; retries are waiting again."""
    begins, kind, title, attempt = (events[0].at if events else ends), "waiting", "waits to be taken", 0
    for event in events[1:]:
        if event.kind in _BEGUN:
            attempt += event.kind == Kind.EXECUTION_STARTED
            then = ("running", f"run {attempt}" + (", resumed" if event.kind != _BEGUN[0] else ""))
        elif event.kind == Kind.EXECUTION_BLOCKED:
            data = event.data()
            then = ("blocked", f"waits for {data.get('reason')} {data.get('tool_id') or data.get('ref', '')}")
        elif event.kind == Kind.EXECUTION_RESET:
            then = ("waiting", f"waits for another run: {event.data().get('reason', '')}")
        elif event.kind == Kind.EXECUTION_SEALED:
            then = ("settling", "done, waits for its payment")
        else:
            continue
        yield Span(begins, event.at, kind, f"{title}: {seconds(event.at - begins)}")
        begins, (kind, title) = event.at, then
    if events and not (events[-1].terminal and events[-1].at == begins):
        yield Span(begins, ends, kind, f"{title}: {seconds(ends - begins)}")


def _steps(events: Sequence[Event], ends: int) -> Iterator[Row]:
    """One row a step, with a span a try."""
    rows: dict[str, Row] = {}
    begun: dict[str, int] = {}
    for event in events:
        step = event.step_id
        if event.kind == Kind.STEP_CREATED:
            rows[step] = Row(str(event.data().get("tool_id", "step")))
            begun[step] = event.at
        elif step in begun and (event.kind in _STEP_ENDS or event.kind == Kind.STEP_RETRIED):
            kind = "retry" if event.kind == Kind.STEP_RETRIED else _STEP_ENDS[Kind(event.kind)]
            took = seconds(event.at - begun[step])
            rows[step].spans.append(Span(begun[step], event.at, f"step {kind}", f"{event.kind}: {took}"))
            begun[step] = event.at
            if event.kind in _STEP_ENDS:
                del begun[step]
    for step, since in begun.items():
        rows[step].spans.append(Span(since, ends, "step open", f"open for {seconds(ends - since)}"))
    yield from rows.values()


def _mark_title(event: Event) -> str:
    data = event.data()
    what = data.get("name") or data.get("signal_type")
    if event.kind == Kind.OUTPUT_CHUNK:
        what = f"{len(str(data.get('text', '')))} characters"
    return f"{event.kind}{f': {what}' if what else ''}"


def seconds(us: int) -> str:
    """A duration as people read it."""
    if us < 1_000_000:
        return f"{us / 1000:.0f} ms"
    if us < 120_000_000:
        return f"{us / 1e6:.1f} s"
    minutes, left = divmod(us // 1_000_000, 60)
    if minutes < 120:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 72 else f"{hours // 24} days"
