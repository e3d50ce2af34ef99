"""Numbers as colours: the colour map, and how cells become a picture.

The colour map is inferno, by Nathaniel J. Smith and Stéfan van der Walt: perceptually uniform, so that
equal steps in weight look like equal steps, and readable without colour vision. Public domain (CC0):
https://bids.github.io/colormap/. Its dark end lets a photo that nobody looks at fade.
"""

import numpy as np
from jaxtyping import Float, Float32, UInt8
from PIL import Image

from captioner.overlay.style import Smoothing

INFERNO = bytes.fromhex(
    "000004 040312 0b0724 150b37 210c4a 2e0a5a 3c0965 4a0c6b 57106d 63146e 70196e 7d1e6d 89226a 962766 "
    "a32b61 af315c bb3755 c63e4d d14644 db4f3b e35932 eb6528 f1711e f67f14 f98d0a fb9c06 fcab0f fbba1f "
    "f9ca32 f5d949 f2e865 f3f586 fcffa4"
)
"""33 of its colours, evenly apart; between two the straight line is within 2 of 255 levels."""

SIGMA = 20 / 16
"""Of the gaussian, in cells: Xu et al. 2015 enlarged cells to 16 pixels and blurred them by 20."""


def _table() -> UInt8[np.ndarray, "256 3"]:
    knots = np.frombuffer(INFERNO, np.uint8).reshape(-1, 3)
    places = np.linspace(0, 255, len(knots))
    lines = [np.interp(np.arange(256), places, channel) for channel in knots.T]
    return np.stack(lines, axis=1).round().astype(np.uint8)


TABLE = _table()
"""The colours of 256 levels, dark to light."""


def levels(values: Float[np.ndarray, "*place"], top: float) -> UInt8[np.ndarray, "*place"]:
    """0 for a value of 0, 255 for one of ``top``; 0 for all if that is 0."""
    shares = np.clip(values / top, 0, 1) if top > 0 else np.zeros_like(values)
    return (shares * 255).round().astype(np.uint8)


def picture(values: Float[np.ndarray, "height width"], top: float) -> Image.Image:
    """The colours of these values, a pixel each."""
    return Image.fromarray(TABLE[levels(values, top)])


def spread(
    cells: Float[np.ndarray, "rows columns"], size: tuple[int, int], smoothing: Smoothing
) -> Float32[np.ndarray, "height width"]:
    """Cells enlarged to (width, height) pixels, each over its own place; never below 0.

    What the smoothing makes of a flat map is flat.
    """
    rows, columns = cells.shape
    width, height = size
    down, right = _shares(height, rows, smoothing), _shares(width, columns, smoothing)
    return np.asarray(np.maximum(down @ cells.astype(np.float32) @ right.T, 0))


def _shares(pixels: int, cells: int, smoothing: Smoothing) -> Float32[np.ndarray, "pixels cells"]:
    """How much of each cell a pixel along one axis shows; each pixel's shares sum to 1."""
    # Where the pixel's middle lies, counted in cells, from the middle of each cell.
    place = (np.arange(pixels) + 0.5) * cells / pixels
    away = np.abs(place[:, None] - (np.arange(cells) + 0.5))
    match smoothing:
        case "none":
            shares = (place.astype(int)[:, None] == np.arange(cells)).astype(np.float64)
        case "gaussian":
            shares = np.exp(-((away / SIGMA) ** 2) / 2)
        case "bicubic":  # Keys' cubic convolution with a = -1/2, Pillow's BICUBIC
            near = (1.5 * away - 2.5) * away**2 + 1
            far = ((-0.5 * away + 2.5) * away - 4) * away + 2
            shares = np.where(away < 1, near, np.where(away < 2, far, 0))
    return np.asarray(shares / shares.sum(1, keepdims=True), np.float32)
