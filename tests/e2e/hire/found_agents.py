"""One short and one long capability, fully described."""

from __future__ import annotations

from typing import Any

from worker import agent


@agent(
    "score",
    price="0.01",
    inline=True,
    title="Score a review",
    tags=["text", "review"],
    input_schema={"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]},
    output_schema={"type": "object", "properties": {"score": {"type": "integer"}}},
    example_input={"score": 7},
    example_output={"score": 7},
)
def score(job: Any) -> dict[str, Any]:
    """Returns JSON."""
    return {"score": job.input["score"]}


@agent("logos", price="0.01", title="Two logos")
def logos(job: Any) -> dict[str, Any]:
    """Delivers two files and JSON, on the queue."""
    for number in (1, 2):
        job.file(f"logo_v{number}.svg", "<svg/>", mime="image/svg+xml")
    return {"notes": "Option 1 is recommended"}
