"""Images with object masks in COCO's instances format, and the masks on the annotation grid.

Crowd regions (``iscrowd``), which outline many objects at once, and empty masks are dropped.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64
from pycocotools import mask as rle

from captioner.data.object_words import CategoryWords, FindNames
from captioner.data.readers.text_files import MALFORMED, read_json
from captioner.data.scene_grammar import Mention, SceneObject, find_mentions
from captioner.errors import DataError
from captioner.photos.geometry import Geometry


@dataclass(frozen=True)
class MaskedImage:
    """An image, its reference captions and the masks of its objects."""

    image_id: int | str
    path: str
    size: tuple[int, int]  # (width, height) in pixels at which the masks were drawn
    captions: tuple[str, ...]
    categories: tuple[str, ...]  # of each instance with a mask
    masks: tuple[Any, ...]  # compressed run-length encodings, one per instance
    objects: tuple[SceneObject, ...]  # of a generated scene, one per instance; empty for a photo
    present: frozenset[str]  # all annotated categories, also those without a usable mask

    def union(self, instances: Iterable[int]) -> Any:
        """The union of the masks of some instances, run-length encoded."""
        return rle.merge([self.masks[i] for i in instances])

    def truth(self, instances: Iterable[int], grid: tuple[int, int]) -> Float64[np.ndarray, " L"]:
        """The fraction of every region of the grid, in raster order, that some instances cover."""
        return _on_grid(self.union(instances)["counts"], self.size, grid)

    def overlap(self, first: Sequence[int], second: Sequence[int]) -> float:
        """The intersection of two unions of instances, divided by the area of the smaller one."""
        both = [self.union(first), self.union(second)]
        return float(rle.area(rle.merge(both, intersect=True)) / min(map(rle.area, both)))


@lru_cache(maxsize=1024)  # the captions of an image name the same objects
def _on_grid(counts: bytes, size: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    pixels = rle.decode({"size": size[::-1], "counts": counts}).astype(bool)
    cells = Geometry(*size, grid).to_grid(pixels).ravel()
    cells.flags.writeable = False
    return cells


@dataclass(frozen=True)
class MaskedImages:
    """A data set with masks."""

    exhaustive: ClassVar[bool] = True  # whether all objects of the categories are annotated
    # Masks that share at most this fraction of the smaller one count as disjoint.
    max_overlap: ClassVar[float] = 0.1
    images: tuple[MaskedImage, ...]  # in the order of the instances file
    find_names: FindNames | None  # finds categories in captions; None for generated scenes
    source: str  # for reports
    left_out: Mapping[str, int]  # numbers of annotations that were dropped, by reason
    types: Mapping[str, str]  # the type of each category, for scores by type; may be empty

    @property
    def generated(self) -> bool:
        """Whether the images are generated scenes."""
        return self.find_names is None

    def mentions(self, words: Sequence[str], image: MaskedImage) -> list[Mention]:
        """The mentions of an image's objects in a reference caption, given as lower-case words."""
        return self.named(words, image)

    def named(self, words: Sequence[str], image: MaskedImage) -> list[Mention]:
        """The same in any caption, such as a generated one."""
        if self.find_names is None:
            return find_mentions(words, image.objects)
        return [
            Mention(
                at,
                category,
                tuple(i for i, c in enumerate(image.categories) if c == category),
                (self.types[category],) if category in self.types else (),
            )
            for at, category in self.find_names(words)
        ]


def read(
    instances: Path,
    folder: Path,
    captions: dict[Any, list[str]] | None = None,
    limit: int | None = None,
) -> MaskedImages:
    """Read an instances file, whose images are in ``folder``.

    Args:
        captions: reference captions by image id; images without captions are left out.
        limit: read the masks of the first ``limit`` images only.

    Raises:
        DataError: the file cannot be used, or no image is left.
    """
    content = read_json(instances)
    dropped: Counter[str] = Counter()
    try:
        names = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        annotations: dict[int, list[Any]] = defaultdict(list)
        for annotation in content["annotations"]:
            annotations[annotation["image_id"]].append(annotation)
        is_scene = any("thing" in annotation for annotation in content["annotations"])
        entries = [e for e in content["images"] if captions is None or captions.get(e["id"])]
        images = []
        for entry in entries[:limit]:
            image_id, path = entry["id"], str(folder / entry["file_name"])
            size = int(entry["width"]), int(entry["height"])
            texts = tuple((captions or {}).get(image_id, ()))
            found = _instances(annotations[image_id], size, names, is_scene, dropped)
            images.append(MaskedImage(image_id, path, size, texts, *found))
        find = None if is_scene else CategoryWords(names.values()).find
    except MALFORMED as error:
        raise DataError(
            f"'{instances}' cannot be used: {type(error).__name__} {error}; expected COCO instances"
        ) from error
    if not images:
        raise DataError(f"'{instances}' and the captions have no photo in common")
    counts = {"crowds_dropped": dropped["crowd"], "empty_masks_dropped": dropped["empty"]}
    return MaskedImages(tuple(images), find, str(instances), counts, {})


def _instances(
    annotations: list[Any],
    size: tuple[int, int],
    names: dict[Any, str],
    is_scene: bool,
    dropped: Counter[str],
) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[SceneObject, ...], frozenset[str]]:
    """The last four fields of a `MaskedImage`."""
    single = [a for a in annotations if not a.get("iscrowd")]
    masked = [(a, mask) for a in single if rle.area(mask := _mask(a, size))]
    dropped["crowd"] += len(annotations) - len(single)
    dropped["empty"] += len(single) - len(masked)
    masks = tuple(mask for _, mask in masked)
    if is_scene:
        things = [a["thing"] for a, _ in masked]
        objects = tuple(
            SceneObject(**thing | {"centre": tuple(thing["centre"])}) for thing in things
        )
        categories = tuple(o.category for o in objects)
        return categories, masks, objects, frozenset(categories)
    categories = tuple(names[a["category_id"]] for a, _ in masked)
    return categories, masks, (), frozenset(names[a["category_id"]] for a in annotations)


def _mask(annotation: Any, size: tuple[int, int]) -> Any:
    """A segmentation in any of COCO's three forms, as a compressed run-length encoding."""
    width, height = size
    segmentation = annotation["segmentation"]
    if isinstance(segmentation, list):
        # The library takes four numbers for a box; a polygon has at least three corners.
        polygons = [polygon for polygon in segmentation if len(polygon) >= 6]
        if not polygons:
            return rle.encode(np.zeros((height, width), np.uint8, order="F"))
        return rle.merge(rle.frPyObjects(polygons, height, width))
    if list(segmentation["size"]) != [height, width]:
        found = f"mask {annotation.get('id')} has {segmentation['size']} pixels"
        raise ValueError(f"{found}, its photo {[height, width]}")
    counts = segmentation["counts"]
    if isinstance(counts, list):
        return rle.frPyObjects(segmentation, height, width)
    return {"size": segmentation["size"], "counts": counts.encode()}
