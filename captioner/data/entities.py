"""Flickr30k Entities: boxes for the phrases of captions (Plummer et al. 2015, arXiv 1505.04870).

    Annotations/ID.xml + Sentences/ID.txt ─▶ read_photo() ─▶ EntityPhoto ── phrases_of(caption) ─▶ Phrase

``ID`` is the number before the first ``_`` of a photo's name. A phrase belongs to a coreference chain,
whose number identifies its boxes.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float64

from captioner.data.readers.files import read_lines
from captioner.errors import DataError
from captioner.images import MAX_PIXELS, Geometry
from captioner.text import Tokenizer

SIMILAR = 0.7  # smallest share of equal words for a sentence and a caption to count as the same

_PHRASE = re.compile(r"\[/EN#(\d+)/\S+ ([^\]]*)\]")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Box = tuple[int, int, int, int]
"""Left, top, right and bottom edge in pixels of the original photo; the last two are exclusive."""


class Phrase(NamedTuple):
    """A phrase of a caption: the positions of its words, and all boxes of its coreference chain."""

    words: tuple[int, ...]
    boxes: tuple[Box, ...]  # empty if the chain has none


class EntityPhoto(NamedTuple):
    """The annotations of one photo.

    Attributes:
        size: (width, height) of the photo that was annotated. The photo at hand may have been resized.
        captions: the phrases of every sentence, by the sentence's words.
    """

    size: tuple[int, int]
    captions: dict[tuple[str, ...], tuple[Phrase, ...]]

    def phrases_of(self, words: Sequence[str]) -> Sequence[Phrase]:
        """Return the phrases of a caption; none if no sentence is similar to it.

        The sentences of the data set are corrected captions of Flickr30k. If none equals the
        caption, the phrases of the most similar one are used, without the words that differ.
        """
        if (phrases := self.captions.get(tuple(words))) is not None:
            return phrases
        matchers = {
            sentence: SequenceMatcher(None, sentence, words, autojunk=False)
            for sentence in self.captions
        }
        nearest = max(matchers, key=lambda s: matchers[s].ratio(), default=())
        if not nearest or matchers[nearest].ratio() < SIMILAR:
            return []
        same = {
            start + step: other + step
            for start, other, length in matchers[nearest].get_matching_blocks()
            for step in range(length)
        }
        moved = [
            Phrase(tuple(same[word] for word in phrase.words if word in same), phrase.boxes)
            for phrase in self.captions[nearest]
        ]
        return [phrase for phrase in moved if phrase.words]

    def coverage(
        self, boxes: Iterable[Box], grid: tuple[int, int]
    ) -> Float64[np.ndarray, "rows columns"]:
        """Return the fraction of every grid cell that the boxes cover together."""
        width, height = self.size
        inside = np.zeros((height, width), bool)
        for left, top, right, bottom in boxes:
            inside[top:bottom, left:right] = True
        return Geometry(width, height, grid).to_grid(inside)


def has(folder: Path, path: str) -> bool:
    """Return whether a photo has annotations."""
    return _file(folder, "Annotations", path).exists()


def check(folder: Path, paths: Iterable[str]) -> None:
    """Raise ``DataError`` unless at least one of these photos has annotations."""
    if not any(has(folder, path) for path in paths):
        raise DataError(
            f"'{folder}' has no annotations of these photos: expected the folder of Flickr30k Entities, "
            "with Annotations/ID.xml and Sentences/ID.txt for photos whose names begin with ID_"
        )


def _file(folder: Path, part: str, path: str) -> Path:
    suffix = "xml" if part == "Annotations" else "txt"
    return folder / part / f"{Path(path).stem.partition('_')[0]}.{suffix}"


def read_photo(folder: Path, path: str, tokenizer: Tokenizer) -> EntityPhoto:
    """Read the annotations of the photo at ``path``; ``tokenizer`` splits the sentences into words.

    Raises:
        DataError: a file is missing or malformed.
    """
    size, boxes = _read_boxes(_file(folder, "Annotations", path))
    captions = {}
    for line in read_lines(_file(folder, "Sentences", path)):
        words: list[str] = []
        phrases = []
        position = 0
        for match in _PHRASE.finditer(line):
            words += tokenizer(line[position : match.start()])
            position, first = match.end(), len(words)
            words += tokenizer(match[2])
            if len(words) > first:
                phrases.append(Phrase(tuple(range(first, len(words))), tuple(boxes[match[1]])))
        words += tokenizer(line[position:])
        if words:
            captions[tuple(words)] = tuple(phrases)
    return EntityPhoto(size, captions)


def _read_boxes(file: Path) -> tuple[tuple[int, int], dict[str, list[Box]]]:
    """Read the size of a photo and the boxes of every chain; boxes outside the photo are empty."""
    boxes: dict[str, list[Box]] = defaultdict(list)
    try:
        root = ElementTree.fromstring("\n".join(read_lines(file)))
        width, height = _numbers(root.find("size"), ("width", "height"))
        if min(width, height) < 1 or width * height > MAX_PIXELS:
            raise ValueError(f"a photo of {width} × {height} pixels")
        for entity in root.iter("object"):
            if (outline := entity.find("bndbox")) is not None:
                # Corners are inclusive and count from 1.
                left, top, right, bottom = _numbers(outline, _CORNERS)
                box = (max(left - 1, 0), max(top - 1, 0), max(right, 0), max(bottom, 0))
                for name in entity.findall("name"):
                    boxes[(name.text or "").strip()].append(box)
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(
            f"'{file}' cannot be used: {error}; expected an annotation of Flickr30k Entities with "
            "the size of its photo"
        ) from error
    return (width, height), boxes


def _numbers(element: ElementTree.Element | None, names: Sequence[str]) -> tuple[int, ...]:
    """Read whole numbers from the children of an element."""
    found = [None if element is None else element.findtext(name) for name in names]
    if not all(re.fullmatch(r"\s*-?\d{1,9}\s*", text or "") for text in found):
        raise ValueError(f"expected whole numbers {', '.join(names)}, got {found}")
    return tuple(int(text or 0) for text in found)
