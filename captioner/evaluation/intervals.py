"""Confidence intervals over pictures: the words of one picture are not independent."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int, Shaped


@dataclass(frozen=True)
class Estimate:
    """A mean, and the same mean of every resample.

    Attributes:
        value: the mean; not a number where there was nothing to take it of.
        draws: of every resample of the pictures.
    """

    value: float
    draws: Float64[np.ndarray, " S"]

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The middle 95 % of the resamples (percentile bootstrap)."""
        draws = self.draws[np.isfinite(self.draws)]
        if not len(draws):
            return float("nan"), float("nan")
        low, high = np.percentile(draws, [2.5, 97.5])
        return float(low), float(high)

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The difference, resample by resample: both were taken of the same pictures."""
        return Estimate(self.value - other.value, self.draws - other.draws)

    def percent(self) -> dict[str, float | None]:
        """Mean and interval in percent, for JSON; None where there was nothing to take a mean of."""
        # Adding 0 makes -0.0 a plain zero.
        numbers = {"value": self.value, "low": self.interval[0], "high": self.interval[1]}
        return {
            name: round(100 * number, 2) + 0.0 if np.isfinite(number) else None
            for name, number in numbers.items()
        }


class Bootstrap:
    """Resamples of the pictures, with replacement (Efron 1979); every mean uses the same ones.

    Args:
        pictures: how many.
        samples: S, resamples.
        seed: of the resamples.
    """

    def __init__(self, pictures: int, samples: int = 1000, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        even = np.full(pictures, 1 / pictures)
        self.counts = np.vstack([np.ones(pictures), rng.multinomial(pictures, even, size=samples)])
        self.pictures = pictures

    def mean(self, values: Shaped[np.ndarray, " N"], picture: Int[np.ndarray, " N"]) -> Estimate:
        """The mean over all values, each of the picture given by its place."""
        return self.ratio(values, picture, np.ones(len(values)), picture)

    def ratio(
        self,
        above: Shaped[np.ndarray, " N"],
        above_picture: Int[np.ndarray, " N"],
        below: Shaped[np.ndarray, " M"],
        below_picture: Int[np.ndarray, " M"],
    ) -> Estimate:
        """The sum of some values over the sum of others, each of a picture."""
        tops = self.counts @ np.bincount(above_picture, above, self.pictures)
        bottoms = self.counts @ np.bincount(below_picture, below, self.pictures)
        return _estimate(_divide(tops, bottoms))

    def macro(
        self,
        values: Shaped[np.ndarray, " N"],
        picture: Int[np.ndarray, " N"],
        group: Int[np.ndarray, " N"],
    ) -> Estimate:
        """The mean over groups of the mean within each; groups that a resample lacks do not count."""
        place = np.stack([picture, group], axis=1)
        return self.macro_ratio(values, place, np.ones(len(values)), place)

    def macro_ratio(
        self,
        above: Shaped[np.ndarray, " N"],
        above_place: Int[np.ndarray, "N 2"],
        below: Shaped[np.ndarray, " M"],
        below_place: Int[np.ndarray, "M 2"],
    ) -> Estimate:
        """The mean over groups of a ratio of sums; every value is of a (picture, group)."""
        ratios = []
        for group in np.unique(below_place[:, 1]):
            sums = []
            for values, place in ((above, above_place), (below, below_place)):
                of = place[:, 1] == group
                sums.append(self.counts @ np.bincount(place[of, 0], values[of], self.pictures))
            ratios.append(_divide(*sums))
        if not ratios:
            return _estimate(np.full(len(self.counts), np.nan))
        there = np.isfinite(ratios)
        return _estimate(_divide(np.where(there, ratios, 0.0).sum(0), there.sum(0)))


def _divide(
    tops: Shaped[np.ndarray, " S"], bottoms: Shaped[np.ndarray, " S"]
) -> Float64[np.ndarray, " S"]:
    return np.where(bottoms > 0, tops / np.where(bottoms > 0, bottoms, 1), np.nan)


def _estimate(values: Float64[np.ndarray, " S"]) -> Estimate:
    return Estimate(float(values[0]), values[1:])
