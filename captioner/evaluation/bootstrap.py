"""Bootstrap confidence intervals over images (Efron 1979), and the means that are resampled.

Mentions and words of one image are not independent, so whole images are drawn with replacement.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float64, Int, Shaped

BLOCK = 4_000_000  # counts in memory at a time

Counts = Float64[np.ndarray, "R I"]
"""How often each of I images occurs in each of R resamples."""
Statistic = Callable[[Counts], Float64[np.ndarray, " R"]]
"""Maps resamples to the value of a measure in each."""


@dataclass(frozen=True)
class Estimate:
    """A measure with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Ratio:
    """The statistic Σ sums / Σ numbers, NaN where Σ numbers is 0."""

    sums: Float64[np.ndarray, " I"]  # sum of the values of each image
    numbers: Float64[np.ndarray, " I"]  # number of values of each image

    def __call__(self, counts: Counts) -> Float64[np.ndarray, " R"]:
        """Return the ratio in each resample."""
        total = counts @ self.numbers
        empty = np.full_like(total, np.nan)
        return np.divide(counts @ self.sums, total, out=empty, where=total > 0)


def mean(values: Shaped[np.ndarray, " N"], image: Int[np.ndarray, " N"], images: int) -> Ratio:
    """Return the mean of some values as a statistic; ``image`` is the image of each value."""
    sums = np.bincount(image, values, images).astype(np.float64)  # integers if there are no values
    return Ratio(sums, np.bincount(image, minlength=images).astype(np.float64))


class Bootstrap:
    """Percentile bootstrap: the interval is the middle 95 % of the values over all resamples.

    All calls use the same resamples, so that differences are paired.
    """

    def __init__(self, images: int, resamples: int = 2000, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        drawn = (rng.integers(images, size=images) for _ in range(resamples))
        counts = [np.bincount(one, minlength=images).astype(np.uint16) for one in drawn]
        self._counts = np.stack(counts)

    def estimate(self, statistic: Statistic) -> Estimate:
        """Return the value for all images and its interval; resamples that give NaN are ignored."""
        value = float(statistic(np.ones((1, self._counts.shape[1])))[0])
        if math.isnan(value):
            return Estimate(math.nan, math.nan, math.nan)
        blocks = np.array_split(self._counts, math.ceil(self._counts.size / BLOCK))
        values = np.concatenate([statistic(counts.astype(np.float64)) for counts in blocks])
        low, high = np.nanpercentile(values, [2.5, 97.5])
        return Estimate(value, float(low), float(high))

    def difference(self, one: Statistic, other: Statistic) -> Estimate:
        """Return the difference of two statistics of the same images."""
        return self.estimate(lambda counts: one(counts) - other(counts))

    def intervals(self, measures: Mapping[str, Statistic]) -> dict[str, dict[str, float | None]]:
        """Return rounded estimates, ready for JSON; all None if there is nothing to measure."""

        def rounded(value: float) -> float | None:
            return None if math.isnan(value) else round(value, 6) + 0.0  # -0.0 becomes 0.0

        estimates = {name: asdict(self.estimate(of)) for name, of in measures.items()}
        return {n: {k: rounded(v) for k, v in of.items()} for n, of in estimates.items()}
