"""The images of one split: read, augmented at random, and collated into batches."""

import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float16, Float32, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import resized_crop

from captioner.data.cache import AnnotationCache
from captioner.data.pixels import ImageFiles
from captioner.data.records import Record
from captioner.data.sampler import Draw
from captioner.data.supervision import Supervision
from captioner.errors import ImageError
from captioner.text import PAD

_LOG = logging.getLogger(__name__)
_SIDE = re.compile(r"\b(left|right)", re.IGNORECASE)


class Batch(NamedTuple):
    """B images with R captions each; either cached annotation vectors or pixels."""

    image_ids: list[int | str]
    # <start> words <end> <pad> …; missing captions are rows of <pad>.
    tokens: Int[Tensor, "B R T"]
    vectors: Float16[Tensor, "B L D"] | None
    grid: tuple[int, int]  # (rows, columns) of the vectors
    pixels: UInt8[Tensor, "B 3 H W"] | None  # at the encoder's input size
    # For supervised attention, the mask of the object that each token names; it sums to 1, or is zero.
    masks: Float32[Tensor, "B R T L"] | None = None
    keys: Float16[Tensor, "B _ K"] | None = None  # of a second stream
    key_grid: tuple[int, int] | None = None


class Item(NamedTuple):
    """One image before collation."""

    image_id: int | str
    values: Tensor
    keys: Tensor | None
    captions: list[list[int]]
    masks: list[Tensor] | None = None


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image. Colours do not change, because captions name them."""

    mirror: float = 0.0  # the probability of mirroring, unless a caption says left or right
    crop: float = 1.0  # the least fraction of the area that a crop keeps; 1 does not crop


class CaptionDataset(Dataset[Item | None]):
    """The images of one split with their captions as token ids.

    Args:
        records: the images.
        captions: the token ids of each image's captions.
        source: reads the annotation vectors or the pixels of a path.
        rows: R, the number of captions per image in a batch.
        augmentation: applied to images that are drawn with a seed; crops need pixels.
        supervision: gives the target masks of captions, if attention is supervised.
    """

    def __init__(
        self,
        records: Sequence[Record],
        captions: Sequence[list[list[int]]],
        source: AnnotationCache | ImageFiles,
        rows: int,
        augmentation: Augmentation,
        supervision: Supervision | None = None,
    ) -> None:
        self.records, self.captions, self.source, self.rows = records, captions, source, rows
        self.augmentation, self.supervision = augmentation, supervision
        self._has_side = np.array([any(map(_SIDE.search, r.captions)) for r in records], bool)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, draw: int | Draw | None) -> Item | None:
        """Read an image; None for padding, and, with a warning, for an unreadable image."""
        if draw is None:
            return None
        row, seed = draw if isinstance(draw, Draw) else (draw, None)
        record, captions = self.records[row], self.captions[row]
        try:
            values = torch.as_tensor(self.source[record.path])
        except ImageError as error:
            _LOG.warning("left out: %s", error)
            return None
        stored = self.source.keys(record.path)
        keys = None if stored is None else torch.as_tensor(stored)
        if seed is None:
            return Item(record.image_id, values, keys, captions[: self.rows])
        rng = np.random.default_rng(seed)
        mirrored = rng.random() < self.augmentation.mirror * (not self._has_side[row])
        if mirrored:
            values = _mirrored(values, self.source.grid)
            keys = None if keys is None else _mirrored(keys, self.source.key_grid)
        chosen = rng.permutation(len(captions))[: self.rows]
        if self.augmentation.crop < 1:
            values = cropped(values, self.augmentation.crop, rng)
        masks = None
        if self.supervision is not None:
            targets = (self.supervision(record, int(i), captions[i]) for i in chosen)
            masks = [torch.from_numpy(target) for target in targets]
            if mirrored:
                grid = self.supervision.grid
                masks = [mask.view(-1, *grid).flip(-1).flatten(1) for mask in masks]
        return Item(record.image_id, values, keys, [captions[i] for i in chosen], masks)

    def collate(self, items: Sequence[Item | None]) -> Batch:
        """Collate the images that could be read."""
        readable = [item for item in items if item is not None]
        if not readable:
            pixels = torch.empty(0, 3, 1, 1, dtype=torch.uint8)
            return Batch([], torch.empty(0, self.rows, 2, dtype=torch.long), None, (0, 0), pixels)
        longest = max(len(caption) for item in readable for caption in item.captions)
        tokens = torch.full((len(readable), self.rows, longest), PAD)
        masks = None
        if self.supervision is not None:
            masks = torch.zeros(*tokens.shape, math.prod(self.supervision.grid))
        for b, item in enumerate(readable):
            # Longest first, because decoders drop rows as captions end.
            order = sorted(range(len(item.captions)), key=lambda i: -len(item.captions[i]))
            for r, i in enumerate(order):
                length = len(item.captions[i])
                tokens[b, r, :length] = torch.tensor(item.captions[i])
                if masks is not None and item.masks is not None:
                    masks[b, r, :length] = item.masks[i]
        values = torch.stack([item.values for item in readable])
        ids, grid, key_grid = [i.image_id for i in readable], self.source.grid, self.source.key_grid
        if grid == (0, 0):
            return Batch(ids, tokens, None, grid, values, masks)
        keys = [item.keys for item in readable if item.keys is not None]
        stacked = torch.stack(keys) if keys else None
        return Batch(ids, tokens, values, grid, None, masks, stacked, key_grid)


def _mirrored(values: Tensor, grid: tuple[int, int] | None) -> Tensor:
    if not grid or grid == (0, 0):  # pixels (3, H, W)
        return values.flip(-1)
    return values.view(*grid, -1).flip(1).flatten(0, 1)


def cropped(
    pixels: UInt8[Tensor, "3 H W"], least: float, rng: np.random.Generator
) -> UInt8[Tensor, "3 H W"]:
    """A random crop of at least this fraction of the area, resized to the size of the image.

    The aspect ratio is kept, so that nothing gets thinner or wider.
    """
    height, width = pixels.shape[-2:]
    side = float(np.sqrt(rng.uniform(least, 1)))
    rows, columns = max(1, round(side * height)), max(1, round(side * width))
    top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
    crop: Tensor = resized_crop(pixels, top, left, rows, columns, [height, width], antialias=True)
    return crop
