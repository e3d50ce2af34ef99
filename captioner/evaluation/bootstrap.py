"""Bootstrap intervals over images (Efron 1979), paired where two measures share the images."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float, Float64

LEVEL = 0.95

# How often each image counts in every resample (R, I) → the measure of every resample (R,).
Statistic = Callable[[Float64[np.ndarray, "R I"]], Float64[np.ndarray, " R"]]


@dataclass(frozen=True)
class Estimate:
    """A measure with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 where the interval lies above 0, -1 below; 0 where it holds 0."""
        return int(self.low > 0) - int(self.high < 0)

    def as_dict(self) -> dict[str, float]:
        """Ready for JSON."""
        return asdict(self)


class Bootstrap:
    """The same resamples of so many images for every measure, so that differences are paired.

    Percentile intervals: the images, drawn with replacement as many times as there are, are measured
    anew, and the middle 95 % of what comes out is the interval. Words of one image depend on each
    other; drawing whole images keeps them together.

    Args:
        images: how many there are, 1 or more.
        resamples: how many times they are drawn.
        seed: of the draws.
    """

    def __init__(self, images: int, resamples: int = 2000, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._counts = np.stack(
            [
                np.bincount(rng.integers(images, size=images), minlength=images)
                for _ in range(resamples)
            ]
        ).astype(np.uint16)

    def estimate(self, statistic: Statistic) -> Estimate:
        """A measure of the images as they are, and its interval.

        A difference of two measures of the same images is a measure like any other:
        ``estimate(lambda counts: one(counts) - other(counts))``.
        """
        resamples, images = self._counts.shape
        value = float(statistic(np.ones((1, images)))[0])
        found = np.concatenate([statistic(counts) for counts in self._blocks()])
        tail = 100 * (1 - LEVEL) / 2
        # A resample may hold nothing to measure: it says nothing.
        low, high = np.nanpercentile(found, [tail, 100 - tail]) if resamples else (value, value)
        return Estimate(value, float(low), float(high))

    def _blocks(self, numbers: int = 4_000_000) -> Iterator[Float64[np.ndarray, "R I"]]:
        """Some resamples at a time: all at once would fill the memory."""
        at_once = max(1, numbers // self._counts.shape[1])
        for start in range(0, len(self._counts), at_once):
            yield self._counts[start : start + at_once].astype(np.float64)


def ratio(
    sums: Float[np.ndarray, " I"], numbers: Float[np.ndarray, " I"] | None = None
) -> Statistic:
    """The mean of what every image gives several of, or one.

    Args:
        sums: of what each image gives.
        numbers: how many each gives; one if left out.
    """
    numbers = np.ones_like(sums) if numbers is None else numbers

    def statistic(counts: Float64[np.ndarray, "R I"]) -> Float64[np.ndarray, " R"]:
        total = counts @ numbers
        return np.divide(counts @ sums, total, out=np.full_like(total, np.nan), where=total > 0)

    return statistic
