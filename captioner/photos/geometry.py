"""Where the cells of a grid, or the boxes of a detector, are on a photo."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Real

from captioner.errors import plural

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as fractions of a photo's sides; beyond 0 … 1 for padding around it."""
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
MOST_CELLS = 96  # along one axis of a photo of which the model sees a small part


@dataclass(frozen=True)
class Geometry:
    """Where the cells of the annotation grid are in an image.

    Images are resized for the encoder, not cropped or padded: cell (r, c) spans c · width / columns …
    (c + 1) · width / columns from the left. Pixel (i, j) covers the unit square from (j, i).

    Args:
        width, height: of the upright image, in pixels.
        grid: rows and columns of the annotation map.
        boxes: of the regions of a detector, in place of a grid, which is then (1, number of regions):
            left, top, right and bottom in pixels.
    """

    width: int
    height: int
    grid: tuple[int, int]
    boxes: tuple[tuple[float, float, float, float], ...] | None = None

    def describe(self) -> str:
        """Return what has a weight: "cell of the 7 × 7 grid", or "region (36 regions)"."""
        rows, columns = self.grid
        if self.boxes is not None:
            return f"region ({plural(columns, 'region')})"
        return f"cell of the {rows} × {columns} grid"

    def to_grid(
        self, mask: Bool[np.ndarray, "height width"] | Real[np.ndarray, "height width"]
    ) -> Float64[np.ndarray, "rows columns"]:
        """Return the mean of a mask over each cell; of a boolean mask, the fraction covered.

        A pixel on a border counts with the area that it shares with the cell.
        """
        if mask.shape != (self.height, self.width):
            raise ValueError(f"a mask of shape {mask.shape}: expected {self.height, self.width}")
        # The area that two boxes share is a product of lengths, so each axis has its own matrix.
        rows, columns = overlaps(self.grid[0], self.height), overlaps(self.grid[1], self.width)
        means = rows @ mask.astype(np.float64) @ columns.T
        # Rounding must not make a full cell 1.0000000000000002.
        return np.asarray(np.clip(means, mask.min(), mask.max()))


def overlaps(
    cells: int, pixels: int, start: float = 0.0, end: float = 1.0
) -> Float64[np.ndarray, "cells pixels"]:
    """Compute how each of the cells between two fractions of an axis divides among its pixels.

    Rows sum to 1, also if a part of the cell lies outside the image; to 0 if it lies outside as a whole.
    """
    borders = np.linspace(start * pixels, end * pixels, cells + 1)[:, None]
    left = np.maximum(borders[:-1], np.arange(pixels))
    right = np.minimum(borders[1:], np.arange(pixels) + 1)
    lengths = np.clip(right - left, 0, None)
    total = lengths.sum(1, keepdims=True)
    return np.asarray(lengths / np.where(total > 0, total, 1))


def photo_grid(grid: tuple[int, int], box: Box) -> tuple[int, int]:
    """Return rows and columns of cells of about the model's size that cover the whole photo."""
    left, top, right, bottom = box
    spans = ((grid[0], bottom - top), (grid[1], right - left))
    rows, columns = (min(max(round(cells / span), 1), MOST_CELLS) for cells, span in spans)
    return rows, columns


def to_photo(
    maps: Float[np.ndarray, "*axes rows columns"], box: Box, grid: tuple[int, int]
) -> Float64[np.ndarray, "*axes photo_rows photo_columns"]:
    """Move maps of a part of the photo to a grid that covers it: each cell's weight goes where it lies.

    A cell that lies partly on padding counts for its part on the photo; one that lies wholly on padding
    is dropped. Parts of the photo that the model does not see have weight 0.

    Args:
        maps: the cells of the model.
        box: the part of the photo that they cover.
        grid: rows and columns of the result.
    """
    left, top, right, bottom = box
    if box == WHOLE and grid == maps.shape[-2:]:
        return np.asarray(maps, np.float64)
    down = overlaps(maps.shape[-2], grid[0], top, bottom)
    across = overlaps(maps.shape[-1], grid[1], left, right)
    return np.asarray(down.T @ np.asarray(maps, np.float64) @ across)
