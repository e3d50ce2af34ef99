"""Weights to colours, and grid cells to pixels."""

from functools import cache

import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from captioner.overlay.style import Look, Smoothing

SIGMA = 20 / 16
"""Standard deviation of the gaussian in cells: Xu et al. 2015 blurred cells of 16 pixels by 20."""


@cache
def table(look: Look) -> UInt8[np.ndarray, "256 4"]:
    """Return the colour and the opacity of 256 levels, from the lowest to the highest.

    ``glow`` is transparent at first and then goes from purple over orange to pale yellow, the upper
    part of inferno, which is readable without colour vision. ``paper`` goes from half
    transparent black to white.
    """
    from matplotlib import colormaps  # slow to import, and needed only for drawing

    levels = np.linspace(0, 1, 256)
    if look == "paper":
        colors = np.asarray(colormaps["gray"](levels))
        colors[:, 3] = 0.6 + 0.4 * levels
    else:
        colors = np.asarray(colormaps["inferno"](0.35 + 0.65 * levels))
        colors[:, 3] = np.minimum(1, 1.6 * levels)
    return np.asarray((255 * colors).round(), np.uint8)


def colorize(
    values: Float[np.ndarray, "*shape"], low: float, high: float, look: Look
) -> UInt8[np.ndarray, "*shape 4"]:
    """Return the RGBA colour of each value: the first one up to ``low``, the last one from ``high``."""
    relative = np.clip((values - low) / (high - low), 0, 1) if high > low else 0 * values
    return table(look)[(relative * 255).round().astype(np.uint8)]


def upsample(
    cells: Float[np.ndarray, "rows columns"], size: tuple[int, int], smoothing: Smoothing
) -> Float32[np.ndarray, "height width"]:
    """Resize a map to (width, height) pixels, so that each cell covers its own area of the image.

    A flat map stays flat. Negative values, which bicubic interpolation can produce, become 0.
    """
    cells = cells.astype(np.float32)
    if smoothing == "gaussian":
        (width, height), (rows, columns) = size, cells.shape
        pixels = _gaussian(height, rows) @ cells @ _gaussian(width, columns).T
    else:
        method = Image.Resampling.BICUBIC if smoothing == "bicubic" else Image.Resampling.NEAREST
        pixels = np.asarray(Image.fromarray(cells).resize(size, method))
    return np.asarray(np.maximum(pixels, 0))


def _gaussian(pixels: int, cells: int) -> Float32[np.ndarray, "pixels cells"]:
    """Return the weight of each cell at each pixel along one axis; rows sum to 1."""
    centers = (np.arange(pixels) + 0.5) * cells / pixels
    distances = centers[:, None] - (np.arange(cells) + 0.5)
    kernel = np.exp(-((distances / SIGMA) ** 2) / 2)
    return np.asarray(kernel / kernel.sum(1, keepdims=True), np.float32)
