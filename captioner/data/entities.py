"""Flickr30k Entities: boxes for the phrases of captions (Plummer et al. 2015, arXiv 1505.04870).

A photo has the files Annotations/ID.xml and Sentences/ID.txt, where ``ID`` is the number before the
first ``_`` of its name. A phrase belongs to a coreference chain, whose number identifies its boxes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float64

from captioner.data.readers.text_files import read_lines
from captioner.errors import DataError
from captioner.photos.geometry import Geometry

TYPES = ("people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other")
"""The eight types of entities; a phrase of any other type counts as "other"."""

SIMILAR = 0.7  # smallest share of equal words for a sentence and a caption to count as the same

_PHRASE = re.compile(r"\[/EN#(\d+)/(\S+) ([^\]]*)\]")
_CORNERS = ("xmin", "ymin", "xmax", "ymax")

Box = tuple[int, int, int, int]
"""Left, top, right and bottom edge in pixels of the original photo; the last two are exclusive."""


class Phrase(NamedTuple):
    """A phrase of a caption."""

    words: tuple[int, ...]  # their positions in the caption
    types: tuple[str, ...]  # of its entity, mostly one
    boxes: tuple[Box, ...]  # all boxes of its coreference chain; empty if it has none


class EntityPhoto(NamedTuple):
    """The annotations of one photo."""

    size: tuple[int, int]  # (width, height) when it was annotated; it may have been resized since
    captions: dict[tuple[str, ...], tuple[Phrase, ...]]  # the phrases, by the words of the sentence
    problems: list[str]  # a line for each box that cannot be used
    left_out: Counter[str]  # the number of phrases without boxes, by reason

    def phrases_of(self, words: Sequence[str]) -> Sequence[Phrase] | None:
        """Return the phrases of the sentence most similar to a caption; None if none is similar.

        The sentences are corrected captions of Flickr30k. Words that differ are left out.
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
        """Return the fraction of every region of the grid that the boxes cover together."""
        width, height = self.size
        inside = np.zeros((height, width), bool)
        for left, top, right, bottom in boxes:
            inside[top:bottom, left:right] = True
        return Geometry(width, height, grid).to_grid(inside)


def has(folder: Path, path: str) -> bool:
    """Return whether a photo has annotations."""
    return _file(folder, "Annotations", path).exists()


def check(folder: Path, paths: Iterable[str]) -> None:
    """Raise DataError unless at least one of these photos has annotations."""
    if not any(has(folder, path) for path in paths):
        raise DataError(
            f"'{folder}' has no annotations of these photos: expected the folder of Flickr30k Entities"
        )


def _file(folder: Path, part: str, path: str) -> Path:
    suffix = "xml" if part == "Annotations" else "txt"
    return folder / part / f"{Path(path).stem.partition('_')[0]}.{suffix}"


def read_photo(folder: Path, path: str, tokenizer: Callable[[str], list[str]]) -> EntityPhoto:
    """Read the annotations of a photo; DataError if a file is missing or malformed."""
    problems: list[str] = []
    size, boxes, reasons = _read_boxes(_file(folder, "Annotations", path), problems)
    left_out: Counter[str] = Counter()
    captions = {}
    for line in read_lines(_file(folder, "Sentences", path)):
        words: list[str] = []
        phrases = []
        position = 0
        for match in _PHRASE.finditer(line):
            words += tokenizer(line[position : match.start()])
            position, first = match.end(), len(words)
            words += tokenizer(match[3])
            if not boxes[match[1]]:
                left_out[reasons[match[1]]] += 1
            if len(words) > first:
                types = tuple(filter(TYPES.__contains__, match[2].split("/"))) or ("other",)
                at = tuple(range(first, len(words)))
                phrases.append(Phrase(at, types, tuple(boxes[match[1]])))
        words += tokenizer(line[position:])
        if words:
            captions[tuple(words)] = tuple(phrases)
    return EntityPhoto(size, captions, problems, left_out)


def _read_boxes(
    file: Path, problems: list[str]
) -> tuple[tuple[int, int], dict[str, list[Box]], dict[str, str]]:
    """The size of a photo, the boxes of every chain, and why the other chains have none."""
    boxes: dict[str, list[Box]] = defaultdict(list)
    reasons = defaultdict(lambda: "no_box", {"0": "not_visual"})
    try:
        root = ElementTree.fromstring("\n".join(read_lines(file)))
        width, height = _numbers(root.find("size"), ("width", "height"))
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"'{file}' cannot be used: {error}") from error
    for entity in root.iter("object"):
        chains = [(name.text or "").strip() for name in entity.findall("name")]
        if (outline := entity.find("bndbox")) is None:
            if entity.findtext("scene") == "1":
                reasons |= dict.fromkeys(chains, "scene")
            continue
        try:
            box = _clipped(_numbers(outline, _CORNERS), (width, height))
        except ValueError as error:
            problems.append(f"'{file}', chain {', '.join(chains)}: {error}; the box is left out")
            continue
        for chain in chains:
            boxes[chain].append(box)
    return (width, height), boxes, reasons


def _clipped(corners: Sequence[int], size: tuple[int, int]) -> Box:
    """Convert inclusive corners, counted from 1, to edges clipped to the photo."""
    left, top, right, bottom = corners
    box = max(left - 1, 0), max(top - 1, 0), min(right, size[0]), min(bottom, size[1])
    if box[0] >= box[2] or box[1] >= box[3]:
        raise ValueError(f"the box {tuple(corners)} lies outside its photo of {size} pixels")
    return box


def _numbers(element: ElementTree.Element | None, names: Sequence[str]) -> tuple[int, ...]:
    """Read whole numbers from the children of an element."""
    found = [None if element is None else element.findtext(name) for name in names]
    try:
        return tuple(int(text or "") for text in found)
    except ValueError:
        raise ValueError(f"expected whole numbers {', '.join(names)}, got {found}") from None
