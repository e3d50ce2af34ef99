"""CIDEr-D of single captions, with document frequencies computed once: a reward, and a kernel."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

Words = Sequence[Hashable]  # strings or ids
Gram = tuple[Hashable, ...]

ORDER = 4  # longest n-grams
SIGMA = 6.0  # of the Gaussian length penalty


class _Vector(NamedTuple):
    weights: list[dict[Gram, float]]  # TF-IDF of the n-grams for n = 1 … 4
    norms: list[float]
    length: int  # in bigrams


class CiderD:
    """CIDEr-D (Vedantam, Zitnick, Parikh 2015, arXiv 1411.5726, §4), as in coco-caption.

    ``corpus`` has the reference captions of every image, as words or ids, for document frequencies.
    """

    def __init__(self, corpus: Iterable[Sequence[Words]]) -> None:
        images = [{gram for caption in captions for gram in _grams(caption)} for captions in corpus]
        self._frequencies = Counter(gram for grams in images for gram in grams)
        self._log_images = math.log(max(1, len(images)))

    def __call__(self, candidates: Sequence[Words], references: Sequence[Words]) -> list[float]:
        """Score each candidate caption of one image, from 0 to 10; most scores are below 2."""
        vectors = list(map(self._vector, references))
        return [
            sum(_similarity(vector, reference) for reference in vectors) / max(len(vectors), 1)
            for vector in map(self._vector, candidates)
        ]

    def similarities(self, captions: Sequence[Words]) -> list[list[float]]:
        """Return the kernel of self-CIDEr: CIDEr, from 0 to 1, between each two captions.

        This is the mean over n of the cosine of their TF-IDF vectors, without clipping and length
        penalty (Vedantam et al., §3), so that the matrix has no negative eigenvalues.
        """
        vectors = list(map(self._vector, captions))
        return [[_cosine(one, other) for other in vectors] for one in vectors]

    def _vector(self, caption: Words) -> _Vector:
        weights: list[dict[Gram, float]] = [{} for _ in range(ORDER)]
        for gram, count in _grams(caption).items():
            idf = self._log_images - math.log(max(1, self._frequencies[gram]))
            weights[len(gram) - 1][gram] = count * idf
        norms = [math.sqrt(sum(value * value for value in part.values())) for part in weights]
        return _Vector(weights, norms, max(len(caption) - 1, 0))


def _grams(caption: Words) -> Counter[Gram]:
    return Counter(
        tuple(caption[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(caption) - n + 1)
    )


def _similarity(candidate: _Vector, reference: _Vector) -> float:
    """10 × length penalty × mean over n of the cosine with clipped counts."""
    penalty = math.exp(-((candidate.length - reference.length) ** 2) / (2 * SIGMA**2))
    return 10 * penalty * _cosine(candidate, reference, clipped=True)


def _cosine(one: _Vector, other: _Vector, clipped: bool = False) -> float:
    """Mean over n of the cosine; ``clipped``: no weight of ``one`` counts above that of ``other``."""
    total = 0.0
    for n, weights in enumerate(other.weights):
        if norm := one.norms[n] * other.norms[n]:
            pairs = [(value, weights.get(gram, 0)) for gram, value in one.weights[n].items()]
            total += sum((min(a, b) if clipped else a) * b for a, b in pairs) / norm
    return total / ORDER
