"""Captions whose attention is known, without a model, and photos for them."""

from dataclasses import replace

import numpy as np
from PIL import Image

from captioner.images import Geometry
from captioner.predictor import Caption

SOFT = "LSTMDecoder: Additive × Soft"


def looked(weights, size, mechanism=SOFT, **more) -> Caption:
    """A caption of a photo of this (width, height), one word for each map."""
    weights = np.asarray(weights, np.float32)
    names = ["dog", "on", "grass", "a", "by", "sea"]
    words = tuple(names[i % len(names)] for i in range(len(weights)))
    caption = Caption(
        image=None,
        text=" ".join(words),
        words=words,
        log_prob=-1.0 * len(words),
        word_log_probs=tuple(-0.5 for _ in words),
        weights=weights,
        geometry=Geometry(*size, weights.shape[1:]),
        model="made up",
        mechanism=mechanism,
    )
    return replace(caption, **more)


def hot(cells, grid=(7, 5), peak=1.0) -> np.ndarray:
    """A map for each (row, column), all of whose weight is there."""
    weights = np.zeros((len(cells), *grid), np.float32)
    for number, cell in enumerate(cells):
        weights[(number, *cell)] = peak
    return weights


SIZES = {"portrait": (90, 140), "landscape": (140, 90), "turned": (90, 140)}


def save_photo(kind, file) -> tuple[int, int]:
    """A grey photo with a white corner, upright at the top left; its upright (width, height).

    ``turned`` is stored lying on its side, as phones do, with the EXIF note that says so.
    """
    width, height = SIZES[kind]
    upright = Image.new("RGB", (width, height), (90, 90, 90))
    upright.paste("white", (0, 0, 8, 8))
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6  # to be seen upright it must be turned by 90° clockwise
        upright.transpose(Image.Transpose.ROTATE_90).save(file, exif=exif)
    else:
        upright.save(file)
    return width, height


def heat_centre(picture: Image.Image, photo: Image.Image) -> tuple[float, float]:
    """The (x, y) around which a picture is redder than its photo, as parts of its width and height."""
    change = np.asarray(picture, float)[..., 0] - np.asarray(photo, float)[..., 0]
    change = np.where(change > 0.5 * change.max(), change, 0)
    height, width = change.shape
    x = (change.sum(0) * (np.arange(width) + 0.5)).sum() / change.sum() / width
    y = (change.sum(1) * (np.arange(height) + 0.5)).sum() / change.sum() / height
    return x, y
