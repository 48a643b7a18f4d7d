"""Shapes an answer to a schema: fills known fields and abstains in the others.

Fields are recognised by name. Any other required field abstains if the schema allows it: null, an option such
as "abstain", a free text for an answer or a decision. Otherwise the schema is refused; nothing is guessed,
because a swarm counts every answer. Unknown optional fields are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from worker.shipped.text.check import Checker, matches, sound
from worker.shipped.text.schema import (
    ANSWERS,
    CONFIDENCES,
    DECISIONS,
    FIXED,
    LISTS,
    TAGS,
    TITLES,
    abstains,
    bounds,
    folded,
    kinds,
    whole,
)
from worker.shipped.text.sentences import cut

MAX_NODES = 2000
MAX_NESTING = 24
MAX_ITEMS = 100
MAX_CHARS = 8000
# A text cut shorter than this would be meaningless.
SHORTEST = 20
# Maximum confidence of an answer that abstains anywhere.
LEAST = 0.05
ABSTAIN = "abstain"
EXTRAS = ("answer", "confidence", "check_summary")


class Unsatisfiable(Exception):
    """No honest answer fits the schema; `path` tells where."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path or "the top level"


@dataclass(frozen=True)
class AnswerContent:
    """The content of an answer before it is shaped. Without a text there is no answer.

    `abstention` is the free text used then; `given` are ids known from the input, by field name.
    """

    text: str | None
    sentences: tuple[str, ...] = ()
    confidence: float = 0.0
    check_summary: str = ""
    keywords: tuple[str, ...] = ()
    given: dict[str, str] = field(default_factory=dict)
    abstention: str = ABSTAIN


def shape(answer: AnswerContent, schema: Any) -> Any:
    """The value; where it abstains in any field, it says in its confidence that it counts for nothing."""
    reason = Unsatisfiable("")
    if not sound(schema):
        raise reason
    checker = Checker()
    for extras in (EXTRAS, ()):
        try:
            value, abstained = _built(answer, schema, extras, checker)
        except Unsatisfiable as refusal:
            reason = refusal
            continue
        if checker.holds(value, schema) and (not abstained or in_doubt(value)):
            return value
    raise reason


def in_doubt(value: Any) -> bool:
    """Whether the output itself says that it is worth nothing; a swarm takes silence for 0.5."""
    confidence = value.get("confidence") if isinstance(value, dict) else None
    return isinstance(confidence, int | float) and confidence <= LEAST


def _built(answer: AnswerContent, schema: Any, extras: tuple[str, ...], checker: Checker) -> tuple[Any, bool]:
    builder = _Builder(answer, schema, extras, checker)
    value = builder.build(schema, "", "", 0)
    if builder.abstained and answer.confidence > LEAST:
        builder = _Builder(replace(answer, confidence=0.0), schema, extras, checker)
        value = builder.build(schema, "", "", 0)
    return value, builder.abstained


class _Builder:
    def __init__(self, answer: AnswerContent, root: Any, extras: tuple[str, ...], checker: Checker) -> None:
        self.answer = answer
        self.root = root
        self.extras = extras
        self.checker = checker
        self.abstained = False
        self.nodes = 0

    def build(self, schema: Any, name: str, path: str, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_NESTING or schema is False:
            raise Unsatisfiable(path)
        schema = self.merged(schema if isinstance(schema, dict) else {}, path)
        for keyword in ("oneOf", "anyOf"):
            if isinstance(schema.get(keyword), list):
                return self.option(schema, keyword, name, path, depth)
        if "const" in schema and name.lower() in FIXED:
            return schema["const"]
        if "const" in schema or "enum" in schema:
            return self.abstain(schema, name, path)
        allowed = kinds(schema, name)
        if "object" in allowed:
            return self.object(schema, path, depth)
        plain = name.lower()
        if plain in CONFIDENCES and {"number", "integer"} & set(allowed):
            return self.confidence(schema, plain, path, "number" not in allowed)
        if plain == "needs_review" and "boolean" in allowed:
            return True
        if "array" in allowed and self.answer.text is not None and (plain in LISTS | TAGS or not name):
            return self.array(schema, name, path, depth)
        if "string" in allowed:
            texts = self.known_texts(name)
            if texts:
                return self.string(schema, texts, path)
        return self.abstain(schema, name, path)

    def known_texts(self, name: str) -> list[str]:
        """What belongs into a text field of this name, best first; nothing when that is not known."""
        plain, answer = name.lower(), self.answer
        if plain == "check_summary":
            return [answer.check_summary]
        if name in answer.given:
            return [answer.given[name]]
        if answer.text is None:
            return []
        if plain in TITLES:
            return [cut(answer.sentences[0].rstrip(".!?。"), 80)]
        return [answer.text] if plain in ANSWERS or not name else []

    def abstain(self, schema: dict[str, Any], name: str, path: str) -> Any:
        """What says that nothing is known, if the schema has a word for it."""
        self.abstained = True
        if "const" in schema or "enum" in schema:
            options = [schema["const"]] if "const" in schema else schema["enum"]
            for option in options[:MAX_ITEMS]:
                if option is None or abstains(option):
                    return option
            raise Unsatisfiable(path)
        allowed, plain = kinds(schema, name), name.lower()
        if "string" in allowed and plain in ANSWERS | DECISIONS:
            texts = [self.answer.abstention, ABSTAIN] if plain in ANSWERS else [ABSTAIN]
            return self.string(schema, texts, path, whole_only=True)
        if "null" in allowed:
            return None
        raise Unsatisfiable(path)

    def merged(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """Folds references and allOf into one schema; sibling keywords win."""
        for _ in range(MAX_NESTING):
            if "$ref" in schema:
                target = self.target(schema["$ref"], path)
                schema = folded(target, {k: v for k, v in schema.items() if k != "$ref"})
            elif isinstance(schema.get("allOf"), list):
                rest = {k: v for k, v in schema.items() if k != "allOf"}
                for part in schema["allOf"]:
                    rest = folded(part if isinstance(part, dict) else {}, rest)
                schema = rest
            else:
                return schema
        raise Unsatisfiable(path)

    def target(self, reference: Any, path: str) -> dict[str, Any]:
        """The target of a pointer inside the same schema."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise Unsatisfiable(path)
        here = self.root
        for part in reference[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(here, dict) or part not in here:
                raise Unsatisfiable(path)
            here = here[part]
        if not isinstance(here, dict):
            raise Unsatisfiable(path)
        return here

    def option(self, schema: dict[str, Any], keyword: str, name: str, path: str, depth: int) -> Any:
        """The first alternative that can be filled; else the first that can abstain."""
        shelves = {k: self.root[k] for k in ("$defs", "definitions") if k in self.root}
        rest = {k: v for k, v in schema.items() if k != keyword}
        before, abstaining = self.abstained, []
        for part in schema[keyword]:
            self.abstained = False
            try:
                value = self.build(
                    folded(part, rest) if isinstance(part, dict) else rest, name, path, depth + 1
                )
            except Unsatisfiable:
                continue
            if not self.checker.holds(value, {**shelves, **part} if isinstance(part, dict) else part):
                continue
            if not self.abstained:
                self.abstained = before
                return value
            abstaining.append(value)
        self.abstained = True
        if not abstaining:
            raise Unsatisfiable(path)
        return abstaining[0]

    def object(self, schema: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        listed = schema.get("properties")
        if not isinstance(listed, dict):
            listed = {}
        needed = [k for k in schema.get("required") or [] if isinstance(k, str)]
        names = list(dict.fromkeys([*needed, *listed]))
        if not path:
            open_to_all = schema.get("additionalProperties", True) is True
            names += [k for k in self.extras if k not in names and open_to_all]
        built: dict[str, Any] = {}
        for key in names:
            inner = f"{path}.{key}" if path else key
            before = self.abstained
            try:
                value = self.build(listed.get(key, True), key, inner, depth + 1)
            except Unsatisfiable:
                if key in needed:
                    raise
                self.abstained = before
                continue
            # Leave out optional fields that would abstain; only answer fields state the abstention.
            left_out = key not in needed and key not in self.extras and self.abstained and not before
            if left_out:
                self.abstained = before
            else:
                built[key] = value
        return built

    def array(self, schema: dict[str, Any], name: str, path: str, depth: int) -> list[Any]:
        low = whole(schema.get("minItems"), 0)
        high = min(whole(schema.get("maxItems"), MAX_ITEMS), MAX_ITEMS)
        source = self.answer.keywords if name.lower() in TAGS else self.answer.sentences
        texts = source[: min(high, max(low, 12))]
        if len(texts) < low:
            raise Unsatisfiable(path)
        fixed = schema.get("prefixItems")
        fixed = fixed if isinstance(fixed, list) else []
        built = []
        for index, text in enumerate(texts):
            items = fixed[index] if index < len(fixed) else schema.get("items", True)
            if items is False:
                break
            said = replace(self.answer, text=text, sentences=(text,), given={})
            inner = _Builder(said, self.root, (), self.checker)
            inner.nodes = self.nodes
            built.append(inner.build(items, "text", f"{path}[{index}]", depth + 1))
            self.nodes = inner.nodes
            self.abstained |= inner.abstained
        return built

    def string(
        self, schema: dict[str, Any], texts: Iterable[str], path: str, *, whole_only: bool = False
    ) -> str:
        low = whole(schema.get("minLength"), 0)
        high = min(whole(schema.get("maxLength"), MAX_CHARS), MAX_CHARS)
        for text in texts:
            fitted = text if whole_only or high < SHORTEST else cut(text, high)
            if low <= len(fitted) <= high and ("pattern" not in schema or matches(schema["pattern"], fitted)):
                return fitted
        raise Unsatisfiable(path)

    def confidence(self, schema: dict[str, Any], name: str, path: str, integer: bool) -> int | float:
        """How sure we are, on the scale that the bounds tell; never more than we are."""
        try:
            low, high = bounds(schema, integer)
            top = high if high is not None and high > 1 else (100 if integer and high is None else 1)
            # A summary never decides anything.
            value: float = 0.0 if name == "decision_confidence" else self.answer.confidence * top
            if low is not None and value < low <= LEAST:
                value = low
            step = schema.get("multipleOf")
            if isinstance(step, int | float) and not isinstance(step, bool) and step > 0:
                value = value // step * step
            value = int(value) if integer else round(value, 6)
        except ArithmeticError:
            # Numbers beyond the range of a float.
            raise Unsatisfiable(path) from None
        if (low is not None and value < low) or (high is not None and value > high):
            raise Unsatisfiable(path)
        return value
