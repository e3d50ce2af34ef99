"""Grounding and deletion curves of captioners of other libraries, through ``Adapter``.

The model's tokens are erased for all words of a sentence, also those before the measured one, because
such models have no state that a single step could be repeated from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from captioner.data.masks import MaskedImage
from captioner.data.pixels import check_upright
from captioner.data.records import Record
from captioner.errors import EvaluationError, ImageError
from captioner.evaluation.deletion import DRAWS, SHARES, LogProbDrop, curves
from captioner.evaluation.faithfulness import DeletionCurves
from captioner.evaluation.grounding import GroundingData
from captioner.evaluation.image_statistics import Regime
from captioner.evaluation.localisation import normalised
from captioner.language.alignment import words_of
from captioner.language.vocabulary import Tokenizer
from captioner.photos import images as image_files
from captioner.photos.geometry import to_photo
from captioner.predict.adapter import LARGEST_BATCH, Adapter, AdapterPredictor, Reading


def measure(
    predictor: AdapterPredictor,
    photos: Sequence[Record | MaskedImage],
    batch_size: int,
    maps: Mapping[Regime, GroundingData],
    words: Mapping[Regime, DeletionCurves],
    failed: list[str],
    seed: int,
    advance: Callable[[int], object],
) -> None:
    """Add the maps and deletion curves of all photos; arguments as for ``attention_maps.batches``.

    Raises:
        EvaluationError: no image could be read.
    """
    adapter, read, size = predictor.adapter, 0, min(batch_size, LARGEST_BATCH)
    regimes = dict.fromkeys([*maps, *words])
    for start in range(0, len(photos), size):
        opened = dict(_opened(photos, range(start, min(start + size, len(photos))), failed))
        read += len(opened)
        generated: list[list[Reading]] = []
        if "generated" in regimes and opened:
            generated = adapter.generate(list(opened.values()), predictor.decoding, True)
        for number, (index, photo) in enumerate(opened.items()):
            for regime in regimes:
                readings, given = generated[number][:1] if generated else [], None
                if regime == "forced":
                    texts = [text for text in photos[index].captions if text.strip()]
                    readings = [adapter.read(photo, text) for text in texts]
                    given = list(map(Tokenizer(), texts))
                if regime in maps:
                    _add_maps(maps[regime], index, readings, given)
                text = "".join(readings[0].pieces).strip() if readings else ""
                if text and regime in words:
                    words[regime].add_caption(
                        index, *word_drops(adapter, photo, text, seed + index)
                    )
        advance(min(size, len(photos) - start))
    if not read:
        raise EvaluationError(f"no photo can be read; {failed[0]}")


def _opened(
    photos: Sequence[Record | MaskedImage], indices: range, failed: list[str]
) -> Iterator[tuple[int, Image.Image]]:
    for index in indices:
        record = photos[index]
        try:
            photo = image_files.load(record.path)
            if isinstance(record, MaskedImage):
                check_upright(record.path, photo.size, record.size)
            yield index, photo
        except ImageError as error:
            failed.append(str(error))


def _add_maps(
    collected: GroundingData,
    index: int,
    readings: Sequence[Reading],
    given: Sequence[Sequence[str]] | None,
) -> None:
    """Add the maps of an image, on a grid of the model's size that covers the photo.

    ``given`` has the words of each reading; None to take them from its pieces.
    """
    collected.images.append(index)
    for number, reading in enumerate(readings):
        assert reading.attention is not None
        words, members = words_of(reading.pieces, given[number] if given else None)
        collected.grid = reading.attention.shape[-2:]
        of_pieces = to_photo(reading.attention.mean((1, 2)), reading.box, collected.grid)
        of_words = np.stack([of_pieces[pieces].mean(0).ravel() for pieces in members])
        collected.add_caption(index, words, {"model": normalised(of_words)})


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
