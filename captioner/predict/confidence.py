"""The confidence of a caption: the probability that it is right, from captions sampled for the photo.

Where a model recognises a photo, sampled captions agree; where it guesses, they differ
(self-consistency, Wang et al. 2023, arXiv 2203.11171). Logistic regression turns the agreement into a
probability that the caption is right (Platt 1999).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log

import numpy as np
from nltk.stem import PorterStemmer

from captioner.errors import EvaluationError
from captioner.language.vocabulary import Tokenizer
from captioner.language.word_classes import FUNCTION_WORDS

SAMPLES = 24  # captions that are sampled for each photo
RIGHT = 0.75  # least share of content words that the references of a right caption contain
NO_WORDS = log(0.5 / (SAMPLES + 1))  # the agreement on a caption without content words

stem = lru_cache(100_000)(PorterStemmer().stem)


@dataclass(frozen=True)
class Calibration:
    """``confidence = σ(intercept + slope · agreement)``, a probability from 0 to 1."""

    intercept: float
    slope: float

    def __call__(self, agreement: float) -> float:
        """Return the confidence of a caption."""
        return 1 / (1 + exp(-(self.intercept + self.slope * agreement)))


def agreement(words: Iterable[str], samples: Sequence[Iterable[str]]) -> float:
    """Return the mean of ``log((n_w + ½) / (S + 1))`` over the content words w of a caption.

    n_w is the number of the S samples that contain w. Words are compared by their stems.
    """
    found = [set(map(stem, sample)) for sample in samples]
    content = _content(words)
    counts = [sum(word in sample for sample in found) for word in content]
    shares = [log((count + 0.5) / (len(found) + 1)) for count in counts]
    return sum(shares) / len(shares) if shares else NO_WORDS


def is_right(words: Iterable[str], references: Collection[str]) -> bool:
    """Return whether the references contain three quarters of a caption's content words, by stem."""
    known = {stem(word) for reference in references for word in Tokenizer()(reference)}
    content = _content(words)
    return bool(content) and sum(word in known for word in content) >= RIGHT * len(content)


def calibrate(agreements: Sequence[float], right: Sequence[bool]) -> Calibration:
    """Fit a calibration by maximum likelihood, with Newton's method.

    As in Platt 1999, the targets are (n + 1) / (n + 2) for the n right captions and 1 / (m + 2) for the
    m wrong ones, so that few captions do not lead to extreme weights.

    Raises:
        EvaluationError: all captions are right, or none is.
    """
    count = sum(right)
    if not 0 < count < len(right):
        raise EvaluationError(
            f"{count:,} of {len(right):,} captions are right: calibration needs right and wrong ones; "
            "give more photos"
        )
    wrong = len(right) - count
    targets = np.where(right, (count + 1) / (count + 2), 1 / (wrong + 2))
    inputs = np.stack([np.ones(len(right)), agreements], 1)  # (N, 2)
    weights = np.zeros(2)
    for _ in range(50):
        probs = 1 / (1 + np.exp(-inputs @ weights))
        gradient = inputs.T @ (targets - probs)
        curvature = (inputs * (probs * (1 - probs))[:, None]).T @ inputs + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights += step.clip(-5, 5)
        if np.abs(step).max() < 1e-9:
            break
    return Calibration(*map(float, weights.clip(-100, 100)))


@dataclass(frozen=True)
class Bin:
    """Captions of similar confidence: their number, mean confidence, and share that is right."""

    captions: int
    confidence: float
    right: float


def reliability(confidences: Sequence[float], right: Sequence[bool], bins: int = 5) -> list[Bin]:
    """Group captions into bins of equal size by their confidence, the lowest first."""
    order = np.argsort(confidences, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    values, truth = np.asarray(confidences), np.asarray(right)
    return [Bin(len(p), float(values[p].mean()), float(truth[p].mean())) for p in parts]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the mean distance of confidence and share of right captions (ECE, Naeini et al. 2015)."""
    total = sum(part.captions for part in bins)
    return sum(part.captions * abs(part.confidence - part.right) for part in bins) / total


def _content(words: Iterable[str]) -> list[str]:
    return [stem(word) for word in words if word not in FUNCTION_WORDS]
