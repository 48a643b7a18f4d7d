"""Which sentences carry a text: TextRank over word overlap, leaning to what comes first.

Words weigh by tf-idf within the text itself. Everything is bounded and the same input gives the same
choice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from worker.shipped.text.sentences import Sentence

MAX_SENTENCES = 300
_ROUNDS = 20
_DAMPING = 0.85
_ALIKE = 0.6


@dataclass(frozen=True)
class Choice:
    """The sentences chosen, in reading order, and the share of the text's weight that they cover."""

    sentences: tuple[Sentence, ...]
    coverage: float
    total: int

    @property
    def text(self) -> str:
        return " ".join(sentence.text for sentence in self.sentences)


def choose(sentences: list[Sentence], limit: int, avoid: Collection[str] = ()) -> Choice:
    """At most `limit` sentences that say much and do not repeat each other or what is to be avoided."""
    weights = _weights(sentences)
    pool = _densest(sentences, weights, MAX_SENTENCES)
    scores = _rank(pool, weights)
    order = sorted(
        range(len(pool)), key=lambda i: (-_lean(pool[i], scores[i], len(sentences)), pool[i].place)
    )
    shunned = set(avoid)
    taken: list[Sentence] = []
    for index in order:
        one = pool[index]
        if len(taken) >= limit:
            break
        if one.text not in shunned and not any(_alike(one, other) for other in taken):
            taken.append(one)
    taken.sort(key=lambda sentence: sentence.place)
    return Choice(tuple(taken), _coverage(taken, weights), len(sentences))


def keywords(sentences: list[Sentence], limit: int) -> list[str]:
    """The words that weigh most in the text."""
    weights = _weights(sentences)
    counts = Counter(word for sentence in sentences for word in sentence.words)
    return sorted(weights, key=lambda word: (-weights[word] * counts[word], word))[:limit]


def _weights(sentences: list[Sentence]) -> dict[str, float]:
    seen = Counter(word for sentence in sentences for word in set(sentence.words))
    return {word: math.log(1 + len(sentences) / count) for word, count in seen.items()}


def _densest(sentences: list[Sentence], weights: dict[str, float], limit: int) -> list[Sentence]:
    """The sentences with most weight, in reading order, when there are too many to compare all."""
    if len(sentences) <= limit:
        return sentences
    best = sorted(sentences, key=lambda s: (-sum(weights[w] for w in set(s.words)), s.place))[:limit]
    return sorted(best, key=lambda s: s.place)


def _rank(pool: list[Sentence], weights: dict[str, float]) -> list[float]:
    """Power iteration on the graph of shared words."""
    bags = [set(sentence.words) for sentence in pool]
    norms = [math.log(1 + len(bag)) for bag in bags]
    edges: list[dict[int, float]] = [{} for _ in pool]
    for i in range(len(pool)):
        for j in range(i):
            shared = sum(weights[word] for word in bags[i] & bags[j])
            if shared:
                edges[i][j] = edges[j][i] = shared / (norms[i] + norms[j])
    sums = [sum(out.values()) for out in edges]
    scores = [1.0] * len(pool)
    for _ in range(_ROUNDS):
        scores = [
            (1 - _DAMPING) + _DAMPING * sum(weight / sums[j] * scores[j] for j, weight in edges[i].items())
            for i in range(len(pool))
        ]
    return scores


def _lean(one: Sentence, score: float, total: int) -> float:
    """The rank, raised for figures, and a little for standing early."""
    early = 1 - one.place / max(total, 1)
    figures = any(word.isdigit() for word in one.words)
    thin = 0.5 if len(set(one.words)) < 3 else 1.0
    return score * thin * (1 + 0.15 * early + 0.1 * figures)


def _alike(one: Sentence, other: Sentence) -> bool:
    a, b = set(one.words), set(other.words)
    return one.text == other.text or (bool(a and b) and len(a & b) / len(a | b) > _ALIKE)


def _coverage(taken: list[Sentence], weights: dict[str, float]) -> float:
    whole = sum(weights.values())
    covered = {word for sentence in taken for word in sentence.words}
    return sum(weights[word] for word in covered) / whole if whole else float(bool(taken))
