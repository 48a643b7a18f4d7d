"""The logo agent: three different SVG logos drawn from the words of a brief, without any outside service.

The same input gives the same files. Style references are checked and noted, never fetched.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from worker.capabilities.declare import agent
from worker.core.errors import InvalidInput
from worker.shipped.logo import naming, palette
from worker.shipped.logo.designs import DESIGNS, Design

if TYPE_CHECKING:
    from worker.agents.job import Job

MAX_BRIEF = 2000
MAX_COLORS = 12
MAX_REFERENCES = 10
MAX_URL = 2048
_ECHO = 60

INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["brief"],
    "properties": {
        "brief": {"type": "string", "minLength": 1, "maxLength": MAX_BRIEF},
        # No pattern here: the check refuses before money, and names the field in the words of HIRE 06.
        "colors": {
            "type": "array",
            "maxItems": MAX_COLORS,
            "items": {"type": "string", "title": "hex color"},
        },
        "style_references": {
            "type": "array",
            "maxItems": MAX_REFERENCES,
            "items": {"type": "string", "title": "http(s) URL", "maxLength": MAX_URL},
        },
    },
    "additionalProperties": False,
}


EXAMPLE_INPUT: dict[str, Any] = {
    "brief": "Create a minimalist logo for TechStartup Inc",
    "colors": ["#FF5733", "#333333"],
    "style_references": ["https://example.com/style1.png"],
}


def read(given: Any) -> Design:
    """The input as a design, or InvalidInput for the first field that does not fit."""
    if not isinstance(given, dict):
        raise InvalidInput(field="", expected="an object with a brief", received=_echo(given))
    brief = given.get("brief")
    if not isinstance(brief, str) or not naming.clean(brief) or len(brief) > MAX_BRIEF:
        raise InvalidInput(
            field="brief", expected=f"text of 1 to {MAX_BRIEF} characters", received=_echo(brief)
        )
    colors = [_color(text, f"colors[{i}]") for i, text in enumerate(_list(given, "colors", MAX_COLORS))]
    references = _list(given, "style_references", MAX_REFERENCES)
    hosts = [_host(text, f"style_references[{i}]") for i, text in enumerate(references)]
    seed = hashlib.sha256(naming.clean(brief).encode()).digest()
    return Design(
        name=naming.brand_name(brief),
        brief=naming.clean(brief)[:160],
        palette=palette.build(colors, seed[0]),
        seed=seed,
        hosts=tuple(dict.fromkeys(hosts)),
    )


def _list(given: dict[str, Any], field: str, limit: int) -> list[Any]:
    value = given.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > limit:
        raise InvalidInput(field=field, expected=f"a list of at most {limit}", received=_echo(value))
    return value


def _color(value: Any, field: str) -> palette.RGB:
    color = palette.parse(value) if isinstance(value, str) else None
    if color is None:
        raise InvalidInput(
            "Color format not recognized", field=field, expected="hex color", received=_echo(value)
        )
    return color


def _host(value: Any, field: str) -> str:
    """The host of a reference; that is all of it that a drawing may carry."""
    try:
        parts = urlsplit(value) if isinstance(value, str) and len(value) <= MAX_URL else None
        host = (parts.hostname or "").encode("idna").decode() if parts else ""
    except ValueError:
        parts, host = None, ""
    if parts is None or parts.scheme not in {"http", "https"} or not host or _odd(value):
        raise InvalidInput(field=field, expected="http(s) URL", received=_echo(value))
    return host


def _odd(text: str) -> bool:
    """Spaces and invisible characters have no place in an address."""
    return " " in text or naming.clean(text) != text


def _echo(value: Any) -> str:
    """The received value, shortened; a list or an object only by kind and size."""
    if isinstance(value, str):
        return naming.clean(value)[:_ECHO]
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    return "nothing" if value is None else str(value).lower()[:_ECHO]


def _drawn(given: Any) -> dict[str, str]:
    """The logos for an input, by file name."""
    design = read(given)
    return {name: draw(design) for name, _, draw in DESIGNS}


@agent(
    "logo-design",
    price="0.50",
    description="Three SVG logos for a brief: a monogram, a symbol and a word-mark in your colours.",
    input_schema=INPUT_SCHEMA,
    output_schema=None,
    check=lambda value: read(value),
    inline=True,
    example_input=EXAMPLE_INPUT,
    example_output={"files": [name for name, _, _ in DESIGNS]},
    example_files=_drawn(EXAMPLE_INPUT),
    model="designbot-v2",
    time_limit=30,
    settle="after_work",
)
def logo_design(job: Job) -> None:
    """Draw the three logos and hand each over as a file."""
    job.progress(0.05, "reading the brief")
    design = read(job.input)
    for index, (name, kind, draw) in enumerate(DESIGNS):
        job.progress(0.1 + 0.3 * index, f"drawing the {kind}")
        job.file(name, draw(design), mime="image/svg+xml")
    job.progress(1.0, "three logos are ready")
