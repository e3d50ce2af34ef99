"""Random crops of training images and of the targets of attention, and crops that can be cached."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from torch import Tensor
from torchvision.transforms.v2.functional import resized_crop

ROUNDING = 1e-5  # shares of a cell below this count as 0, and those above 1 minus this as 1


@dataclass(frozen=True)
class Crop:
    """The part of an image that stays, as fractions of its height and width."""

    top: float
    left: float
    height: float
    width: float

    @classmethod
    def draw(cls, least: float, size: tuple[int, int], rng: np.random.Generator) -> "Crop":
        """Draw a crop of at least this fraction of the area of an image of (height, width) pixels.

        It has the image's aspect ratio, so that nothing gets thinner or wider.
        """
        height, width = size
        side = float(np.sqrt(rng.uniform(least, 1)))
        rows, columns = max(1, round(side * height)), max(1, round(side * width))
        top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
        return cls(top / height, left / width, rows / height, columns / width)

    def of_pixels(self, pixels: UInt8[Tensor, "3 H W"]) -> UInt8[Tensor, "3 H W"]:
        """Return the crop, resized to the size of the image."""
        height, width = pixels.shape[-2:]
        part = (self.top * height, self.left * width, self.height * height, self.width * width)
        cropped: Tensor = resized_crop(pixels, *map(round, part), [height, width], antialias=True)
        return cropped

    def of_target(self, target: Float32[Tensor, "T r c"]) -> Float32[Tensor, "T r c"]:
        """Return the fraction of every cell of the cropped grid that an object covers.

        The object is assumed to cover each cell of ``target`` evenly. An object that fills the crop
        gives zeros, because it carries no information.
        """
        rows = _shares(target.shape[1], self.top, self.height)
        columns = _shares(target.shape[2], self.left, self.width)
        covered = rows @ target @ columns.T
        informative = covered.amin((1, 2), keepdim=True) < 1 - ROUNDING
        return covered * (informative & (covered > ROUNDING))


@dataclass(frozen=True)
class FixedCrop:
    """Gives each image one crop of its own that never changes, so that its vectors can be cached.

    The crop depends only on the attributes below and on the names of the file and its folder. If new
    code or a new NumPy release draws other crops, change the version in ``__str__``.
    """

    least: float  # the smallest fraction of the area that a crop keeps
    number: int  # of the crop among those of its image, from 1
    size: tuple[int, int]  # (height, width) of the encoder's input in pixels

    def of(self, path: str) -> Crop:
        """Return the crop of an image."""
        text = "/".join([str(self.number), *Path(path).parts[-2:]])
        seed = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return Crop.draw(self.least, self.size, np.random.default_rng(list(seed)))

    def __str__(self) -> str:
        return f"crop version 1, {self.least}, {self.number}, {self.size}"


def _shares(cells: int, start: float, length: float) -> Float32[Tensor, "new old"]:
    """Return the share of every cell of the cropped axis that lies in each cell of the whole axis."""
    old = torch.arange(cells + 1, dtype=torch.float64) / cells
    new = start + length * old
    first = torch.maximum(new[:-1, None], old[:-1])
    last = torch.minimum(new[1:, None], old[1:])
    return ((last - first).clamp(min=0) / (length / cells)).float()
