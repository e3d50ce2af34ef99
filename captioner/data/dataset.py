"""The pictures of one split: read, varied by chance, and put into batches."""

import logging
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float16, Float32, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import resized_crop

from captioner.data.order import Draw
from captioner.data.records import Record
from captioner.data.supervision import Supervision
from captioner.errors import ImageError
from captioner.text import PAD

_LOG = logging.getLogger(__name__)
_SIDE = re.compile(r"\b(left|right)", re.IGNORECASE)


class Batch(NamedTuple):
    """B pictures, each with R captions; either their annotation vectors or their pixels.

    Attributes:
        image_ids: one per picture.
        tokens: ``<start> words <end> <pad> …``; a picture with fewer captions has rows of ``<pad>``.
        vectors: cached annotation vectors, or None.
        grid: (rows, columns) of the cached feature map.
        pixels: images at the encoder's size, or None.
        masks: where attention is supervised, for every token the mask of the object that it names, which
            sums to 1; zeros where it names none.
    """

    image_ids: list[int | str]
    tokens: Int[Tensor, "B R T"]
    vectors: Float16[Tensor, "B L D"] | None
    grid: tuple[int, int]
    pixels: UInt8[Tensor, "B 3 H W"] | None
    masks: Float32[Tensor, "B R T L"] | None = None


class Item(NamedTuple):
    """One picture before collation."""

    image_id: int | str
    values: Tensor
    captions: list[list[int]]
    masks: list[np.ndarray] | None = None


@dataclass(frozen=True)
class Variation:
    """What chance may do to a picture while training. Colours stay: captions name them.

    Attributes:
        mirror: probability of mirroring it left to right, unless a caption says left or right.
        crop: the least part of its area that is kept; 1 keeps all. For pixels only.
    """

    mirror: float = 0.0
    crop: float = 1.0


class CaptionDataset(Dataset[Item | None]):
    """The pictures of one split with their captions as ids.

    Args:
        records: the pictures.
        captions: the ids of each one's captions.
        source: path → cached annotation vectors, or pixels.
        grid: (rows, columns) of the cached feature map; (0, 0) for pixels.
        rows: R, the number of captions per picture in a batch.
        variation: of pictures that are drawn with a seed.
        supervision: where the words of a caption are to look, if attention is supervised.
    """

    def __init__(
        self,
        records: Sequence[Record],
        captions: Sequence[list[list[int]]],
        source: Callable[[str], np.ndarray | Tensor],
        grid: tuple[int, int],
        rows: int,
        variation: Variation,
        supervision: Supervision | None = None,
    ) -> None:
        self.supervision = supervision
        self.records, self.captions, self.source, self.grid = records, captions, source, grid
        self.rows, self.variation = rows, variation
        sided = [any(map(_SIDE.search, record.captions)) for record in records]
        self.mirror = [0.0 if said else variation.mirror for said in sided]

    def __len__(self) -> int:
        return len(self.records)

    def __getitems__(self, draws: Sequence[int | Draw | None]) -> list[Item | None]:
        """A batch, read in the order of the files, which a disk likes better than chance."""
        items: list[Item | None] = [None] * len(draws)
        places = [draw.place if isinstance(draw, Draw) else draw for draw in draws]
        for n in sorted(range(len(draws)), key=lambda n: places[n] or 0):
            items[n] = self[draws[n]]
        return items

    def __getitem__(self, draw: int | Draw | None) -> Item | None:
        """A picture; None, with a warning, if it cannot be read, and for an empty place."""
        if draw is None:
            return None
        place, seed = draw if isinstance(draw, Draw) else (draw, 0)
        record, captions = self.records[place], self.captions[place]
        try:
            read = self.source(record.path)
        except ImageError as error:
            _LOG.warning("left out: %s", error)
            return None
        # A row of the cache is a view of the file: copied before anything else may touch it.
        values = read if isinstance(read, Tensor) else torch.from_numpy(np.array(read))
        if not isinstance(draw, Draw):
            return Item(record.image_id, values, captions[: self.rows])
        rng = np.random.default_rng(seed)
        mirrored = rng.random() < self.mirror[place]
        if mirrored:
            values = self._mirrored(values)
        chosen = rng.permutation(len(captions))[: self.rows]
        if self.variation.crop < 1:
            values = cropped(values, self.variation.crop, rng)
        item = Item(record.image_id, values, [captions[i] for i in chosen])
        if self.supervision is None:
            return item
        masks = [self.supervision(record, int(i), captions[i]) for i in chosen]
        if mirrored:
            rows, columns = self.supervision.grid
            masks = [m.reshape(-1, rows, columns)[..., ::-1].reshape(m.shape) for m in masks]
        return item._replace(masks=masks)

    def _mirrored(self, values: Tensor) -> Tensor:
        if self.grid == (0, 0):  # pixels (3, H, W)
            return values.flip(-1)
        return values.view(*self.grid, -1).flip(1).flatten(0, 1)

    def collate(self, items: Sequence[Item | None]) -> Batch:
        """Pictures that could be read, as a batch."""
        read = [item for item in items if item is not None]
        if not read:  # each has been named; they cost only themselves
            nothing = torch.empty(0, 3, 1, 1, dtype=torch.uint8)
            return Batch([], torch.empty(0, self.rows, 2, dtype=torch.long), None, (0, 0), nothing)
        longest = max(len(caption) for item in read for caption in item.captions)
        tokens = torch.full((len(read), self.rows, longest), PAD)
        masks = None
        if self.supervision is not None:
            masks = torch.zeros(*tokens.shape, math.prod(self.supervision.grid))
        for b, item in enumerate(read):
            # The longest first: decoders leave rows out as captions end.
            order = sorted(range(len(item.captions)), key=lambda i: -len(item.captions[i]))
            for r, place in enumerate(order):
                caption = item.captions[place]
                tokens[b, r, : len(caption)] = torch.tensor(caption)
                if masks is not None and item.masks is not None:
                    masks[b, r, : len(caption)] = torch.from_numpy(item.masks[place].copy())
        values = torch.stack([item.values for item in read])
        cached = self.grid != (0, 0)
        return Batch(
            [item.image_id for item in read],
            tokens,
            values if cached else None,
            self.grid,
            None if cached else values,
            masks,
        )


def cropped(
    pixels: UInt8[Tensor, "3 H W"], least: float, rng: np.random.Generator
) -> UInt8[Tensor, "3 H W"]:
    """A part of the picture, at least so much of its area, in the picture's own shape and size.

    The shape is kept, so that nothing gets thinner or wider: what is above, beside or larger stays so.
    """
    height, width = pixels.shape[-2:]
    side = float(np.sqrt(rng.uniform(least, 1)))
    size = [max(1, round(side * height)), max(1, round(side * width))]
    top, left = (int(rng.integers(whole - part + 1)) for whole, part in zip((height, width), size))  # noqa: B905
    part: Tensor = resized_crop(
        pixels, top, left, size[0], size[1], [height, width], antialias=True
    )
    return part
