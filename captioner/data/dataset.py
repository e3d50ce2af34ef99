"""The images of one split: their order, reading, random augmentation and batches."""

import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from captioner import distributed
from captioner.data.cache import AnnotationCache, stacked
from captioner.data.crops import Crop
from captioner.data.pixels import ImageFiles
from captioner.data.records import Record
from captioner.data.supervision import Supervision
from captioner.errors import DataError, ImageError
from captioner.language.vocabulary import PAD
from captioner.models.annotations import Annotations
from captioner.models.encoder import Inputs

_LOG = logging.getLogger(__name__)
_SIDE = re.compile(r"\b(left|right)", re.IGNORECASE)


class CaptionBatch(NamedTuple):
    """B images with R captions each."""

    image_ids: list[int | str]
    images: Inputs | Annotations  # what the encoder reads, or its cached output in half precision
    # <start> words <end> <pad> …; missing captions are rows of <pad>.
    tokens: Int[Tensor, "B R T"]
    # For supervised attention, the fraction of every region that the object named by a token covers.
    masks: Float32[Tensor, "B R T L"] | None = None

    def to(self, device: torch.device) -> "CaptionBatch":
        """Move all tensors; Lightning calls this method."""
        if isinstance(self.images, Annotations):
            images: Inputs | Annotations = self.images.map(lambda values: values.to(device))
        else:
            images = self.images.to(device)
        masks = None if self.masks is None else self.masks.to(device)
        return CaptionBatch(self.image_ids, images, self.tokens.to(device), masks)


class Draw(NamedTuple):
    """The index of an image in its data set, and the seed of its random augmentation in this epoch."""

    row: int
    seed: int | None  # None disables augmentation


class Item(NamedTuple):
    """One image before collation; its longest caption is first, so that decoders can drop ended rows."""

    image_id: int | str
    image: Tensor | Annotations
    captions: list[list[int]]
    masks: list[Tensor]  # the targets of attention of each caption; empty without supervision


class CaptionDataset(Dataset[Item | None]):
    """The images of one split with their captions as token ids.

    Args:
        captions: the token ids of each image's captions.
        source: reads the annotation vectors or the pixels of a path.
        rows: R, the number of captions per image in a batch.
        mirror: the probability of mirroring an image in training, unless one of its captions contains
            "left" or "right". Colours are not augmented, because captions name them.
        crop: the smallest fraction of the area that a random crop of pixels keeps.
        supervision: gives the targets of attention, which are mirrored and cropped like the image.
        cropped: caches of cropped images, read at random instead of ``source`` in training.
    """

    def __init__(
        self,
        records: Sequence[Record],
        captions: Sequence[list[list[int]]],
        source: AnnotationCache | ImageFiles,
        rows: int,
        mirror: float = 0.0,
        crop: float = 1.0,
        supervision: Supervision | None = None,
        cropped: Sequence[AnnotationCache | ImageFiles] = (),
    ) -> None:
        self.records, self.captions, self.source, self.rows = records, captions, source, rows
        self.mirror, self.crop, self.supervision, self.cropped = mirror, crop, supervision, cropped
        self._has_side = np.array([any(map(_SIDE.search, r.captions)) for r in records], bool)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, draw: Draw | None) -> Item | None:
        """Read an image; None for padding, and, with a warning, for an unreadable image."""
        if draw is None:
            return None
        record, captions = self.records[draw.row], self.captions[draw.row]
        source, chosen, mirrored = self.source, list(range(len(captions))), False
        rng = None if draw.seed is None else np.random.default_rng(draw.seed)
        if rng is not None:
            mirrored = rng.random() < self.mirror * (not self._has_side[draw.row])
            chosen = rng.permutation(len(captions)).tolist()
            source = [source, *self.cropped][rng.integers(len(self.cropped) + 1)]
        try:
            image = source[record.path]
        except ImageError as error:
            _LOG.warning("left out: %s", error)
            return None
        crop = source.crop.of(record.path) if source.crop else None
        if rng is not None and isinstance(image, Tensor) and self.crop < 1:
            height, width = image.shape[-2:]
            crop = Crop.draw(self.crop, (height, width), rng)
            image = crop.of_pixels(image)
        if mirrored:
            image = _mirrored(image)
        chosen = sorted(chosen[: self.rows], key=lambda i: -len(captions[i]))
        masks: list[Tensor] = []
        if self.supervision is not None:
            grid = self.supervision.grid
            for i in chosen:
                target = torch.from_numpy(self.supervision(record, i, captions[i])).view(-1, *grid)
                target = crop.of_target(target) if crop else target
                masks.append((target.flip(-1) if mirrored else target).flatten(1))
        return Item(record.image_id, image, [captions[i] for i in chosen], masks)

    def collate(self, items: Sequence[Item | None]) -> CaptionBatch:
        """Collate the images that could be read."""
        readable = [item for item in items if item is not None]
        if not readable:
            pixels = torch.empty(0, 3, 1, 1, dtype=torch.uint8)
            return CaptionBatch([], pixels, torch.empty(0, self.rows, 2, dtype=torch.long))
        longest = max(len(caption) for item in readable for caption in item.captions)
        tokens = torch.full((len(readable), self.rows, longest), PAD)
        masks = None
        if self.supervision is not None:
            masks = torch.zeros(*tokens.shape, math.prod(self.supervision.grid))
        for b, item in enumerate(readable):
            for r, caption in enumerate(item.captions):
                tokens[b, r, : len(caption)] = torch.tensor(caption)
                if masks is not None:
                    masks[b, r, : len(caption)] = item.masks[r]
        images = stacked([item.image for item in readable])
        return CaptionBatch([item.image_id for item in readable], images, tokens, masks)


def _mirrored(image: Tensor | Annotations) -> Any:
    if isinstance(image, Tensor):
        return image.flip(-1)
    vectors = torch.unflatten(image.vectors, 1, image.grid).flip(2).flatten(1, 2)
    keys = None if image.keys is None else _mirrored(image.keys)
    return Annotations(vectors, image.grid, keys=keys)


class EpochSampler(DistributedSampler[Any]):
    """All images once; the processes share every batch.

    Without a seed, they are in order. With one, the order depends on (seed, epoch) only, so that a
    resumed run repeats it. Batches do not depend on the number of processes N; each process takes every
    N-th image of a batch. An uneven last batch is padded with None, where PyTorch's
    ``DistributedSampler`` would repeat images. Lightning keeps a sampler that derives from it.

    Raises:
        DataError: ``batch_size`` is not a multiple of N.
    """

    def __init__(self, dataset: Sized, batch_size: int, seed: int | None = None) -> None:
        super().__init__(dataset, distributed.count(), distributed.rank(), shuffle=False)  # type: ignore[arg-type]
        self.size, self.batch_size, self.order_seed = len(dataset), batch_size, seed
        self.skip = 0  # batches to skip at the start of the next epoch only
        # The images per batch in this process.
        self.local_batch_size, rest = divmod(batch_size, self.num_replicas)
        if rest:
            raise DataError(
                f"data.batch_size counts the images of all processes: {batch_size} cannot be divided "
                f"among {self.num_replicas}"
            )

    def __len__(self) -> int:
        full, rest = divmod(self.size, self.batch_size)
        return full * self.local_batch_size + -(-rest // self.num_replicas)

    def __iter__(self) -> Iterator[Draw | None]:
        order = self._order()
        first, self.skip = self.skip * self.batch_size, 0
        for start in range(first, self.size, self.batch_size):
            batch = order[start : start + self.batch_size]
            local = batch[self.rank :: self.num_replicas]
            yield from local
            yield from [None] * (-(-len(batch) // self.num_replicas) - len(local))

    def _order(self) -> list[Draw]:
        """The images of all processes in this epoch, which Lightning sets."""
        if self.order_seed is None:
            return [Draw(row, None) for row in range(self.size)]
        rng = np.random.default_rng([self.order_seed, self.epoch])
        seeds = rng.integers(2**62, size=self.size).tolist()
        return list(map(Draw, rng.permutation(self.size).tolist(), seeds))


class ResumableLoader(DataLoader[Any]):
    """A ``DataLoader`` over `EpochSampler` that skips the batches a resumed run has completed.

    ``completed_batches`` returns their number in this epoch. It is called when the first batch is read,
    because Lightning restores the number only then.
    """

    def __init__(self, *, completed_batches: Callable[[], int], **options: Any) -> None:
        super().__init__(**options)
        self._completed_batches = completed_batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.sampler.skip = self._completed_batches()  # type: ignore[attr-defined]
        yield from super().__iter__()

    # Lightning warns about a loader without these two, and counts the batches itself.
    def state_dict(self) -> dict[str, int]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing."""
