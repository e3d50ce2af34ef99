"""Baseline maps, which do not depend on the word or on the image."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

from captioner.data.masks import MaskedImage
from captioner.evaluation.localisation import Maps, normalised

MARGIN = 1e-6  # the oracle's weight on cells other than the fullest


class MaskPrior:
    """Sums of masks by category and by image.

    ``source`` names the training images. If it is None, these are the evaluated images, and each is
    left out of its own prior.
    """

    def __init__(
        self, images: Sequence[MaskedImage], grid: tuple[int, int], source: str | None = None
    ) -> None:
        self.grid = grid
        self.description = "masks of the other evaluated images"
        if source is not None:
            self.description = f"masks of {len(images)} training images: {source}"
        self._leave_out = source is None
        self._masks: dict[str, dict[int, np.ndarray]] = defaultdict(dict)  # category → image → mask
        self._images: dict[int, np.ndarray] = {}
        self._total = np.zeros(grid[0] * grid[1])
        for index, image in enumerate(images):
            masks = {c: image.truth(image.of(c), grid) for c in dict.fromkeys(image.categories)}
            for category, mask in masks.items():
                self._masks[category][index] = mask
            self._images[index] = np.sum([np.zeros_like(self._total), *masks.values()], axis=0)
            self._total = self._total + self._images[index]
        self._sums = {category: sum(masks.values()) for category, masks in self._masks.items()}

    def category(self, category: str, image: int) -> Float64[np.ndarray, " L"]:
        """Return the sum of a category's masks, for the evaluated image with this index.

        If no image has the category, it is the sum of all masks.
        """
        masks = self._masks[category]
        own = masks.get(image) if self._leave_out else None
        if len(masks) > (own is not None):
            return np.asarray(self._sums[category] - (0 if own is None else own))
        return self._all(image)

    def centre(self, image: int) -> Float64[np.ndarray, " L"]:
        """Return the Gaussian with the mean and covariance of all masks; see ``category``."""
        mass = np.clip(self._all(image), 0, None)
        if mass.sum() <= 0:
            return mass
        rows, columns = self.grid
        y, x = np.mgrid[:rows, :columns].reshape(2, -1)
        points = np.stack([(y + 0.5) / rows, (x + 0.5) / columns])
        offsets = points - (points @ mass / mass.sum())[:, None]
        # The variance inside a cell keeps the covariance of a single cell invertible.
        covariance = np.diag([rows**-2, columns**-2]) / 12
        covariance += (mass * offsets) @ offsets.T / mass.sum()
        return np.exp(-0.5 * np.einsum("il,ij,jl->l", offsets, np.linalg.inv(covariance), offsets))

    def _all(self, image: int) -> Float64[np.ndarray, " L"]:
        return self._total - self._images[image] if self._leave_out else self._total


def mean_of_others(
    maps: Maps, image: Int[np.ndarray, " N"], queries: Int[np.ndarray, " M"]
) -> Float64[np.ndarray, "M L"]:
    """Return the mean map of all other images for each image in ``queries``.

    ``image`` is the index of the image of each map.
    """
    sums = np.zeros((max(image.max(), queries.max()) + 1, maps.shape[1]))
    np.add.at(sums, image, maps)
    return normalised(np.clip(maps.sum(0) - sums[queries], 0, None))


def oracle(masks: Maps) -> Maps:
    """Return the best maps on this grid: almost all weight on the cells that the mask covers most.

    Their mass is an upper bound, below 1 if the mask fills no cell. The other cells are ranked by mask.
    """
    fullest = masks >= masks.max(1, keepdims=True)
    return (1 - MARGIN) * normalised(fullest) + MARGIN * normalised(masks)
