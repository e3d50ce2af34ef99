"""From the agreement of sampled captions to the probability that a caption is right (Platt 1999)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

import numpy as np

from captioner.errors import EvaluationError


@dataclass(frozen=True)
class Calibration:
    """``confidence = σ(intercept + slope · agreement)``, a probability from 0 to 1."""

    intercept: float
    slope: float

    def __call__(self, agreement: float) -> float:
        """Return the confidence for an agreement of samples."""
        return 1 / (1 + exp(-(self.intercept + self.slope * agreement)))


def calibrate(agreements: Sequence[float], right: Sequence[bool]) -> Calibration:
    """Fit a logistic regression by maximum likelihood, with Newton's method.

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
    return Calibration(*map(float, weights))


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
