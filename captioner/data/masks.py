"""Pictures with object masks, and the truth that they make on the annotation grid.

    instances JSON + captions JSON + pictures ─▶ read() ─▶ MaskedPicture ── truth() ─▶ (L,)

COCO's instances format: polygons or run-length encodings, decoded by COCO's own library. Crowd regions
(``iscrowd``), which are drawn by the heap and not by the object, and empty masks are dropped.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64
from pycocotools import mask as rle

from captioner.data.objects import CategoryWords, Namer, ShapePhrases
from captioner.data.things import Thing
from captioner.errors import DataError
from captioner.images import Geometry

_EXPECTED = (
    "COCO instances: images (id, file_name, height, width), categories (id, name), and annotations "
    "(image_id, category_id, segmentation)"
)


@dataclass(frozen=True)
class MaskedPicture:
    """A picture, its reference captions and the masks of its objects.

    Attributes:
        image_id: COCO's.
        path: of the file.
        size: (width, height) in pixels of the picture that the masks were drawn on.
        captions: by people; may be empty.
        categories: of every instance that has a mask.
        masks: of every instance, as compressed run-length encodings.
        things: of a generated scene, one for every instance; empty for a photograph.
        present: every category that is annotated, with or without a usable mask.
    """

    image_id: int
    path: str
    size: tuple[int, int]
    captions: tuple[str, ...]
    categories: tuple[str, ...]
    masks: tuple[Any, ...]
    things: tuple[Thing, ...]
    present: frozenset[str]

    def of(self, category: str) -> tuple[int, ...]:
        """The places of all instances of a category."""
        return tuple(i for i, there in enumerate(self.categories) if there == category)

    def union(self, instances: Iterable[int]) -> Any:
        """The pixels of any of these instances, run-length encoded."""
        return rle.merge([self.masks[i] for i in instances])

    def truth(self, instances: Iterable[int], grid: tuple[int, int]) -> Float64[np.ndarray, " L"]:
        """For every cell, in raster order, the fraction of it that these instances cover."""
        pixels = rle.decode(self.union(instances)).astype(bool)
        return Geometry(*self.size, grid).to_grid(pixels).ravel()

    def overlap(self, some: Sequence[int], others: Sequence[int]) -> float:
        """The share of the smaller of two unions that the other covers, 0 to 1."""
        both = [self.union(some), self.union(others)]
        shared = rle.area(rle.merge(both, intersect=True))
        return float(shared / min(rle.area(one) for one in both))


@dataclass(frozen=True)
class MaskedPictures:
    """A data set with masks.

    Attributes:
        pictures: in the order of the instances file; with captions, if captions were given.
        namer: finds the mentions of its objects in captions.
        source: where it is from, for the report.
        crowds: annotations dropped because they outline a crowd.
        empty: annotations dropped because no pixel is theirs.
    """

    pictures: tuple[MaskedPicture, ...]
    namer: Namer
    source: str
    crowds: int
    empty: int

    @cached_property
    def generated(self) -> bool:
        """Whether these are generated scenes."""
        return isinstance(self.namer, ShapePhrases)


def read(
    instances: Path,
    folder: Path,
    captions: dict[int | str, list[str]] | None = None,
    limit: int | None = None,
) -> MaskedPictures:
    """Reads a COCO instances file; one of generated scenes is known by its things.

    Args:
        instances: the file.
        folder: of the pictures.
        captions: by image id; pictures without any are left out. None: no captions are needed.
        limit: only the first so many pictures, whose masks alone are read; None for all.

    Raises:
        DataError: the file is missing or no COCO instances file, a mask does not fit its picture, or
            no picture is left.
    """
    content = _json(instances)
    try:
        names = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        by_image: dict[int, list[Any]] = defaultdict(list)
        for annotation in content["annotations"]:
            by_image[annotation["image_id"]].append(annotation)
        scenes = any("thing" in annotation for annotation in content["annotations"])
        images = [i for i in content["images"] if captions is None or captions.get(i["id"])]
        images = images[:limit]
        crowds = empty = 0
        pictures = []
        for image in images:
            there = by_image.get(image["id"], [])
            height, width = int(image["height"]), int(image["width"])
            kept: list[tuple[str, Any, Any]] = []
            for annotation in there:
                if annotation.get("iscrowd"):
                    crowds += 1
                    continue
                mask = _mask(annotation, height, width)
                if rle.area(mask):
                    thing = _thing(annotation["thing"]) if scenes else None
                    name = (
                        f"{thing.colour} {thing.shape}"
                        if thing
                        else names[annotation["category_id"]]
                    )
                    kept.append((name, mask, thing))
                else:
                    empty += 1
            found, masks, things = zip(*kept, strict=True) if kept else ((), (), ())
            pictures.append(
                MaskedPicture(
                    image["id"],
                    str(folder / image["file_name"]),
                    (width, height),
                    tuple((captions or {}).get(image["id"], ())),
                    found,
                    masks,
                    things if scenes else (),
                    frozenset(found)
                    if scenes
                    else frozenset(names[a["category_id"]] for a in there),
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"'{instances}' cannot be used: {type(error).__name__} {error}; expected {_EXPECTED}"
        ) from error
    if not pictures:
        raise DataError(
            f"'{instances}' and the captions have no picture in common; give files of one data set"
        )
    namer = ShapePhrases() if scenes else CategoryWords(names.values())
    return MaskedPictures(tuple(pictures), namer, str(instances), crowds, empty)


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise DataError(f"cannot read '{file}': {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"'{file}' is not JSON ({error}); expected {_EXPECTED}") from error


def _mask(annotation: Any, height: int, width: int) -> Any:
    """A segmentation of any of COCO's three forms as a compressed run-length encoding."""
    given = annotation["segmentation"]
    if isinstance(given, list):
        # The library takes four numbers for a box; a polygon has three corners or more.
        polygons = [polygon for polygon in given if len(polygon) >= 6]
        if not polygons:
            return rle.encode(np.zeros((height, width), np.uint8, order="F"))
        return rle.merge(rle.frPyObjects(polygons, height, width))
    if list(given["size"]) != [height, width]:
        raise ValueError(
            f"mask {annotation.get('id')} is of {given['size']} pixels, its picture of {[height, width]}"
        )
    if isinstance(given["counts"], list):
        return rle.frPyObjects(given, height, width)
    return {"size": given["size"], "counts": given["counts"].encode()}


def _thing(given: Any) -> Thing:
    x, y = given["centre"]
    return Thing(**{**given, "centre": (x, y)})
