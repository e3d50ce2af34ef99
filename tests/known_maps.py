"""Captions with known attention maps, and photos for them."""

from dataclasses import replace

import numpy as np
from PIL import Image

from captioner.photos.geometry import Geometry
from captioner.predict.caption import Caption

SOFT = "LSTMDecoder: Additive × Soft"
HARD = "LSTMDecoder: Additive × Hard (argmax)"
CELLS = [(0, 0), (1, 3), (6, 4), (3, 2)]
SIZES = {"portrait": (90, 140), "landscape": (140, 90), "turned": (90, 140)}


def make_caption(weights, size, mechanism=SOFT, **fields) -> Caption:
    """A caption of a photo of this (width, height), with one word per map."""
    weights = np.asarray(weights, np.float32)
    names = ["dog", "on", "grass", "a", "by", "sea"]
    words = tuple(names[i % len(names)] for i in range(len(weights)))
    caption = Caption(
        image=None,
        text=" ".join(words),
        words=words,
        log_prob=-1.0 * len(words),
        word_log_probs=tuple(-0.5 for _ in words),
        score=-1.0,
        weights=weights,
        geometry=Geometry(*size, weights.shape[1:]),
        model="test model",
        mechanism=mechanism,
        attends="argmax" if mechanism == HARD else "soft",
    )
    return replace(caption, **fields)


def one_hot(cells, grid=(7, 5)) -> np.ndarray:
    """One map per (row, column) with all weight on that cell."""
    weights = np.zeros((len(cells), *grid), np.float32)
    for index, cell in enumerate(cells):
        weights[(index, *cell)] = 1
    return weights


def local_caption() -> Caption:
    """One word with local attention: a window of 3 x 3 cells around the centre of cell (3, 2)."""
    weights = np.zeros((1, 7, 5), np.float32)
    weights[0, 2:5, 1:4] = 1 / 9
    mechanism = "LuongDecoder: General × LocalP2D"
    centre = np.array([[3.5, 2.5]], np.float32)
    return make_caption(weights, (200, 280), mechanism, centre=centre, window=1)


def gray(size) -> Image.Image:
    return Image.new("RGB", size, (90, 90, 90))


def save_photo(kind, file) -> tuple[int, int]:
    """Save a gray photo with a white top left corner; return its upright (width, height).

    ``turned`` is stored rotated with an EXIF orientation, as phones do.
    """
    upright = gray(SIZES[kind])
    upright.paste("white", (0, 0, 8, 8))
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6  # rotate by 90° clockwise to display
        upright.transpose(Image.Transpose.ROTATE_90).save(file, exif=exif)
    else:
        upright.save(file)
    return SIZES[kind]


def red_centre(drawn: Image.Image, photo: Image.Image) -> tuple[float, float]:
    """The (x, y) centre of what is redder than the photo, as fractions of width and height."""
    change = np.asarray(drawn, float)[..., 0] - np.asarray(photo, float)[..., 0]
    change = np.where(change > 0.5 * change.max(), change, 0)
    height, width = change.shape
    x = (change.sum(0) * (np.arange(width) + 0.5)).sum() / change.sum() / width
    y = (change.sum(1) * (np.arange(height) + 0.5)).sum() / change.sum() / height
    return x, y
