"""Targets of attention: where in an image is what a word names?

    record, caption ─ mentions of objects ─▶ their masks on the annotation grid
                    ─ phrases with boxes ──▶ their boxes on the annotation grid

Liu et al. 2017, "Attention Correctness in Neural Image Captioning" (arXiv 1605.09553), supervise
attention with the boxes of phrases (§3.2.1) and with segments whose category a word names (§3.2.2).
"""

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from PIL import Image
from PIL.ExifTags import Base

from captioner.data import entities
from captioner.data.masks import MaskedImage, MaskedImages, read
from captioner.data.records import Record
from captioner.errors import DataError
from captioner.text import UNK, Tokenizer
from captioner.word_classes import FUNCTION_WORDS

_LOG = logging.getLogger(__name__)

Target = tuple[tuple[int, ...], Float32[np.ndarray, " L"]]


class Supervision:
    """Gives every word of a caption its target; ``grid`` is (rows, columns) of the annotations."""

    def __init__(self, grid: tuple[int, int]) -> None:
        self.grid = grid
        self._tokenizer = Tokenizer()
        self._targets: dict[tuple[int | str, int], list[Target]] = {}

    def __call__(
        self, record: Record, number: int, ids: Sequence[int]
    ) -> Float32[np.ndarray, "T L"]:
        """Return the target of each token: the fraction of every cell that its object covers.

        ``number`` is the index of the caption. ``ids`` begins with ``<start>`` and may be cut.
        Tokens without a target, and ``<unk>``, get zeros.
        """
        key = (record.image_id, number)
        if key not in self._targets:
            self._targets[key] = self.find(record, self._tokenizer(record.captions[number]))
        targets = np.zeros((len(ids), self.grid[0] * self.grid[1]), np.float32)
        for words, mask in self._targets[key]:
            targets[[word + 1 for word in words if word + 1 < len(ids)]] = mask
        targets[np.array(ids) == UNK] = 0
        return targets

    def find(self, record: Record, words: Sequence[str]) -> list[Target]:
        """Return groups of word positions in a caption, each group with its target."""
        raise NotImplementedError


class MaskSupervision(Supervision):
    """The target of a word that names an object is the object's mask.

    The masks are in COCO's layout, which generated scenes share: ``annotations/instances_X.json`` for
    the images in folder ``X``. A mask that fills the image carries no information and is left out. All
    masks of an image that was rotated after annotation are left out, too.
    """

    def __init__(self, records: Sequence[Record], grid: tuple[int, int]) -> None:
        super().__init__(grid)
        self._images: dict[int | str, tuple[MaskedImages, MaskedImage]] = {}
        for file, members in masks_of(records).items():
            folder = Path(members[0].path).parent
            data = read(file, folder, {r.image_id: list(r.captions) for r in members})
            self._images |= {image.image_id: (data, image) for image in data.images}

    def find(self, record: Record, words: Sequence[str]) -> list[Target]:
        """Return the mentions of objects that have masks."""
        if record.image_id not in self._images:
            return []
        data, image = self._images[record.image_id]
        if _is_rotated(image):
            return []
        masks = [
            (mention.words, image.truth(mention.instances, self.grid))
            for mention in data.mentions(words, image)
            if mention.instances
        ]
        return [(words, mask.astype(np.float32)) for words, mask in masks if mask.min() < 1]


class BoxSupervision(Supervision):
    """The target of a content word is the boxes of its phrase in Flickr30k Entities.

    Boxes that fill the image carry no information and are left out. Images without annotations get no
    targets; a line is logged for each whose annotations cannot be read.
    """

    def __init__(self, folder: Path, grid: tuple[int, int]) -> None:
        super().__init__(grid)
        self.folder = folder

    def find(self, record: Record, words: Sequence[str]) -> list[Target]:
        """Return the phrases that have boxes."""
        name = entities.photo_id(record.path)
        if not entities.has(self.folder, name):
            return []
        try:
            photo = entities.read_photo(self.folder, name, self._tokenizer)
        except DataError as error:
            _LOG.warning("left out: %s", error)
            return []
        targets = []
        for phrase in photo.phrases_of(words) or []:
            content = tuple(word for word in phrase.words if words[word] not in FUNCTION_WORDS)
            mask = photo.coverage(phrase.boxes, self.grid).ravel()
            if content and mask.max() > 0 and mask.min() < 1:
                targets.append((content, mask.astype(np.float32)))
        return targets


def masks_of(records: Sequence[Record]) -> dict[Path, list[Record]]:
    """Return the instances files with the images of each; DataError if a file is missing."""
    files: dict[Path, list[Record]] = defaultdict(list)
    for record in records:
        folder = Path(record.path).parent
        files[folder.parent / "annotations" / f"instances_{folder.name}.json"].append(record)
    for file in files:
        if not file.is_file():
            raise DataError(
                f"attention supervised by masks needs '{file}', which does not exist: train on data "
                "with object masks (shapes, or coco with its instances files), give the boxes of "
                "Flickr30k Entities as data.entities, or leave the objective's supervision at 0"
            )
    return files


def _is_rotated(image: MaskedImage) -> bool:
    """Return whether width and height of the image file are swapped relative to its masks."""
    try:
        with Image.open(image.path) as file:
            upright = (
                file.getexif().get(Base.Orientation, 1) < 5
            )  # values of 5 and more swap the sides
            size = file.size if upright else file.size[::-1]
    except Exception:  # the error is reported when the pixels are read
        return True
    return size == image.size[::-1] != image.size
