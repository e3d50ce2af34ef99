"""Targets of attention: the region of the image that a word names.

Liu et al. 2017, "Attention Correctness in Neural Image Captioning" (arXiv 1605.09553), supervise
attention with the boxes of phrases (§3.2.1) and with segments whose category a word names (§3.2.2).
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32

from captioner.data import entities
from captioner.data.masks import MaskedImage, MaskedImages, read
from captioner.data.pixels import check_upright
from captioner.data.records import Record
from captioner.errors import DataError
from captioner.language.vocabulary import UNK, Tokenizer
from captioner.language.word_classes import FUNCTION_WORDS
from captioner.photos.images import upright_size

MAX_CACHED = 32_768  # captions whose targets stay in memory: about 100 MB on a grid of 16 × 16
_LOG = logging.getLogger(__name__)

Target = tuple[tuple[int, ...], Float[np.ndarray, " L"]]


class Supervision:
    """Gives every word of a caption its target; ``grid`` is (rows, columns) of the annotations."""

    def __init__(self, grid: tuple[int, int]) -> None:
        self.grid = grid
        self._tokenizer = Tokenizer()
        self._targets: dict[tuple[int | str, int], list[Target]] = {}

    def __call__(
        self, record: Record, number: int, ids: Sequence[int]
    ) -> Float32[np.ndarray, "T L"]:
        """Return the fraction of every region that the object of each token covers.

        ``number`` is the index of the caption. ``ids`` begins with ``<start>`` and may be cut.
        Tokens without a target, and ``<unk>``, get zeros, and so does an object that fills the image.
        """
        found = self._targets.get((record.image_id, number))
        if found is None:
            words = self._tokenizer(record.captions[number])
            targets_of = self.find(record, words)
            found = [(at, mask.astype(np.float32)) for at, mask in targets_of if mask.min() < 1]
            if len(self._targets) < MAX_CACHED:
                self._targets[record.image_id, number] = found
        targets = np.zeros((len(ids), self.grid[0] * self.grid[1]), np.float32)
        for at, mask in found:
            targets[[word + 1 for word in at if word + 1 < len(ids)]] = mask
        targets[np.array(ids) == UNK] = 0
        return targets

    def find(self, record: Record, words: Sequence[str]) -> Iterator[Target]:
        """Yield groups of word positions in a caption, each group with its target."""
        raise NotImplementedError


class MaskSupervision(Supervision):
    """The target of a word that names an object is the object's mask.

    The file ``annotations/instances_X.json`` has the masks of the images in folder ``X``. The masks of
    an image that was rotated after annotation are left out.
    """

    def __init__(self, records: Sequence[Record], grid: tuple[int, int]) -> None:
        super().__init__(grid)
        self._images: dict[int | str, tuple[MaskedImages, MaskedImage]] = {}
        for file, members in masks_of(records).items():
            folder = Path(members[0].path).parent
            data = read(file, folder, {r.image_id: list(r.captions) for r in members})
            self._images |= {image.image_id: (data, image) for image in data.images}

    def find(self, record: Record, words: Sequence[str]) -> Iterator[Target]:
        """Yield the mentions of objects that have masks."""
        data, image = self._images.get(record.image_id, (None, None))
        if data is None or image is None or _is_rotated(image):
            return
        for mention in data.mentions(words, image):
            if mention.instances:
                yield mention.words, image.truth(mention.instances, self.grid)


class BoxSupervision(Supervision):
    """The target of a content word is the boxes of its phrase in Flickr30k Entities.

    Images without annotations, or with annotations that cannot be read, get no targets.
    """

    def __init__(self, folder: Path, grid: tuple[int, int]) -> None:
        super().__init__(grid)
        self.folder = folder
        self._latest: tuple[str, entities.EntityPhoto | None] = "", None

    def find(self, record: Record, words: Sequence[str]) -> Iterator[Target]:
        """Yield the phrases that have boxes."""
        if record.path != self._latest[0]:  # the captions of a photo follow each other
            self._latest = record.path, self._read(record.path)
        photo = self._latest[1]
        if photo is None:
            return
        for phrase in photo.phrases_of(words) or ():
            content = tuple(word for word in phrase.words if words[word] not in FUNCTION_WORDS)
            if content and phrase.boxes:
                yield content, photo.coverage(phrase.boxes, self.grid).ravel()

    def _read(self, path: str) -> entities.EntityPhoto | None:
        if not entities.has(self.folder, path):
            return None
        try:
            photo = entities.read_photo(self.folder, path, self._tokenizer)
        except DataError as error:
            _LOG.warning("left out: %s", error)
            return None
        for problem in photo.problems:
            _LOG.warning("%s", problem)
        return photo


def masks_of(records: Sequence[Record]) -> dict[Path, list[Record]]:
    """Return the instances files with the images of each; DataError if a file is missing."""
    files: dict[Path, list[Record]] = defaultdict(list)
    for record in records:
        folder = Path(record.path).parent
        files[folder.parent / "annotations" / f"instances_{folder.name}.json"].append(record)
    for file in files:
        if not file.is_file():
            raise DataError(
                f"attention supervised by masks needs '{file}', which does not exist: train on shapes "
                "or coco, or give the boxes of Flickr30k Entities as data.entities"
            )
    return files


def _is_rotated(image: MaskedImage) -> bool:
    """Return whether width and height of the image file are swapped relative to its masks."""
    try:
        check_upright(image.path, upright_size(image.path), image.size)
    except Exception:  # the error is reported when the pixels are read
        return True
    return False
