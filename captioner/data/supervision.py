"""Where a model is to look for the words that name objects: masks as targets of its attention.

    record, caption ─ which words name which objects ─▶ their masks on the annotation grid

For training that is told so: "Attention Correctness in Neural Image Captioning" (Liu et al. 2017, arXiv
1605.09553), of which this is the weak supervision, by segments whose category a word names.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from PIL import Image

from captioner.data.masks import MaskedPicture, read
from captioner.data.objects import Namer
from captioner.data.records import Record
from captioner.errors import DataError
from captioner.text import UNK, Tokenizer

_ORIENTATION = 0x0112  # EXIF; from 5 on it exchanges the sides
Target = tuple[tuple[int, ...], Float32[np.ndarray, " L"]]


class Supervision:
    """For every word of a caption that names an object, that object's mask on the grid, its sum 1.

    Masks are those of COCO's layout, as generated scenes have them too: ``annotations/instances_X.json``
    for the pictures in folder ``X``. A mask that fills the picture says nothing and is left out, as are
    the words of a picture that was turned after it was annotated.

    Args:
        records: of one split.
        grid: (rows, columns) of the annotations.

    Raises:
        DataError: there are no masks.
    """

    def __init__(self, records: Sequence[Record], grid: tuple[int, int]) -> None:
        self.grid = grid
        self._pictures: dict[int | str, tuple[MaskedPicture, Namer]] = {}
        for file, some in masks_of(records).items():
            folder = Path(some[0].path).parent
            found = read(file, folder, {r.image_id: list(r.captions) for r in some})
            self._pictures |= {p.image_id: (p, found.namer) for p in found.pictures}
        self._tokenizer = Tokenizer()
        self._usable: dict[int | str, bool] = {}
        self._targets: dict[tuple[int | str, int], list[Target]] = {}
        self._masks: dict[tuple[int | str, tuple[int, ...]], Float32[np.ndarray, " L"]] = {}

    def __call__(
        self, record: Record, number: int, ids: Sequence[int]
    ) -> Float32[np.ndarray, "T L"]:
        """The targets of a caption: for each of its tokens a mask that sums to 1, or zeros.

        Args:
            record: of the split.
            number: of its captions, from 0.
            ids: of that caption, ``<start>`` first; a word that the vocabulary lacks has no target.
        """
        rows, columns = self.grid
        targets = np.zeros((len(ids), rows * columns), np.float32)
        for words, mask in self._of(record, number):
            # A long caption is cut.
            targets[[word + 1 for word in words if word + 1 < len(ids)]] = mask
        targets[np.array(ids) == UNK] = 0
        return targets

    def _of(self, record: Record, number: int) -> list[Target]:
        """The words that name objects, with their masks; found once."""
        key = (record.image_id, number)
        if key not in self._targets:
            self._targets[key] = self._find(record, number)
        return self._targets[key]

    def _find(self, record: Record, number: int) -> list[Target]:
        if record.image_id not in self._pictures:
            return []
        picture, namer = self._pictures[record.image_id]
        if record.image_id not in self._usable:
            self._usable[record.image_id] = _upright(picture)
        if not self._usable[record.image_id]:
            return []
        mentions = namer(self._tokenizer(record.captions[number]), picture)
        found = [(m.words, self._mask(picture, m.instances)) for m in mentions if m.instances]
        return [(words, mask) for words, mask in found if mask.any()]

    def _mask(
        self, picture: MaskedPicture, instances: tuple[int, ...]
    ) -> Float32[np.ndarray, " L"]:
        """The mask of these objects together; zeros where it fills the picture."""
        key = (picture.image_id, instances)
        if key not in self._masks:
            truth = picture.truth(instances, self.grid)
            normal = truth / truth.sum() * (truth.min() < 1)
            self._masks[key] = normal.astype(np.float32)
        return self._masks[key]


def masks_of(records: Sequence[Record]) -> dict[Path, list[Record]]:
    """The instances files of some pictures, with the pictures of each.

    Raises:
        DataError: one does not exist.
    """
    found: dict[Path, list[Record]] = defaultdict(list)
    for record in records:
        folder = Path(record.path).parent
        found[folder.parent / "annotations" / f"instances_{folder.name}.json"].append(record)
    for file in found:
        if not file.is_file():
            raise DataError(
                f"attention is to be supervised by masks, and there is no '{file}': train on data with "
                "object masks (shapes, or coco with its instances files), or leave the objective's "
                "supervision at 0"
            )
    return found


def _upright(picture: MaskedPicture) -> bool:
    """Whether the file still lies as its masks do."""
    try:
        with Image.open(picture.path) as photo:
            size = photo.size
            if photo.getexif().get(_ORIENTATION, 1) >= 5:
                size = size[::-1]
    except Exception:  # whoever reads its pixels will say what is wrong with it
        return False
    return size == picture.size or size != picture.size[::-1]
