"""Region features from files: the vectors and boxes that a detector found in each photo."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from captioner.errors import ImageError, UsageError, joined
from captioner.photos.images import Source, name_of, path_of

# The names of arrays in ``.npz`` files.
VECTORS, BOXES = ("features", "feat", "x"), ("boxes", "bbox")
SIZES = ("image_w", "image_h")
# The photo COCO_val2014_000000000042 has id 42.
_COCO = re.compile(r"(?:COCO_[a-z]+\d{4}_)?0*(\d+)")
SLACK = 0.01  # how far a box may reach beyond the photo, relative to its side


@dataclass(frozen=True)
class RegionFiles:
    """One file of region features for each photo, found by the photo's name or COCO id.

    Args:
        features: the folder of the files; None means the folder of the photo. ``NAME.npz`` has the
            vectors as ``features``, ``feat`` or ``x``, (N, D) or (D, N); ``boxes`` or ``bbox``, (N, 4),
            as left, top, right, bottom in pixels of the photo; and ``image_w`` and ``image_h``, if the
            boxes are in pixels of a resized photo. ``NAME.npy`` has only the vectors.
        boxes: the folder of ``NAME.npy`` or ``NAME.npz`` with the boxes, if they have a folder of their
            own, as ``cocobu_box`` of ruotianluo's ImageCaptioning.pytorch.
        count: the number of rows in the result. If a photo has more regions, the first are used.
        dim: D.
    """

    features: Path | None
    boxes: Path | None
    count: int
    dim: int

    def read(
        self, source: Source, size: tuple[int, int]
    ) -> Float32[np.ndarray, "regions {self.dim}+5"]:
        """Return a row for each region of a photo: its vector, its box and a 1; then rows of zeros.

        Boxes are fractions of the photo's width and height, between 0 and 1.

        Args:
            source: the path of the photo.
            size: its (width, height) in pixels, upright.

        Raises:
            ImageError: the source is no path, or its features are missing or malformed.
            UsageError: there is no such folder of features or boxes.
        """
        name, path = name_of(source), path_of(source)
        if path is None:
            raise ImageError(f"{name} has no file name to find its region features by; give a path")
        file = _find(self.features or Path(path).parent, path)
        try:
            found = _arrays(file, VECTORS)
            if self.boxes is not None:
                found |= _arrays(file := _find(self.boxes, path), BOXES)
            boxes = _fractions(found, size)
            columns = self._vectors(found), boxes, np.ones((len(boxes), 1))
            rows = np.concatenate(columns, 1, dtype=np.float32)[: self.count]
        except (ImageError, UsageError):
            raise
        except Exception as error:  # damaged files can raise anything
            reason = f"region features '{file}' cannot be used: {joined(error)}"
            raise ImageError(f"{name}: {reason}") from error
        return np.pad(rows, ((0, self.count - len(rows)), (0, 0)))

    def _vectors(self, found: dict[str, np.ndarray]) -> np.ndarray:
        vectors = _first(found, VECTORS)
        if vectors.ndim == 2 and vectors.shape[1] != self.dim == vectors.shape[0]:
            vectors = vectors.T
        if vectors.ndim != 2 or vectors.shape[1] != self.dim or not len(vectors):
            raise ValueError(f"vectors of shape {vectors.shape}, expected (regions, {self.dim})")
        if not np.isfinite(vectors).all():
            raise ValueError("some values are not finite")
        return vectors


def _find(folder: Path, source: str) -> Path:
    """Return the file of a photo in a folder; ImageError if there is none."""
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder of region features '{folder}': set the encoder's options, or "
            "CAPTIONER_FEATURES and CAPTIONER_BOXES, to folders that have a file for each photo"
        )
    stem = Path(source).stem
    names = [stem, *(match[1] for match in [_COCO.fullmatch(stem)] if match)]
    for file in (folder / f"{name}{suffix}" for name in names for suffix in (".npz", ".npy")):
        if file.is_file():
            return file
    raise ImageError(f"{name_of(source)} has no region features: '{folder}' holds no {stem}.npz")


def _arrays(file: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read the arrays of a file; the one in an ``.npy`` file gets the first of ``names``."""
    # NumPy refuses pickled objects, which could run code. It would not close a damaged file.
    loaded: Any = np.load(BytesIO(file.read_bytes()))
    if isinstance(loaded, np.ndarray):
        return {next(iter(names)): loaded}
    with loaded:
        return {name: loaded[name] for name in (*VECTORS, *BOXES, *SIZES) if name in loaded}


def _first(found: dict[str, np.ndarray], names: Iterable[str]) -> np.ndarray:
    """Return the array that has one of the names."""
    for name in names:
        if name in found:
            return found[name]
    raise ValueError(f"it has no array {' or '.join(names)}, only {', '.join(found) or 'others'}")


def _fractions(found: dict[str, np.ndarray], size: tuple[int, int]) -> np.ndarray:
    """Return the boxes as fractions of the photo's width and height."""
    boxes = np.asarray(_first(found, BOXES), np.float64)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all():
        raise ValueError(f"boxes of shape {boxes.shape}, expected 4 finite numbers for each region")
    width, height = (float(found.get(name, side)) for name, side in zip(SIZES, size, strict=True))
    if abs(width * size[1] - height * size[0]) > max(width, height) + max(size):
        raise ValueError(
            f"the detector saw {width:g} × {height:g} pixels, the photo has {size[0]} × {size[1]}"
        )
    if boxes.size and boxes.max() <= 1:
        raise ValueError("boxes between 0 and 1, expected pixels of the photo")
    fractions = boxes / [width, height, width, height]
    outside = (fractions < -SLACK) | (fractions > 1 + SLACK)
    wrong = outside.any(1) | (boxes[:, :2] > boxes[:, 2:]).any(1)
    if wrong.any():
        raise ValueError(
            f"box {boxes[wrong.argmax()].round(1).tolist()}, expected left ≤ right and top ≤ bottom "
            f"within {width:g} × {height:g} pixels"
        )
    return fractions.clip(0, 1)
