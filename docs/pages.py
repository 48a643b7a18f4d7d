"""Pages made from code: error codes, API, picture of the rooms, figures. A test compares the files."""

from __future__ import annotations

import re
from collections.abc import Callable
from configparser import ConfigParser
from functools import partial
from pathlib import Path

from docs import api_reference, figures
from docs.import_graph import Edge, edges, reduced
from worker.core.error_codes import ErrorCode
from worker.core.failure_codes import REGISTER

ROOT = Path(__file__).parents[1]
ERRORS = ROOT / "docs" / "errors.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
API = ROOT / "docs" / "api.md"
OPERATORS_API = ROOT / "docs" / "api-operator.md"
PICTURE = re.compile(r"(?<=<!-- rooms -->\n).*?(?=<!-- /rooms -->)", re.DOTALL)

_ERRORS_HEAD = """\
# Error codes

Made from the register in `worker/core/error_codes.py` and `failure_codes.py` by `make docs`; do not edit.

Each answer carries a code from this page, a message, and what to do. HIRE answers look like this; the kernel
door has `{"error", "code", "details"}`, the swarm door `{"error", "code", "field", "expected", "received",
"advice"}`:

```json
{"status": "failed", "contract_id": null, "error": {"code": "INVALID_INPUT", "message": "...",
 "details": {"field": "brief", "expected": "text", "charged": false, "advice": "..."}}}
```

*Charged* says whether money moved when a request ends with this code.

- **never**: it did not.
- **record**: the answer's `charged`, or the record of the task, says so.
- **depends**: it did not if no payment was sent. After a payment, the answer's `charged` is `null` while the
  outcome is unknown: send the identical request with the same payment again, and do not sign another one.

A code has several statuses if doors answer differently, or if both requests and executions fail with it. For
a failed execution the HIRE door's status comes first, then the swarm door's. The kernel door has codes of its
own, which follow from the status; the code of a failed execution is in its record. Authors may fail with
codes of their own: the HIRE door answers 500, the swarm door 502 (503 if a retry may help). The buying side
passes on the worker's code, or `HTTP_<status>` if an answer has none. The reason why a payment was refused
(`details.reason`) is x402's own code, such as `insufficient_funds`.
"""


def errors_page() -> str:
    """docs/errors.md."""
    return "\n".join([_ERRORS_HEAD, *(_section(*each) for each in REGISTER.items())])


def _section(title: str, codes: tuple[ErrorCode, ...]) -> str:
    rows = [
        f"| `{each.code}` | {', '.join(map(str, each.statuses))} | {each.charged} "
        f"| {each.meaning} | {each.advice} |"
        for each in sorted(codes, key=lambda each: each.code)
    ]
    head = ["| code | status | charged | what it means | what to do |", "|---|---|---|---|---|"]
    return "\n".join([f"## {title}", "", *head, *rows, ""])


def architecture_page() -> str:
    """docs/architecture.md with the picture as the code has it now."""
    return PICTURE.sub(lambda _: rooms_picture(), ARCHITECTURE.read_text())


def layers() -> list[list[str]]:
    """The rooms from the top down, as import-linter holds them."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["importlinter:contract:layers"]["layers"].split("\n")
    return [[room.strip() for room in line.split("|")] for line in lines if line.strip()]


def rooms_picture() -> str:
    """A Mermaid graph of the rooms: an arrow is an import, where no longer path of arrows implies it."""
    rooms = {room for layer in layers() for room in layer}
    arrows = sorted(reduced(edges(ROOT / "worker", rooms)))
    return "\n".join(["```mermaid", "flowchart TD", *map(_arrow, arrows), "```", ""])


def _arrow(edge: Edge) -> str:
    return f"    {edge[0].strip('_')} --> {edge[1].strip('_')}"


GENERATED: dict[Path, Callable[[], str]] = {
    ERRORS: errors_page,
    ARCHITECTURE: architecture_page,
    API: api_reference.seekers_page,
    OPERATORS_API: api_reference.operators_page,
    figures.PAGE: figures.page,
    **{figures.IMAGES / f"{name}.svg": partial(figures.chart, name) for name in figures.CHARTS},
}
