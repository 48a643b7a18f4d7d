"""Agents for the HIRE door's tests; each shows one behaviour that a seeker may see."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worker import Failed, InvalidInput, Transient, agent

PRICE = "0.01"
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
BYTES = bytes(range(256)) * 400


@agent("text", price=PRICE, inline=True, model="scribe-1")
def text(job: Any) -> str:
    """Returns its input text."""
    return str(job.input["text"])


@agent(
    "score",
    price=PRICE,
    inline=True,
    input_schema={"type": "object", "required": ["score"]},
    example_input={"score": 7},
)
def score(job: Any) -> dict[str, Any]:
    """Returns JSON."""
    return {"score": job.input["score"], "issues": []}


@agent("image", price=PRICE, inline=True)
def image(job: Any) -> None:
    """Delivers one file."""
    job.file("noise ünicode.bin", BYTES, mime="image/png")


@agent("logos", price=PRICE)
def logos(job: Any) -> dict[str, Any]:
    """Delivers two files and JSON, on the queue."""
    job.file("logo_v1.svg", SVG, mime="image/svg+xml")
    job.file("logo_v2.svg", SVG, mime="image/svg+xml")
    return {"notes": "Option 1 is recommended"}


@agent("big", price=PRICE, inline=True)
def big(job: Any) -> str:
    """Returns more text than a record holds."""
    return "long " * 20_000


@agent("story", price=PRICE, settle="before_work")
def story(job: Any) -> Iterator[str]:
    """Streams lines, and waits for the gate before the second half."""
    for number in range(6):
        if number == 3:
            _gate(job)
        job.progress((number + 1) / 6, f"line {number}")
        yield f"line {number}\n"


@agent("gated", price=PRICE, time_limit=120.0)
def gated(job: Any) -> dict[str, Any]:
    """Streams text, closes a file, reports progress, and waits for its gate."""
    job.say("a secret word\n")
    job.file("draft.txt", "the draft\n", mime="text/plain", ready=True)
    job.file("loose.txt", "not closed\n", mime="text/plain")
    job.progress(0.5, "half")
    _gate(job)
    return {"done": True}


@agent("gated-before", price=PRICE, settle="before_work")
def gated_before(job: Any) -> dict[str, Any]:
    """The same, paid before the work."""
    return gated(job)  # type: ignore[no-any-return]


@agent("napping", price=PRICE, time_limit=30.0)
def napping(job: Any) -> dict[str, Any]:
    """Sleeps for the given number of seconds."""
    time.sleep(float(job.input["seconds"]))
    return {"slept": job.input["seconds"]}


@agent("napping-inline", price=PRICE, inline=True, time_limit=30.0)
def napping_inline(job: Any) -> dict[str, Any]:
    """The same on the express lane."""
    return napping(job)  # type: ignore[no-any-return]


@agent("shaky", price=PRICE, inline=True, attempts=1)
def shaky(job: Any) -> dict[str, Any]:
    """Fails until the file named in its input allows it to work."""
    gate = Path(job.input["gate"])
    tries = int(gate.read_text() or "0") if gate.exists() else 0
    gate.write_text(str(tries + 1))
    if tries < job.input["failures"]:
        raise Transient("the line was busy")
    return {"tries": tries + 1}


@agent("liar", price=PRICE, inline=True, output_schema={"type": "object", "required": ["truth"]})
def liar(job: Any) -> dict[str, Any]:
    """Returns what its input says, whatever its schema promises."""
    return dict(job.input)


@agent("picky", price=PRICE, inline=True)
def picky(job: Any) -> str:
    """Validates more than a schema can."""
    if job.input["colors"][0] == "red":
        raise InvalidInput(
            "Color format not recognized", field="colors[0]", expected="hex color", received="red"
        )
    return "fine"


@agent("broken", price=PRICE, inline=True)
def broken(job: Any) -> None:
    """Fails."""
    raise Failed("NO_IDEA", "nothing came to mind", mood="bad")


def _gate(job: Any) -> None:
    """Waits until the test opens the gate."""
    gate = job.input.get("gate")
    while gate and not Path(gate).exists() and not job.stopped:
        time.sleep(0.05)


def _hang(value: Any) -> None:
    time.sleep(600)


def _break(value: Any) -> None:
    raise KeyError(value["secret"])


@agent("hung-check", price=PRICE, inline=True, check=_hang)
def hung_check(job: Any) -> str:
    """Has a check that never ends."""
    return "never"


@agent("broken-check", price=PRICE, inline=True, check=_break)
def broken_check(job: Any) -> str:
    """Has a check with a mistake in it."""
    return "never"
