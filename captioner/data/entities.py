"""Flickr30k Entities: boxes for the phrases of captions (Plummer et al. 2015, arXiv 1505.04870).

    Annotations/ID.xml + Sentences/ID.txt ─▶ read_photo() ─▶ EntityPhoto ── phrases_of(caption) ─▶ Phrase

``ID`` is the number before the first ``_`` of a photo's name. A phrase belongs to a coreference chain,
whose number identifies its boxes. Phrases without boxes (``scene``, ``nobndbox``) are counted.
"""

import re
from collections import Counter, defaultdict
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

TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
"""The eight types of entities."""

SIMILAR = 0.7  # smallest share of equal words for a sentence and a caption to count as the same

NOT_VISUAL = "0"  # the chain of phrases that name nothing in the photo

_PHRASE = re.compile(r"\[/EN#(\d+)((?:/\w+)+) ([^\]]*)\]")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Box = tuple[int, int, int, int]
"""Left, top, right and bottom edge in pixels of the original photo; the last two are exclusive."""


class Phrase(NamedTuple):
    """A phrase of a caption.

    Attributes:
        words: the positions of its words in the caption.
        types: the types of its entity; some phrases have two.
        boxes: all boxes of its coreference chain; empty if it has none.
    """

    words: tuple[int, ...]
    types: tuple[str, ...]
    boxes: tuple[Box, ...]


class EntityPhoto(NamedTuple):
    """The annotations of one photo.

    Attributes:
        size: (width, height) of the photo that was annotated. The photo at hand may have been resized.
        captions: the phrases of every sentence, by the sentence's words.
        problems: a line for each box or phrase that cannot be used.
        left_out: the number of phrases without boxes, by reason.
    """

    size: tuple[int, int]
    captions: dict[tuple[str, ...], list[Phrase]]
    problems: list[str]
    left_out: Counter[str]

    def phrases_of(self, words: Sequence[str]) -> list[Phrase] | None:
        """Return the phrases of a caption; None if no sentence is similar to it.

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
            return None
        same = {
            start + step: other + step
            for start, other, length in matchers[nearest].get_matching_blocks()
            for step in range(length)
        }
        moved = [
            phrase._replace(words=tuple(same[word] for word in phrase.words if word in same))
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


def has(folder: Path, name: str) -> bool:
    """Return whether a photo has annotations."""
    return (folder / "Annotations" / f"{name}.xml").exists()


def check(folder: Path, paths: Iterable[str]) -> None:
    """Raise ``DataError`` unless at least one of these photos has annotations."""
    if not any(has(folder, photo_id(path)) for path in paths):
        raise DataError(
            f"'{folder}' has no annotations of these photos: expected the folder of Flickr30k Entities, "
            "with Annotations/ID.xml and Sentences/ID.txt for photos whose names begin with ID_"
        )


def photo_id(path: str | Path) -> str:
    """Return the number that names a photo's annotation files."""
    return Path(path).stem.partition("_")[0]


def read_photo(folder: Path, name: str, tokenizer: Tokenizer) -> EntityPhoto:
    """Read the annotations of one photo.

    Args:
        folder: contains ``Annotations`` and ``Sentences``.
        name: the photo's number.
        tokenizer: splits the sentences into words.

    Raises:
        DataError: a file is missing or malformed.
    """
    problems: list[str] = []
    size, boxes, reasons = _read_boxes(folder / "Annotations" / f"{name}.xml", problems)
    left_out: Counter[str] = Counter()
    captions = {}
    for line in read_lines(folder / "Sentences" / f"{name}.txt"):
        words: list[str] = []
        phrases = []
        position = 0
        for match in _PHRASE.finditer(line):
            words += tokenizer(line[position : match.start()])
            position = match.end()
            first = len(words)
            words += tokenizer(match[3])
            types = tuple(match[2].strip("/").split("/"))
            chain = match[1]
            if not boxes[chain]:
                left_out["not visual" if chain == NOT_VISUAL else reasons.get(chain, "no box")] += 1
            phrases.append(Phrase(tuple(range(first, len(words))), types, tuple(boxes[chain])))
        words += tokenizer(line[position:])
        if words:
            captions[tuple(words)] = [phrase for phrase in phrases if phrase.words]
    return EntityPhoto(size, captions, problems, left_out)


def _read_boxes(
    file: Path, problems: list[str]
) -> tuple[tuple[int, int], dict[str, list[Box]], dict[str, str]]:
    """Read the size of a photo, the boxes of every chain, and why other chains have none."""
    try:
        root = ElementTree.fromstring("\n".join(read_lines(file)))
        width, height = _numbers(root.find("size"), ("width", "height"))
        size = (width, height)
        if min(size) < 1 or width * height > MAX_PIXELS:
            raise ValueError(f"a photo of {width} × {height} pixels")
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(
            f"'{file}' cannot be used: {error}; expected an annotation of Flickr30k Entities with "
            "the size of its photo"
        ) from error
    boxes: dict[str, list[Box]] = defaultdict(list)
    reasons: dict[str, str] = {}
    for entity in root.iter("object"):
        chains = [(name.text or "").strip() for name in entity.findall("name")]
        if (outline := entity.find("bndbox")) is None:
            kind = "scene" if entity.findtext("scene") == "1" else "no box"
            reasons |= dict.fromkeys(chains, kind)
            continue
        try:
            left, top, right, bottom = _numbers(outline, _CORNERS)
            box = _clipped((left, top, right, bottom), size)
        except ValueError as error:
            problems.append(f"'{file}', chain {', '.join(chains)}: {error}")
            continue
        for chain in chains:
            boxes[chain].append(box)
    return size, boxes, reasons


def _numbers(element: ElementTree.Element | None, names: Sequence[str]) -> tuple[int, ...]:
    """Read whole numbers from the children of an element."""
    found = [None if element is None else element.findtext(name) for name in names]
    if any(text is None or not re.fullmatch(r"\s*-?\d{1,9}\s*", text) for text in found):
        raise ValueError(f"expected whole numbers {', '.join(names)}, got {found}")
    return tuple(int(text or 0) for text in found)


def _clipped(corners: Box, size: tuple[int, int]) -> Box:
    """Convert corners, which are inclusive and count from 1, to edges clipped to the photo."""
    left, top, right, bottom = corners
    box = max(left - 1, 0), max(top - 1, 0), min(right, size[0]), min(bottom, size[1])
    if box[0] >= box[2] or box[1] >= box[3]:
        raise ValueError(f"the box {corners} lies outside its photo of {size} pixels")
    return box
