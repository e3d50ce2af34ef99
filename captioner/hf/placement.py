"""Where the pixels that a processor makes come from: its resize, crop and padding, measured.

The processor is given an image whose red and green are the coordinates and whose blue is full. What it
returns shows which part of the photo it took, whatever its options are.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from PIL import Image

from captioner.language.alignment import WHOLE, Box

LEAST, MOST = 64, 1024  # pixels of the sides of the image that is measured
SNAP = 0.004  # smaller differences are those of rounded sizes and colours

Process = Callable[[Image.Image], Float[np.ndarray, "3 height width"]]


def placement(size: tuple[int, int], process: Process) -> Box:
    """Return left, top, right and bottom of the processed image, as fractions of the photo's sides.

    Args:
        size: width and height of the photo.
        process: returns the pixels for an image; the values of each channel may be scaled.
    """
    factor = min(max(LEAST / min(size), 1), max(MOST / max(size), LEAST / min(size)))
    width, height = (max(round(side * factor), 1) for side in size)
    ramp = np.zeros((height, width, 3))
    ramp[..., 0] = (np.arange(width) + 0.5) / width
    ramp[..., 1] = (np.arange(height)[:, None] + 0.5) / height
    ramp[..., 2] = 1
    image = Image.fromarray((255 * ramp).round().astype(np.uint8))
    black, white = (process(Image.new("RGB", image.size, color)) for color in ("black", "white"))
    # Padding is the same in both images; elsewhere these are the values of 0 and 1.
    scale = white - black
    inside = np.abs(scale[2]) > np.abs(scale[2]).max() / 2
    values = (process(image) - black) / np.where(inside, scale, 1)
    columns, rows = np.flatnonzero(inside.any(0)), np.flatnonzero(inside.any(1))
    left, right = _ends(np.median(values[0][rows], 0), columns)
    top, bottom = _ends(np.median(values[1][:, columns], 1), rows)
    found = zip((left, top, right, bottom), WHOLE, strict=True)
    left, top, right, bottom = (end if abs(value - end) < SNAP else value for value, end in found)
    return left, top, right, bottom


def _ends(values: Float[np.ndarray, " n"], valid: np.ndarray) -> tuple[float, float]:
    """Fit a line through the coordinates of valid pixels; return it at both ends of the image."""
    margin = len(valid) // 16  # resizing bends the line at the borders
    used = valid[margin : len(valid) - margin]
    slope, start = np.polyfit(used + 0.5, values[used], 1)
    return float(start), float(start + slope * len(values))
