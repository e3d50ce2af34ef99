"""Means of what belongs to pictures, as measures that can be resampled, in percent."""

import numpy as np
from jaxtyping import Float64, Int, Shaped

from captioner.evaluation.bootstrap import Bootstrap, Statistic, ratio

Totals = tuple[Float64[np.ndarray, " P"], Float64[np.ndarray, " P"]]
"""What each picture adds to a measure, and to how many things it is over."""


def totals(
    values: Shaped[np.ndarray, " N"],
    picture: Int[np.ndarray, " N"],
    counted: Int[np.ndarray, " M"],
    pictures: int,
) -> Totals:
    """Of every picture the sum of its values, and the number of things counted in it.

    Args:
        values: of the picture given by its place among so many.
        picture: of each value.
        counted: the picture of each thing.
        pictures: how many there are.
    """
    sums = np.bincount(picture, values, pictures).astype(np.float64)  # of nothing it makes integers
    return sums, np.bincount(counted, minlength=pictures).astype(np.float64)


def mean(
    values: Shaped[np.ndarray, " N"], picture: Int[np.ndarray, " N"], pictures: int
) -> Statistic:
    """The mean over all values, each of the picture given by its place among so many."""
    return ratio(*totals(values, picture, picture, pictures))


def macro(
    values: Shaped[np.ndarray, " N"],
    place: Int[np.ndarray, "N 2"],
    counted: Int[np.ndarray, "M 2"],
    pictures: int,
) -> Statistic:
    """The mean over groups of each one's quotient; groups that a resample lacks do not count.

    Args:
        values: whose sums are divided.
        place: the picture and the group of each.
        counted: likewise, of the things that are counted.
        pictures: how many there are.
    """
    groups = 1 + int(max(counted[:, 1].max(initial=0), place[:, 1].max(initial=0)))
    sums, numbers = np.zeros((2, pictures, groups))
    np.add.at(sums, (place[:, 0], place[:, 1]), values)
    np.add.at(numbers, (counted[:, 0], counted[:, 1]), 1.0)

    def statistic(counts: Float64[np.ndarray, "R I"]) -> Float64[np.ndarray, " R"]:
        below = counts @ numbers
        there = below > 0
        quotients = np.divide(counts @ sums, below, out=np.zeros_like(below), where=there)
        number = there.sum(1)
        missing = np.full(len(counts), np.nan)
        return np.divide(quotients.sum(1), number, out=missing, where=number > 0)

    return statistic


def percent(bootstrap: Bootstrap, pictures: int, *of: Statistic) -> dict[str, float | None]:
    """A measure and its interval, ready for JSON; of two measures, how far the first leads.

    ``value``, ``low`` and ``high`` are None where there is nothing to measure.
    """

    def lead(counts: Float64[np.ndarray, "R I"]) -> Float64[np.ndarray, " R"]:
        first, *others = (one(counts) for one in of)
        return first - sum(others)

    if not np.isfinite(lead(np.ones((1, pictures)))).all():
        return {"value": None, "low": None, "high": None}
    found = bootstrap.estimate(lead).as_dict()
    # Adding 0 makes -0.0 a plain zero.
    return {name: round(100 * number, 4) + 0.0 for name, number in found.items()}
