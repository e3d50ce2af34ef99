"""The contract for captioners of other libraries, and the predictor that uses one.

docs/any-captioner.md has a complete example.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image

from captioner.errors import ImageError, UsageError
from captioner.language.alignment import words_of
from captioner.photos import images as image_files
from captioner.photos.geometry import WHOLE, Box, Geometry, photo_grid, to_photo
from captioner.photos.images import Source, path_of
from captioner.predict.base_predictor import (
    BasePredictor,
    Results,
    SearchOptions,
    Wanted,
    sentence_words,
)
from captioner.predict.caption import Caption
from captioner.search.options import Decoding

LARGEST_BATCH = 8  # photos in full size that are in memory together, whatever batch_size is


@dataclass(frozen=True, eq=False)
class Reading:
    """A sentence in a model's own tokens, and where the model attended for each.

    Attributes:
        pieces: the T tokens as text, with their spaces; together they are the sentence.
        log_probs: in nats, of each token given those before it, and of the end, if it came.
        attention: the model's weights on its image cells when it predicts each token, in raster order;
            the sum may be below 1, if it also attends to something else. None if not requested.
        rollout: attention rollout to the cells; None if the model has none.
        box: the part of the photo that the grid covers.
    """

    pieces: Sequence[str]
    log_probs: Sequence[float]
    attention: Float[np.ndarray, "T layers heads rows columns"] | None = None
    rollout: Float[np.ndarray, "T rows columns"] | None = None
    box: Box = WHOLE


class Adapter:
    """A captioner of another library; photos are upright RGB images.

    Attributes:
        mechanism: description of its attention, for figures.
        decoding: its own search.
        device: where it computes, by torch's name.
    """

    mechanism: str
    decoding: Decoding = Decoding(beam_size=1)
    device: str = "cpu"

    def generate(
        self, photos: Sequence[Image.Image], decoding: Decoding, attend: bool
    ) -> list[list[Reading]]:
        """Return the captions of each photo, best first; with their attention if ``attend``.

        Without ``attend``, one caption per photo is enough.
        """
        raise NotImplementedError

    def read(self, photo: Image.Image, text: str) -> Reading:
        """Return a given sentence with the attention with which the model predicts it."""
        raise NotImplementedError

    def erase(
        self, photo: Image.Image, text: str, cells: Bool[np.ndarray, "P rows columns"]
    ) -> Float[np.ndarray, "P T"]:
        """Return the log-probability of each piece of ``read`` if the image lacks some cells.

        Row p is that without the cells that are True in ``cells[p]``. Only ``captioner ground`` needs
        this method.
        """
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return a text that changes with the weights; to resume the captioning of a folder."""
        return hashlib.sha256(type(self).__qualname__.encode()).hexdigest()


class AdapterPredictor(BasePredictor):
    """The interface of ``Predictor`` for a captioner of another library.

    Args:
        adapter: the captioner.
        name: its name in captions.
    """

    def __init__(self, adapter: Adapter, name: str) -> None:
        super().__init__(name, adapter.decoding, torch.device(adapter.device))
        self.adapter, self.mechanism = adapter, adapter.mechanism

    def fingerprint(self) -> str:
        """Return a text that changes with the weights."""
        return self.adapter.fingerprint()

    def search_options(self, options: Mapping[str, Any]) -> SearchOptions:
        """Return the search that options describe; see ``BasePredictor``."""
        return self._beam_search(super().search_options(options))

    def _beam_search(self, options: SearchOptions) -> Decoding:
        if isinstance(options, Decoding) and options.samples == options.diverse_groups == 1:
            return options
        raise UsageError(
            f"{self.name} has beam search only: leave out samples, diverse_groups and the options of "
            "sampling"
        )

    def _stream(
        self, images: Sequence[Source], options: SearchOptions, batch_size: int, wanted: Wanted
    ) -> Results:
        decoding, batch_size = self._beam_search(options), min(batch_size, LARGEST_BATCH)
        penalty = decoding.length_penalty
        for start in range(0, len(images), batch_size):
            sources = images[start : start + batch_size]
            opened = [_open(source) for source in sources]
            photos = [photo for photo in opened if isinstance(photo, Image.Image)]
            found = iter(self.adapter.generate(photos, decoding, wanted.maps) if photos else ())
            for source, photo in zip(sources, opened, strict=True):
                if isinstance(photo, ImageError):
                    yield photo
                    continue
                best, *others = [
                    self._caption(source, photo.size, reading, penalty, wanted.details)
                    for reading in next(found)
                ]
                yield replace(best, alternatives=tuple(others))

    def _explain(
        self, image: Source, caption: Caption | str, method: str, samples: int | None
    ) -> Caption:
        if not isinstance(caption, Caption):
            sentence_words(caption)
            self._beam_search(self.decoding.with_options({"samples": samples}))
            photo = image_files.load(image)
            reading = self.adapter.read(photo, caption.strip())
            caption = self._caption(image, photo.size, reading, 1.0, True)
        if method == "attention":
            return caption
        if method != "rollout" or caption.rollout is None:
            raise UsageError(f"{self.name} has no {method}: it is not a model of this package")
        return caption.with_maps(caption.rollout, method)

    def _caption(
        self,
        source: Source,
        size: tuple[int, int],
        reading: Reading,
        length_penalty: float | int,
        details: bool,
    ) -> Caption:
        words, members = words_of(reading.pieces)
        log_prob = float(sum(reading.log_probs))
        grid: tuple[int, int] = (0, 0)
        more: dict[str, Any] = {}
        weights = np.zeros((len(words), 0, 0), np.float32)
        if reading.attention is not None:
            grid = photo_grid(reading.attention.shape[-2:], reading.box)
            layers = _per_word(reading.attention, members, reading.box, grid)
            mean = layers.mean((1, 2))
            weights, more = _shares(mean), {"outside": np.float32(1 - mean.sum((1, 2)))}
            if details:
                more["layers"] = np.float32(layers)
                if reading.rollout is not None:
                    rollout = _per_word(reading.rollout, members, reading.box, grid)
                    more["rollout"] = _shares(rollout)
        return Caption(
            image=path_of(source),
            text="".join(reading.pieces).strip(),
            words=tuple(words),
            log_prob=log_prob,
            word_log_probs=tuple(float(sum(reading.log_probs[i] for i in m)) for m in members),
            score=log_prob / len(reading.log_probs) ** length_penalty,
            weights=weights,
            geometry=Geometry(*size, grid),
            model=self.name,
            mechanism=self.mechanism,
            **more,
        )


def _per_word(
    maps: Any, members: Sequence[Sequence[int]], box: Box, grid: tuple[int, int]
) -> np.ndarray:
    """Average the maps of a word's pieces and move them to a grid that covers the photo."""
    return to_photo(np.stack([maps[list(pieces)].mean(0) for pieces in members]), box, grid)


def _shares(maps: np.ndarray) -> Any:
    """Divide each map by its sum; a map of zeros stays."""
    total = maps.sum((-2, -1), keepdims=True)
    return np.float32(maps / np.where(total > 0, total, 1))


def _open(source: Source) -> Image.Image | ImageError:
    try:
        return image_files.load(source)
    except ImageError as error:
        return error
