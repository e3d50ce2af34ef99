"""The output of an encoder: one vector per region of an image."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Annotations:
    """The annotation vectors a_1 … a_L of B images (Xu et al. 2015 §3.1.1).

    An encoder of two streams gives two kinds of vectors: attention compares the query with ``keys`` and
    averages ``vectors``. Its streams may have different grids; after the neck, both have the same.

    Regions of a detector have ``boxes`` instead of a grid: left, top, right and bottom as fractions of
    the image's width and height. Their ``grid`` is (1, L).
    """

    vectors: Float[Tensor, "B L D"]  # regions in raster order
    grid: tuple[int, int]  # (rows, columns) of the feature map; L = rows · columns
    mask: Bool[Tensor, "B L"] | None = None  # True where a region may be attended
    keys: "Annotations | None" = None  # None if the vectors are the keys as well
    boxes: Float[Tensor, "B L 4"] | None = None  # None for the cells of a grid

    def __post_init__(self) -> None:
        regions, (rows, columns) = self.vectors.shape[1], self.grid
        if rows * columns != regions:
            raise ValueError(f"{regions} annotation vectors do not fill a {rows}×{columns} grid")

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def mean(self) -> Float[Tensor, "B D"]:
        """Return the mean over the regions that may be attended; zero if there are none."""
        if self.mask is None:
            return self.vectors.mean(1)
        weights = self.mask.to(self.vectors.dtype).unsqueeze(-1)  # (B, L, 1)
        return (self.vectors * weights).sum(1) / weights.sum(1).clamp(min=1)

    def of(self, row: int) -> "Annotations":
        """Return the annotations of one image."""
        mask = None if self.mask is None else self.mask[row : row + 1]
        keys = None if self.keys is None else self.keys.of(row)
        boxes = None if self.boxes is None else self.boxes[row : row + 1]
        return Annotations(self.vectors[row : row + 1], self.grid, mask, keys, boxes)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Annotations":
        """Apply a function to the vectors, and to those of the keys."""
        keys = None if self.keys is None else self.keys.map(function)
        return replace(self, vectors=function(self.vectors), keys=keys)

    def flat(self) -> "Annotations":
        """Return annotations in which every region is the mean of its image, keys likewise."""
        keys = None if self.keys is None else self.keys.flat()
        return replace(self, vectors=self.mean().unsqueeze(1).expand_as(self.vectors), keys=keys)

    def resampled(self, grid: tuple[int, int]) -> "Annotations":
        """Interpolate the vectors bilinearly to another grid; there must be no mask."""
        if grid == self.grid:
            return self
        features = torch.unflatten(self.vectors.transpose(1, 2), 2, self.grid)
        resized = F.interpolate(features, grid, mode="bilinear", align_corners=False)
        return replace(self, vectors=resized.flatten(2).transpose(1, 2), grid=grid)
