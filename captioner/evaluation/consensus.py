"""CIDEr-D as a reward: one caption at a time, against references prepared once."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from captioner.errors import UsageError

Words = Sequence[Hashable]  # strings or ids
Gram = tuple[Hashable, ...]

LONGEST = 4  # n-grams
SIGMA = 6.0  # of the penalty for another length


class _Vector(NamedTuple):
    """A caption's n-grams, weighted, for every n; their norms; its length as CIDEr-D measures it."""

    weights: list[dict[Gram, float]]
    norms: list[float]
    length: int


class Consensus:
    """CIDEr-D (Vedantam, Zitnick, Parikh 2015, arXiv 1411.5726, §4) with one corpus' frequencies.

    What coco-caption computes for a whole file of results, for one picture at a time.

    Args:
        corpus: for every picture its reference captions, in words or ids.

    Raises:
        UsageError: no pictures.
    """

    def __init__(self, corpus: Iterable[Sequence[Words]]) -> None:
        self._frequencies: Counter[Gram] = Counter()
        pictures = 0
        for captions in corpus:
            pictures += 1
            self._frequencies.update({gram for caption in captions for gram in _grams(caption)})
        if not pictures:
            raise UsageError(
                "CIDEr-D needs reference captions to learn how rare words are, got none"
            )
        self._log_pictures = math.log(pictures)

    def __call__(self, candidates: Sequence[Words], references: Sequence[Words]) -> list[float]:
        """How much each caption of a picture says what its references say: 0 to 10, mostly below 2."""
        vectors = [self._vector(reference) for reference in references]
        found = []
        for candidate in candidates:
            given = self._vector(candidate)
            total = sum(_similarity(given, vector) for vector in vectors)
            found.append(total / max(len(vectors), 1))
        return found

    def _vector(self, caption: Words) -> _Vector:
        weights: list[dict[Gram, float]] = [{} for _ in range(LONGEST)]
        for gram, count in _grams(caption).items():
            rarity = self._log_pictures - math.log(max(1, self._frequencies[gram]))
            weights[len(gram) - 1][gram] = count * rarity
        norms = [math.sqrt(sum(value * value for value in part.values())) for part in weights]
        return _Vector(weights, norms, max(len(caption) - 1, 0))


def _grams(caption: Words) -> Counter[Gram]:
    return Counter(
        tuple(caption[i : i + n])
        for n in range(1, LONGEST + 1)
        for i in range(len(caption) - n + 1)
    )


def _similarity(given: _Vector, reference: _Vector) -> float:
    """Of two captions: the mean over n of the clipped cosine, times 10."""
    penalty = math.exp(-((given.length - reference.length) ** 2) / (2 * SIGMA**2))
    total = 0.0
    for n in range(LONGEST):
        norm = given.norms[n] * reference.norms[n]
        if norm:
            other = reference.weights[n]
            total += (
                sum(
                    min(value, other[gram]) * other[gram]
                    for gram, value in given.weights[n].items()
                    if gram in other
                )
                / norm
            )
    return 10 * penalty * total / LONGEST
