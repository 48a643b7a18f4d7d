"""The brief agent: a summary of an English text in its own sentences, shaped to an output schema.

It summarises and does nothing else. In a swarm, whose kernel counts what it is given, it abstains from
every other task and from every field that a summary does not decide, with a confidence of 0; a schema that
leaves no way to abstain is refused. At the other doors such work is refused, so that nobody pays for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from worker.capabilities.declare import agent
from worker.core.errors import Failed, InvalidInput
from worker.shipped.text import orders
from worker.shipped.text.check import satisfies
from worker.shipped.text.ranking import Choice, choose, keywords
from worker.shipped.text.sentences import MAX_TEXT, Sentence, cut, english, prose, split
from worker.shipped.text.shape import ABSTAIN, SHORTEST, AnswerContent, Unsatisfiable, in_doubt, shape

if TYPE_CHECKING:
    from worker.agents.job import Job

MAX_OUTPUT = 60_000
# One sentence is its own summary; giving it back would only repeat the input.
FEWEST = 2
ABSTENTION = "Abstain: this agent only summarises English texts that come with the task."

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
    "prompt": "Summarise the report.",
    "text": "The plan has two risks. Supply may stop in winter. Costs of the plan may rise. We are hopeful.",
}
EXAMPLE_OUTPUT = {
    "answer": "The plan has two risks. Costs of the plan may rise.",
    "confidence": 0.54,
    "check_summary": "2 of 4 sentences, 54% of the text's weight",
}


@dataclass(frozen=True)
class Material:
    """The text to summarise, and how long the summary shall be, if that was said."""

    sentences: list[Sentence]
    wanted: int | None = None


@agent(
    "brief",
    price="0.10",
    description="Summarises English texts in their own sentences, shaped to your output schema.",
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
    schema = OUTPUT_SCHEMA if job.output_schema is None else job.output_schema
    reused = _reusable(job, schema)
    if reused is not None:
        return reused
    job.progress(0.1, "reading")
    material = read(job.input, for_kernel=job.swarm is not None)
    if material is None and job.swarm is None:
        raise InvalidInput(
            field="prompt",
            expected=f"an English text of {FEWEST} sentences or more, and no task but to summarise it",
            received="another task, or no such text",
        )
    job.progress(0.7, "writing")
    answer = _abstention(job) if material is None else _summary(job, material)
    try:
        return _fitted(answer, schema, job.swarm)
    except Unsatisfiable as refusal:
        raise Failed(
            "UNSATISFIABLE_SCHEMA",
            "this agent cannot fill the output schema truthfully, and the schema leaves no way to abstain",
            path=cut(refusal.path, 120),
        ) from None


def read(given: Any, *, for_kernel: bool) -> Material | None:
    """The text to summarise; None when something else is asked, or there is no such text.

    A kernel's prompt is an instruction, so only a known order to summarise will do. Whoever hires the
    agent wants a summary, so a text without any order is taken too.
    """
    prompt = given.get("prompt") if isinstance(given, dict) else None
    prompt = prompt.encode("utf-8", "ignore").decode().replace("\0", "") if isinstance(prompt, str) else ""
    rest = {k: v for k, v in given.items() if k != "prompt"} if isinstance(given, dict) else given
    order = orders.read(prompt)
    if order is None and not prompt.strip() and isinstance(given, dict):
        order, rest = orders.named(given.get("capability")), given.get("payload", rest)
    if order is None:
        if for_kernel or "?" in prompt or 0 < len(split(prompt)) < FEWEST:
            return None
        order = orders.SummaryOrder(prompt)
    pieces = [order.text, *prose(rest)]
    if for_kernel and any(orders.asks_more(piece) for piece in pieces):
        return None
    text = "\n\n".join(pieces)[:MAX_TEXT]
    sentences = split(text)
    if len(sentences) < FEWEST or not english(text):
        return None
    return Material(sentences, order.sentences)


def _summary(job: Job, material: Material) -> AnswerContent:
    # At most half of the text: the whole of it would be no summary.
    most = min(material.wanted or _sentences(job.settings), max(1, len(material.sentences) // 2))
    choice, repeated = _chosen(material.sentences, most, (job.stage or "").upper(), job.seed)
    said = f"{len(choice.sentences)} of {choice.total} sentences, {choice.coverage:.0%} of the text's weight"
    return AnswerContent(
        text=choice.text,
        sentences=tuple(sentence.text for sentence in choice.sentences),
        confidence=round(max(0.05, min(choice.coverage, 0.95)) * (0.5 if repeated else 1), 2),
        check_summary=_signed(job, said),
        keywords=tuple(keywords(material.sentences, 12)),
        abstention=ABSTENTION,
    )


def _abstention(job: Job) -> AnswerContent:
    said = _signed(job, "abstained: no text to summarise, or another task")
    return AnswerContent(text=None, check_summary=said, given=_settled(job.input), abstention=ABSTENTION)


def _signed(job: Job, said: str) -> str:
    """What was done; for a kernel after the stage and the attempt, as its protocol shows it."""
    if job.attempt_id is None:
        return said
    return f"stage={cut(job.stage or '', 40)} attempt={cut(job.attempt_id, 80)}; {said}"


def _settled(given: Any) -> dict[str, str]:
    """For a topic's message: its id, and the proposal's ids where only one can be meant."""
    source = given.get("source_message") if isinstance(given, dict) else None
    if not isinstance(source, dict):
        return {}
    listed = given.get("candidate_proposals")
    proposals = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    replied = source.get("reply_to_message_id")
    meant = [each for each in proposals if replied and each.get("proposal_message_id") == replied]
    meant = meant or proposals
    only = meant[0] if len(meant) == 1 else {}
    found = {
        "source_message_id": source.get("message_id"),
        "proposal_id": only.get("proposal_id", ""),
        "proposal_message_id": only.get("proposal_message_id", ""),
    }
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _chosen(sentences: list[Sentence], limit: int, stage: str, seed: Any) -> tuple[Choice, bool]:
    """The choice, and whether it had to repeat what was to be avoided."""
    first = choose(sentences, limit)
    if stage != "DIVERGE_MODE":
        return first, False
    avoid = {sentence.text for sentence in first.sentences}
    avoid |= {sentence.text for text in _earlier(seed) for sentence in split(text)}
    other = choose(sentences, limit, avoid)
    return (other, False) if other.sentences else (first, True)


def _fitted(answer: AnswerContent, schema: Any, task: Any) -> Any:
    """The answer in its shape and within the task's limit: optional keys go first, then words."""
    params = _policy_params(task)
    limit = _max_bytes(params)
    for _ in range(8):
        value = shape(answer, schema)
        # Only a sound schema has a shape: what it requires is a list.
        kept = set(schema.get("required", ())) if isinstance(schema, dict) else set()
        kept |= {"confidence"} if "min_confidence" in params else set()
        value = _without_extras(value, kept, limit)
        over = _size(value) - limit
        if over <= 0:
            if not isinstance(value, dict | list | str) or not satisfies(value, schema):
                break
            return value
        if answer.text is None:
            if answer.abstention == ABSTAIN:
                break
            answer = replace(answer, abstention=ABSTAIN)
        elif len(answer.text) - over < SHORTEST:
            break
        else:
            shorter = cut(answer.text, len(answer.text) - over)
            answer = replace(answer, text=shorter, sentences=(shorter,), abstention=ABSTAIN)
    raise Unsatisfiable("")


def _without_extras(value: Any, required: set[str], limit: int) -> Any:
    """Drops what is not required, the longest first, while the value is too large."""
    if not isinstance(value, dict):
        return value
    kept = dict(value)
    optional = [name for name in kept if name not in required and name not in ("answer", "confidence")]
    for name in sorted(optional, key=lambda name: -_size(kept[name])):
        if _size(kept) > limit:
            del kept[name]
    if _size(kept) > limit and not in_doubt(kept) and "confidence" not in required:
        kept.pop("confidence", None)
    return kept


def _reusable(job: Job, schema: Any) -> Any:
    """The payload of an exact hit, when the operator allows it and it still satisfies the schema."""
    if not job.settings.get("reuse_exact") or (job.stage or "").upper() == "DIVERGE_MODE":
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


def _policy_params(task: Any) -> dict[str, Any]:
    here = task
    for key in ("acceptance", "verifier_policy", "policy_params"):
        here = here.get(key) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else {}


def _max_bytes(params: dict[str, Any]) -> int:
    """`max_len` of the thresholds policy counts bytes of compact JSON; else the protocol's own limit."""
    most = params.get("max_len")
    return most if type(most) is int and 0 < most < MAX_OUTPUT else MAX_OUTPUT


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass"))
