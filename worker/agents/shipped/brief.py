"""The brief agent: a summary made of a text's own sentences, in the shape that a schema asks for.

It serves paid contracts and the swarm alike. The confidence is the share of the text's weight (and of
the question's words) that the chosen sentences cover; it is lowered for every field that had to be guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from worker.agents.declare import agent
from worker.agents.shipped.text.check import satisfies
from worker.agents.shipped.text.ranking import Choice, choose, keywords
from worker.agents.shipped.text.sentences import MAX_TEXT, Sentence, cut, facts, prose, split, words
from worker.agents.shipped.text.shape import Answer, Unsatisfiable, shape
from worker.errors import Failed, InvalidInput

if TYPE_CHECKING:
    from worker.agents.job import Job

MAX_OUTPUT = 60_000
MAX_ECHO = 500
_HALF = re.compile("[\ud800-\udfff]")
_TASK = re.compile(
    r"(?:please\s+)?(?:summari[sz]e|condense|shorten|sum up|give|write|describe|explain|list|extract|identify"
    r"|tl;?dr|what|which|who|why|how|tell)\b",
    re.IGNORECASE,
)

INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt": {"type": "string", "maxLength": MAX_TEXT}},
    "additionalProperties": True,
}
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["answer", "confidence", "check_summary"],
    "properties": {
        "answer": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "check_summary": {"type": "string", "minLength": 1},
    },
}

PROFILES: dict[str, dict[str, Any]] = {
    "default": {"sentences": 5, "reuse_exact": False},
    "fast": {"sentences": 2, "reuse_exact": False},
}
EXAMPLE_INPUT = {
    "prompt": "Summarise the risks.",
    "text": "The plan has two risks. Supply may stop in winter. Costs may rise. We are hopeful.",
}
EXAMPLE_OUTPUT = {
    "answer": "The plan has two risks. Supply may stop in winter. Costs may rise. We are hopeful.",
    "confidence": 0.85,
    "check_summary": "stage=EXPLORE attempt=1; 4 of 4 sentences, 100% of the text's weight",
}


@dataclass(frozen=True)
class Material:
    """What is to be summarised, and the words of the question, if one was asked."""

    sentences: list[Sentence]
    query: frozenset[str]
    only_prompt: bool


@agent(
    "brief",
    price="0.10",
    description="Summarises a prompt and its texts in their own sentences, shaped to your output schema.",
    input_schema=INPUT_SCHEMA,
    # None: a contract or a task brings its own schema, and the answer takes that shape.
    output_schema=None,
    inline=True,
    example_input=EXAMPLE_INPUT,
    example_output=EXAMPLE_OUTPUT,
    model="extract-v1",
    profiles=PROFILES,
    time_limit=30,
    settle="after_work",
)
def brief(job: Job) -> Any:
    """Choose the sentences, then give the answer its shape."""
    stage = (job.stage or "EXPLORE").upper()
    schema = OUTPUT_SCHEMA if job.output_schema is None else job.output_schema
    reused = _reusable(job, stage, schema)
    if reused is not None:
        return reused
    job.progress(0.1, "reading")
    material = read(job.input)
    limit = _sentences(job.settings)
    choice, lowered = _chosen(material, limit, stage, job.seed)
    job.progress(0.7, "writing")
    answer = Answer(
        text=choice.text,
        sentences=tuple(sentence.text for sentence in choice.sentences),
        confidence=_confidence(choice, material, lowered),
        check_summary=f"stage={cut(stage, 40)} attempt={job.attempt}; "
        f"{len(choice.sentences)} of {choice.total} sentences, {choice.coverage:.0%} of the text's weight",
        keywords=tuple(keywords(material.sentences, 12)),
        given=_scalars(job.input),
    )
    return _fitted(answer, schema, job.swarm)


def read(given: Any) -> Material:
    """Find the text in an input of any shape; a short prompt beside other texts is a question about them."""
    prompt = given.get("prompt") if isinstance(given, dict) else None
    prompt = prompt if isinstance(prompt, str) else ""
    rest = {k: v for k, v in given.items() if k != "prompt"} if isinstance(given, dict) else given
    asked = split(prompt.encode("utf-8", "ignore").decode().replace("\0", ""))
    told = split("\n\n".join(prose(rest))[:MAX_TEXT])
    if told and len(asked) <= 3:
        return Material(told, frozenset(words(prompt)), False)
    if told:
        return Material(_renumbered(asked + told), frozenset(), False)
    if len(asked) >= 3 and _TASK.match(asked[0].text):
        return Material(_renumbered(asked[1:]), frozenset(asked[0].words), False)
    sentences = asked or split(facts(rest))
    if not sentences:
        raise InvalidInput(field="prompt", expected="text to summarise", received="no text")
    return Material(sentences, frozenset(), True)


def _chosen(material: Material, limit: int, stage: str, seed: Any) -> tuple[Choice, bool]:
    """The choice, and whether it had to repeat what was to be avoided."""
    first = choose(material.sentences, limit, material.query)
    if stage != "DIVERGE_MODE":
        return first, False
    avoid = {sentence.text for sentence in first.sentences}
    avoid |= {sentence.text for text in _earlier(seed) for sentence in split(text)}
    other = choose(material.sentences, limit, material.query, avoid)
    if other.sentences:
        return other, False
    strongest = choose(material.sentences, 1, material.query).text
    fewer = choose(material.sentences, max(1, len(first.sentences) - 1), material.query, {strongest})
    return (fewer, False) if fewer.sentences else (first, True)


def _confidence(choice: Choice, material: Material, lowered: bool) -> float:
    share = choice.coverage
    if material.query:
        share = 0.7 * share + 0.3 * choice.answered
    # A single sentence given back is no answer to it.
    ceiling = 0.5 if material.only_prompt and choice.total == 1 else 0.95
    return round(max(0.05, min(share, ceiling)) * (0.5 if lowered else 1), 2)


def _fitted(answer: Answer, schema: Any, task: Any) -> Any:
    """Shape the answer; guesses lower its confidence, and it is shortened until it fits the task's limit."""
    extras = ("answer", "confidence", "check_summary") + (("decision",) if task is not None else ())
    limit = _max_bytes(task)
    try:
        value, guessed = shape(answer, schema, extras)
        if guessed:
            answer = replace(
                answer,
                confidence=round(max(0.05, answer.confidence * 0.8 ** len(guessed)), 2),
                check_summary=f"{answer.check_summary}; guessed: {cut(', '.join(guessed), 120)}",
            )
            value, _ = shape(answer, schema, extras)
        for _ in range(8):
            over = _size(value) - limit
            if over <= 0 or not answer.text:
                break
            shorter = cut(answer.text, max(1, len(answer.text) - over))
            answer = replace(answer, text=shorter, sentences=(shorter,))
            value, _ = shape(answer, schema, extras)
    except Unsatisfiable as refusal:
        raise _unsatisfiable(refusal.path) from None
    if not isinstance(value, dict | list | str):
        raise _unsatisfiable("the top level")
    return value


def _unsatisfiable(path: str) -> Failed:
    return Failed(
        "UNSATISFIABLE_SCHEMA", "no answer of this agent can satisfy the output schema", path=cut(path, 120)
    )


def _reusable(job: Job, stage: str, schema: Any) -> Any:
    """The payload of an exact hit, when the operator allows it and it still satisfies the schema."""
    if not job.settings.get("reuse_exact") or stage == "DIVERGE_MODE":
        return None
    for hit in _hits(job.seed):
        payload = hit.get("reuse_payload")
        if hit.get("hit_type") == "Exact" and isinstance(payload, dict) and satisfies(payload, schema):
            return payload
    return None


def _hits(seed: Any) -> list[dict[str, Any]]:
    hits = seed.get("hits") if isinstance(seed, dict) else None
    return [hit for hit in hits[:5] if isinstance(hit, dict)] if isinstance(hits, list) else []


def _earlier(seed: Any) -> Iterator[str]:
    for hit in _hits(seed):
        payload = hit.get("reuse_payload")
        if isinstance(payload, dict) and isinstance(payload.get("answer"), str):
            yield payload["answer"]


def _sentences(settings: dict[str, Any]) -> int:
    wished = settings.get("sentences", 5)
    return min(max(wished, 1), 50) if isinstance(wished, int) and not isinstance(wished, bool) else 5


def _renumbered(sentences: list[Sentence]) -> list[Sentence]:
    return [replace(sentence, place=place) for place, sentence in enumerate(sentences)]


def _scalars(given: Any) -> dict[str, Any]:
    """Plain values of the input by their key, so that a field of the same name can repeat them."""
    found: dict[str, Any] = {}
    queue: list[tuple[Any, int]] = [(given, 0)]
    while queue:
        item, depth = queue.pop(0)
        if isinstance(item, dict):
            for key, value in item.items():
                if isinstance(value, dict | list) and depth < 3 and len(queue) < 100:
                    queue.append((value, depth + 1))
                elif isinstance(value, int | float) or (isinstance(value, str) and _speakable(value)):
                    found.setdefault(str(key), value)
        elif isinstance(item, list):
            queue += [(value, depth + 1) for value in item[:5]]
    found.pop("prompt", None)
    return found


def _speakable(text: str) -> bool:
    """Short, and free of halves of characters, which no JSON reader would take back."""
    return len(text) <= MAX_ECHO and not _HALF.search(text)


def _max_bytes(task: Any) -> int:
    """`max_len` of the thresholds policy counts bytes of compact JSON; else the protocol's own limit."""
    here = task
    for key in ("acceptance", "verifier_policy", "policy_params", "max_len"):
        here = here.get(key) if isinstance(here, dict) else None
    return (
        here if isinstance(here, int) and not isinstance(here, bool) and 0 < here < MAX_OUTPUT else MAX_OUTPUT
    )


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))
