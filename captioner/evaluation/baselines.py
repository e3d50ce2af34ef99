"""Maps that know nothing of the word, or nothing of the picture: what a model is measured against.

What is learned from masks is learned from training pictures where their masks are given, and otherwise
from the evaluated pictures but the one in question.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int, Shaped

from captioner.data.masks import MaskedPicture
from captioner.evaluation.localisation import normalised

MARGIN = 1e-6  # of the oracle's weight, that ranks the cells behind the fullest


class MaskPrior:
    """Where masks lie on average.

    Args:
        pictures: whose masks are averaged.
        grid: (rows, columns).
        leave_out: whether these are the evaluated pictures, each to be left out of its own average.
    """

    def __init__(
        self, pictures: Sequence[MaskedPicture], grid: tuple[int, int], leave_out: bool
    ) -> None:
        self.grid, self.leave_out = grid, leave_out
        # The category, the picture's place and the mask of all objects of a category in a picture.
        self.sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(grid[0] * grid[1]))
        self.counts: dict[str, int] = defaultdict(int)
        self.own: dict[tuple[str, int], np.ndarray] = {}
        self.total = np.zeros(grid[0] * grid[1])
        self.of_picture: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(grid[0] * grid[1]))
        for place, picture in enumerate(pictures):
            for category in dict.fromkeys(picture.categories):
                mask = picture.truth(picture.of(category), grid)
                self.sums[category] += mask
                self.counts[category] += 1
                self.total += mask
                if leave_out:
                    self.own[category, place] = mask
                    self.of_picture[place] += mask

    def category(self, category: str, place: int) -> Float64[np.ndarray, " L"]:
        """The mean mask of a category, for a picture; of all where no other picture has it."""
        seen, own = self.counts.get(category, 0), self.own.get((category, place))
        if seen > (own is not None):
            return self.sums[category] - (0 if own is None else own)
        return self._all(place)

    def centre(self, place: int) -> Float64[np.ndarray, " L"]:
        """The Gaussian with the mean and the covariance of all masks, at the centres of the cells."""
        mass = np.clip(self._all(place), 0, None)
        if mass.sum() <= 0:
            return mass
        rows, columns = self.grid
        y, x = np.mgrid[:rows, :columns].reshape(2, -1)
        points = np.stack([(y + 0.5) / rows, (x + 0.5) / columns])
        mean = points @ mass / mass.sum()
        away = points - mean[:, None]
        # A cell is no point: its own spread keeps the covariance of a single cell from vanishing.
        spread = (mass * away) @ away.T / mass.sum() + np.diag([rows**-2, columns**-2]) / 12
        return np.exp(-0.5 * np.einsum("il,ij,jl->l", away, np.linalg.inv(spread), away))

    def _all(self, place: int) -> Float64[np.ndarray, " L"]:
        if self.leave_out and place in self.of_picture:
            return self.total - self.of_picture[place]
        return self.total


def mean_of_others(
    maps: Float64[np.ndarray, "N L"], picture: Int[np.ndarray, " N"], asked: Int[np.ndarray, " M"]
) -> Float64[np.ndarray, "M L"]:
    """For each picture asked about, by its place, the mean of the maps of all others.

    Args:
        maps: of captions.
        picture: the place of the picture of each.
        asked: places of pictures.
    """
    sums = np.zeros((max(picture.max(), asked.max()) + 1, maps.shape[1]))
    np.add.at(sums, picture, maps)
    return normalised(np.clip(maps.sum(0) - sums[asked], 0, None))


def shuffled(
    weights: Shaped[np.ndarray, "T L"], rng: np.random.Generator
) -> Shaped[np.ndarray, "T L"]:
    """A caption's maps dealt out to its words anew."""
    return weights[rng.permutation(len(weights))]


def oracle(masks: Float64[np.ndarray, "N L"]) -> Float64[np.ndarray, "N L"]:
    """What is best on this grid: all weight on the fullest cells, the others ranked by the mask.

    A cell that a mask only touches lets even the best map spill: this is how much.
    """
    fullest = masks >= masks.max(1, keepdims=True)
    return (1 - MARGIN) * normalised(fullest) + MARGIN * normalised(masks)
