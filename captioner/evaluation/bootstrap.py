"""Bootstrap confidence intervals over images (Efron 1979), and the means that are resampled.

Mentions and words of one image depend on each other, so whole images are drawn with replacement.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float, Float64, Int, Shaped

LEVEL = 0.95
BLOCK = 4_000_000  # counts in memory at a time

Counts = Float64[np.ndarray, "R I"]
"""How often each of I images occurs in each of R resamples."""
Statistic = Callable[[Counts], Float64[np.ndarray, " R"]]
"""Maps resamples to the value of a measure in each."""
Totals = tuple[Float64[np.ndarray, " I"], Float64[np.ndarray, " I"]]
"""For each image, the sum of some values, and the number to divide by."""


@dataclass(frozen=True)
class Estimate:
    """A measure with its 95 % confidence interval."""

    value: float
    low: float
    high: float


class Bootstrap:
    """Percentile bootstrap: the interval is the middle 95 % of the values over all resamples.

    All calls use the same resamples. The interval of a difference,
    ``estimate(lambda counts: one(counts) - other(counts))``, is therefore paired.

    Args:
        images: number of images, at least 1.
        resamples: number of resamples.
        seed: seed of the random draws.
    """

    def __init__(self, images: int, resamples: int = 2000, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        drawn = (rng.integers(images, size=images) for _ in range(resamples))
        self._counts = np.stack([np.bincount(one, minlength=images) for one in drawn])
        self._counts = self._counts.astype(np.uint16)

    def estimate(self, statistic: Statistic) -> Estimate:
        """Return the value for all images and its interval; resamples that give NaN are ignored."""
        blocks = np.array_split(self._counts, math.ceil(self._counts.size / BLOCK))
        values = np.concatenate([statistic(counts.astype(np.float64)) for counts in blocks])
        tail = 100 * (1 - LEVEL) / 2
        low, high = np.nanpercentile(values, [tail, 100 - tail])
        return Estimate(self._value(statistic), float(low), float(high))

    def interval(self, statistic: Statistic) -> dict[str, float | None]:
        """Return the rounded estimate, ready for JSON; all None if there is nothing to measure."""
        if not math.isfinite(self._value(statistic)):
            return {"value": None, "low": None, "high": None}
        estimate = asdict(self.estimate(statistic))
        # Adding 0 turns -0.0 into 0.0.
        return {name: round(number, 4) + 0.0 for name, number in estimate.items()}

    def _value(self, statistic: Statistic) -> float:
        return float(statistic(np.ones((1, self._counts.shape[1])))[0])


def ratio(sums: Float[np.ndarray, " I"], numbers: Float[np.ndarray, " I"]) -> Statistic:
    """Return the statistic Σ sums / Σ numbers, NaN where a resample has nothing to divide by.

    Args:
        sums: sum of the values of each image.
        numbers: number of values of each image.
    """

    def statistic(counts: Counts) -> Float64[np.ndarray, " R"]:
        total = counts @ numbers
        return np.divide(counts @ sums, total, out=np.full_like(total, np.nan), where=total > 0)

    return statistic


def totals(
    values: Shaped[np.ndarray, " N"],
    image: Int[np.ndarray, " N"],
    images: int,
    counted: Int[np.ndarray, " M"] | None = None,
) -> Totals:
    """Sum values by image.

    Args:
        values: the values to add up.
        image: index of the image of each value.
        images: number of images.
        counted: index of the image of each item to divide by; the values themselves by default.
    """
    counted = image if counted is None else counted
    sums = np.bincount(image, values, images).astype(np.float64)  # integers if there are no values
    return sums, np.bincount(counted, minlength=images).astype(np.float64)
