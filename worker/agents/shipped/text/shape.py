"""An answer in the shape that a schema asks for.

The value is built, not searched: each keyword that we know is obeyed while building, and the whole is
checked at the end. Fields are filled by what their name means, by what the input said under the same
name, and, only when required, by a plain guess that is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from worker.agents.shipped.text.check import Checker, matches, sound
from worker.agents.shipped.text.schema import (
    ANSWERS,
    CONFIDENCES,
    LISTS,
    TAGS,
    TITLES,
    bounds,
    folded,
    natural,
    whole,
)
from worker.agents.shipped.text.sentences import cut

MAX_NODES = 2000
MAX_NESTING = 24
MAX_ITEMS = 100
MAX_CHARS = 8000

_UNDECIDED = ("abstain", "undecided", "uncertain", "unknown", "unsure", "neutral", "inconclusive", "none")
_EXTRAS = ("answer", "confidence", "check_summary")


class Unsatisfiable(Exception):
    """No honest answer fits the schema; `path` tells where."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path or "the top level"


@dataclass(frozen=True)
class Answer:
    """What there is to say, before it has a shape."""

    text: str
    sentences: tuple[str, ...]
    confidence: float
    check_summary: str
    keywords: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def decision(self) -> str:
        return "answered" if self.confidence >= 0.5 else "insufficient"


def shape(answer: Answer, schema: Any, extras: tuple[str, ...] = _EXTRAS) -> tuple[Any, list[str]]:
    """The value, and the paths of required fields that had to be guessed."""
    reason = Unsatisfiable("")
    if not sound(schema):
        raise reason
    checker = Checker()
    for wished in (extras, ()):
        builder = _Builder(answer, schema, wished, checker)
        try:
            value = builder.build(schema, "", "", 0)
        except Unsatisfiable as refusal:
            reason = refusal
            continue
        if checker.holds(value, schema):
            return value, builder.guessed
    raise reason


class _Builder:
    def __init__(self, answer: Answer, root: Any, extras: tuple[str, ...], checker: Checker) -> None:
        self.answer = answer
        self.root = root
        self.extras = extras
        self.checker = checker
        self.guessed: list[str] = []
        self.nodes = 0

    def build(self, schema: Any, name: str, path: str, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_NESTING or schema is False:
            raise Unsatisfiable(path)
        if not isinstance(schema, dict):
            schema = {}
        schema = self.merged(schema, path)
        for keyword in ("oneOf", "anyOf"):
            if isinstance(schema.get(keyword), list):
                return self.option(schema, keyword, name, path, depth)
        if "const" in schema:
            return schema["const"]
        if isinstance(schema.get("enum"), list):
            rest = {k: v for k, v in schema.items() if k in {"type", "minimum", "maximum", "maxLength"}}
            return self.pick(
                [x for x in schema["enum"][:MAX_ITEMS] if self.checker.holds(x, rest)], name, path
            )
        kind = self.kind(schema, name)
        if kind == "object":
            return self.object(schema, path, depth)
        if kind == "array":
            return self.array(schema, name, path, depth)
        if kind in {"number", "integer"}:
            return self.number(schema, name, path, kind == "integer")
        if kind == "boolean":
            return self.boolean(name, path)
        if kind == "null":
            return None
        if kind == "string":
            return self.string(schema, name, path)
        raise Unsatisfiable(path)

    def merged(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """References and allOf folded into one schema; what stands beside them wins."""
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
        """What a pointer inside the same schema names."""
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
        """The first alternative that can be built and holds; else the first that can be built."""
        shelves = {k: self.root[k] for k in ("$defs", "definitions") if k in self.root}
        fallback: list[tuple[Any, list[str]]] = []
        rest = {k: v for k, v in schema.items() if k != keyword}
        for part in schema[keyword]:
            before = len(self.guessed)
            try:
                value = self.build(
                    folded(part, rest) if isinstance(part, dict) else rest, name, path, depth + 1
                )
            except Unsatisfiable:
                del self.guessed[before:]
                continue
            if self.checker.holds(value, {**shelves, **part} if isinstance(part, dict) else part):
                return value
            fallback.append((value, self.guessed[before:]))
            del self.guessed[before:]
        if not fallback:
            raise Unsatisfiable(path)
        value, guessed = fallback[0]
        self.guessed += guessed
        return value

    def kind(self, schema: dict[str, Any], name: str) -> str:
        """The type to build: the stated one; of several, the one that the name suggests."""
        stated = schema.get("type")
        wished = natural(schema, name)
        if isinstance(stated, str):
            return stated
        if isinstance(stated, list):
            kinds = [kind for kind in stated if isinstance(kind, str)]
            solid = [kind for kind in kinds if kind != "null"] or kinds
            return wished if wished in solid else (solid[0] if solid else "")
        return wished

    def object(self, schema: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        listed = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
        assert isinstance(listed, dict)
        needed = [k for k in schema.get("required") or [] if isinstance(k, str)]
        names = list(dict.fromkeys([*needed, *(k for k in listed if self.known(k))]))
        if depth == 0:
            open_to_all = schema.get("additionalProperties", True) is True
            names += [k for k in self.extras if k not in names and (k in listed or open_to_all)]
        built: dict[str, Any] = {}
        for key in names:
            inner = f"{path}.{key}" if path else key
            try:
                built[key] = self.build(listed.get(key, True), key, inner, depth + 1)
            except Unsatisfiable:
                if key in needed:
                    raise
        return built

    def known(self, name: str) -> bool:
        """Whether an optional field is worth filling: its name says what belongs there."""
        plain = name.lower()
        special = {"check_summary", "decision", "needs_review"}
        return plain in ANSWERS | TITLES | TAGS | CONFIDENCES | LISTS | special or name in self.answer.given

    def array(self, schema: dict[str, Any], name: str, path: str, depth: int) -> list[Any]:
        low = whole(schema.get("minItems"), 0)
        high = min(whole(schema.get("maxItems"), MAX_ITEMS), MAX_ITEMS)
        if low > min(high, MAX_ITEMS):
            raise Unsatisfiable(path)
        source = self.answer.keywords if name.lower() in TAGS else self.answer.sentences
        texts = list(source or (self.answer.text,))[: min(high, max(low, 12))]
        while len(texts) < low:
            texts.append(texts[len(texts) % max(len(source), 1)] if texts else self.answer.text)
        fixed = schema.get("prefixItems")
        fixed = fixed if isinstance(fixed, list) else []
        built = []
        for index, text in enumerate(texts):
            items = fixed[index] if index < len(fixed) else schema.get("items", True)
            if items is False:
                break
            spoken = Answer(text, (text,), self.answer.confidence, self.answer.check_summary)
            inner = _Builder(spoken, self.root, (), self.checker)
            inner.nodes = self.nodes
            built.append(inner.build(items, "text", f"{path}[{index}]", depth + 1))
            self.nodes = inner.nodes
            self.guessed += inner.guessed
        return built

    def string(self, schema: dict[str, Any], name: str, path: str) -> str:
        low = whole(schema.get("minLength"), 0)
        high = min(whole(schema.get("maxLength"), MAX_CHARS), MAX_CHARS)
        if low > high:
            raise Unsatisfiable(path)
        guessed = not self.known(name) and bool(name)
        for text in self.candidates(schema, name):
            fitted = cut(text, high)
            if len(fitted) >= low and ("pattern" not in schema or matches(schema["pattern"], fitted)):
                if guessed:
                    self.guessed.append(path)
                return fitted
        raise Unsatisfiable(path)

    def candidates(self, schema: dict[str, Any], name: str) -> Iterator[str]:
        """What could stand in a text field, best first."""
        answer, plain = self.answer, name.lower()
        first = answer.sentences[0] if answer.sentences else answer.text
        if plain == "check_summary":
            yield answer.check_summary
        elif plain == "decision":
            yield answer.decision
        elif plain == "stance":
            yield "abstain"
        elif isinstance(answer.given.get(name), str) and plain not in ANSWERS:
            yield answer.given[name]
        elif plain in TITLES:
            yield cut(first.rstrip(".!?。"), 80)
        elif plain in ANSWERS or not name:
            yield answer.text
        else:
            yield first
        yield answer.text
        yield from answer.sentences
        yield from answer.keywords
        for key in ("default", "examples"):
            offered = schema.get(key)
            yield from (
                x for x in (offered if isinstance(offered, list) else [offered]) if isinstance(x, str)
            )

    def number(self, schema: dict[str, Any], name: str, path: str, integer: bool) -> int | float:
        try:
            return self.bounded(schema, name, path, integer)
        except ArithmeticError:
            # Numbers beyond what a float holds.
            raise Unsatisfiable(path) from None

    def bounded(self, schema: dict[str, Any], name: str, path: str, integer: bool) -> int | float:
        low, high = bounds(schema, integer)
        echo = self.answer.given.get(name)
        if name.lower() in CONFIDENCES:
            top = high if high is not None and high > 1 else (100 if integer and high is None else 1)
            value: float = self.answer.confidence * top
        elif isinstance(echo, int | float) and not isinstance(echo, bool):
            value = echo
        else:
            self.guessed.append(path)
            value = 0
        value = value if low is None else max(value, low)
        value = value if high is None else min(value, high)
        step = schema.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool) and step > 0:
            value = value // step * step
            value = value + step if low is not None and value < low else value
        elif integer:
            value = int(value) if high is not None else round(value)
        if (low is not None and value < low) or (high is not None and value > high):
            raise Unsatisfiable(path)
        return int(value) if integer and value == int(value) else round(value, 6)

    def boolean(self, name: str, path: str) -> bool:
        if name.lower() == "needs_review":
            return self.answer.confidence < 0.65
        if name.lower() == "decision":
            return self.answer.confidence >= 0.5
        echo = self.answer.given.get(name)
        if isinstance(echo, bool):
            return echo
        self.guessed.append(path)
        return False

    def pick(self, options: list[Any], name: str, path: str) -> Any:
        """The option that the text speaks of most; else one that leaves it open; else the first."""
        if not options:
            raise Unsatisfiable(path)
        echo = self.answer.given.get(name)
        if echo is not None and any(echo == option and type(echo) is type(option) for option in options):
            return echo
        heard = self.answer.text.lower()
        counts = [
            heard.count(option.lower()) if isinstance(option, str) and option else 0 for option in options
        ]
        if max(counts) > 0 and counts.count(max(counts)) == 1:
            return options[counts.index(max(counts))]
        self.guessed.append(path)
        wished = (self.answer.decision, *_UNDECIDED)
        return next(
            (o for word in wished for o in options if isinstance(o, str) and o.lower() == word), options[0]
        )
