"""Object masks as targets of the attention of the words that name the objects.

    record, caption ─ mentions of objects ─▶ their masks on the annotation grid

This is the weak supervision of "Attention Correctness in Neural Image Captioning" (Liu et al. 2017,
arXiv 1605.09553), with segments whose category a word names.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from PIL import Image
from PIL.ExifTags import Base

from captioner.data.masks import MaskedImage, MaskedImages, read
from captioner.data.records import Record
from captioner.errors import DataError
from captioner.text import UNK, Tokenizer

Target = tuple[tuple[int, ...], Float32[np.ndarray, " L"]]


class Supervision:
    """Gives the normalised mask of an object for every caption word that names it.

    The masks are in COCO's layout, which generated scenes share: ``annotations/instances_X.json`` for
    the images in folder ``X``. A mask that fills the image carries no information and is left out. All
    masks of an image that was rotated after annotation are left out, too. ``grid`` is (rows, columns)
    of the annotation vectors.
    """

    def __init__(self, records: Sequence[Record], grid: tuple[int, int]) -> None:
        self.grid = grid
        self._images: dict[int | str, tuple[MaskedImages, MaskedImage]] = {}
        for file, members in masks_of(records).items():
            folder = Path(members[0].path).parent
            data = read(file, folder, {r.image_id: list(r.captions) for r in members})
            self._images |= {image.image_id: (data, image) for image in data.images}
        self._tokenizer = Tokenizer()
        self._targets: dict[tuple[int | str, int], list[Target]] = {}

    def __call__(
        self, record: Record, number: int, ids: Sequence[int]
    ) -> Float32[np.ndarray, "T L"]:
        """The targets of a caption: for each token a mask that sums to 1, or zeros.

        ``number`` is the index of the caption. ``ids`` begins with ``<start>`` and may be cut;
        ``<unk>`` gets no target.
        """
        key = (record.image_id, number)
        if key not in self._targets:
            self._targets[key] = self._find_targets(record, number)
        targets = np.zeros((len(ids), self.grid[0] * self.grid[1]), np.float32)
        for words, mask in self._targets[key]:
            targets[[word + 1 for word in words if word + 1 < len(ids)]] = mask
        targets[np.array(ids) == UNK] = 0
        return targets

    def _find_targets(self, record: Record, number: int) -> list[Target]:
        if record.image_id not in self._images:
            return []
        data, image = self._images[record.image_id]
        if _is_rotated(image):
            return []
        targets = []
        for mention in data.mentions(self._tokenizer(record.captions[number]), image):
            if mention.instances:
                mask = image.truth(mention.instances, self.grid)
                if mask.min() < 1:
                    targets.append((mention.words, (mask / mask.sum()).astype(np.float32)))
        return targets


def masks_of(records: Sequence[Record]) -> dict[Path, list[Record]]:
    """The instances files of some images, with the images of each; DataError if one is missing."""
    files: dict[Path, list[Record]] = defaultdict(list)
    for record in records:
        folder = Path(record.path).parent
        files[folder.parent / "annotations" / f"instances_{folder.name}.json"].append(record)
    for file in files:
        if not file.is_file():
            raise DataError(
                f"attention supervised by masks needs '{file}', which does not exist: train on data "
                "with object masks (shapes, or coco with its instances files), or leave the "
                "objective's supervision at 0"
            )
    return files


def _is_rotated(image: MaskedImage) -> bool:
    """Whether width and height of the image file are exchanged relative to its masks."""
    try:
        with Image.open(image.path) as file:
            upright = (
                file.getexif().get(Base.Orientation, 1) < 5
            )  # values from 5 exchange the sides
            size = file.size if upright else file.size[::-1]
    except Exception:  # reading its pixels reports the error
        return True
    return size == image.size[::-1] != image.size
