"""Batches of photos, and deletion curves, for captioners of other libraries through ``Adapter``.

The model's tokens are erased for all words of a sentence, also those before the measured one, because
such models have no state that a single step could be repeated from.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from captioner.data.masks import MaskedImage
from captioner.data.pixels import check_upright
from captioner.data.records import Record
from captioner.errors import EvaluationError, ImageError
from captioner.evaluation.deletion import DRAWS, SHARES, LogProbDrop, curves
from captioner.language.alignment import words_of
from captioner.photos import images as image_files
from captioner.predict.adapter import LARGEST_BATCH, Adapter, Reading
from captioner.search.options import Decoding


class AdapterBatch(NamedTuple):
    """Photos with the captions of an adapter."""

    adapter: Adapter
    indices: list[int]  # of the photos in the data set
    photos: list[Image.Image]
    generated: list[Reading]  # the captions; empty if none were requested
    seed: int  # of all random choices


def batches(
    adapter: Adapter,
    images: Sequence[MaskedImage | Record],
    batch_size: int,
    failed: list[str],
    *,
    decoding: Decoding | None = None,
    seed: int = 0,
    advance: Callable[[int], object] = lambda _: None,
) -> Iterator[AdapterBatch]:
    """Read and caption photos; arguments and errors as for ``attention_maps.batches``."""
    size, found = min(batch_size, LARGEST_BATCH), False
    for start in range(0, len(images), size):
        opened: dict[int, Image.Image] = {}
        for index, image in enumerate(images[start : start + size], start):
            try:
                photo = image_files.load(image.path)
                if isinstance(image, MaskedImage):
                    check_upright(image.path, photo.size, image.size)
                opened[index] = photo
            except ImageError as error:
                failed.append(str(error))
        if opened:
            found, photos = True, list(opened.values())
            readings = adapter.generate(photos, decoding, True) if decoding else []
            yield AdapterBatch(adapter, list(opened), photos, [best[0] for best in readings], seed)
        advance(min(size, len(images) - start))
    if not found:
        raise EvaluationError(f"no photo can be read; {failed[0]}")


def word_drops(
    adapter: Adapter, photo: Image.Image, text: str, seed: int
) -> tuple[list[str], LogProbDrop]:
    """Return the words of a sentence and their deletion curves; as ``deletion.word_drops``."""
    reading = adapter.read(photo, text)
    words, members = words_of(reading.pieces)
    assert reading.attention is not None
    grid = reading.attention.shape[-2:]
    weights = reading.attention.mean((1, 2)).reshape(len(reading.pieces), -1)
    weights = np.stack([weights[pieces].mean(0) for pieces in members])  # (T, L)
    generator, cells = np.random.default_rng(seed), weights.shape[1]
    numbers = np.maximum(1, np.round(np.array([0, *SHARES]) * cells)).astype(int)
    random = [generator.random(weights.shape).argsort(1) for _ in range(DRAWS)]
    orders = [np.argsort(-weights, 1), np.argsort(weights, 1), *random]
    ranks = np.stack([np.argsort(order, 1) for order in orders], 1)  # (T, N, L)
    chosen = ranks[:, :, None] < numbers[:, None]  # (T, N, Q, L)
    erased = np.stack([chosen, ~chosen], 1)  # the regions that are erased, and those not put back
    everything = np.ones((1, cells), bool)
    tried = np.concatenate([erased.reshape(-1, cells), everything]).reshape(-1, *grid)
    *log_probs, nothing = map(torch.from_numpy, adapter.erase(photo, text, tried))
    after = torch.stack(log_probs).view(*erased.shape[:4], -1)  # of each word's regions, all pieces
    after = torch.stack([after[t][..., pieces].sum(-1) for t, pieces in enumerate(members)])
    whole = [sum(reading.log_probs[i] for i in pieces) for pieces in members]
    least = torch.stack([nothing[pieces].sum() for pieces in members])
    shares = torch.from_numpy(numbers / cells)
    return words, curves(torch.tensor(whole, dtype=after.dtype), after, least, shares)
