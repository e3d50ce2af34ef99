"""The objects of generated scenes: their colours, sizes, textures and outlines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Outline = npt.NDArray[np.float64]

# Backgrounds are light or dark greys with a slight tint.
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (214, 34, 42),
    "orange": (245, 127, 24),
    "yellow": (252, 222, 40),
    "green": (38, 160, 66),
    "blue": (36, 92, 220),
    "purple": (124, 48, 176),
    "pink": (246, 120, 182),
}

# The range of radii, relative to the image's side; the gap keeps the words unambiguous.
SIZES: Mapping[str, tuple[float, float]] = {"small": (0.09, 0.115), "large": (0.165, 0.2)}

PLAIN = "plain"
TEXTURES = ("striped", "dotted", "checked")


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene; the top left pixel covers x and y from 0 to 1."""

    shape: str  # a name in FIGURES
    colour: str  # a name in COLOURS
    size: str  # a name in SIZES
    centre: tuple[float, float]  # (x, y) of the circumscribed circle, in pixels
    radius: float  # of this circle, in pixels
    texture: str = PLAIN  # one of TEXTURES, or PLAIN

    @property
    def category(self) -> str:
        """Colour and shape, such as "red circle"."""
        return f"{self.colour} {self.shape}"

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "SceneObject":
        """Build an object from the attributes above, read from JSON."""
        x, y = fields["centre"]
        return cls(**{**fields, "centre": (x, y)})


@dataclass(frozen=True)
class Figure:
    """Outlines (corners, 2) of a shape inside the unit circle; y points down."""

    solid: tuple[Outline, ...]  # polygons to fill
    holes: tuple[Outline, ...] = ()  # polygons to cut out afterwards


def _around(radii: Sequence[float], turn: float = 0.0) -> Outline:
    """A polygon with one corner per radius, clockwise from `turn` (1 is a full turn)."""
    angles = 2 * np.pi * (np.arange(len(radii)) / len(radii) + turn)
    corners: Outline = np.stack([np.sin(angles), -np.cos(angles)], axis=1) * np.c_[radii]
    return corners


def rectangle(left: float, top: float, right: float, bottom: float) -> Outline:
    """The corners of an upright rectangle."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


_CROSS = [(-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1)]
_CROSS += [(-x, -y) for x, y in _CROSS]

SHAPES: Mapping[str, Figure] = {
    "circle": Figure((_around([1.0] * 72),)),
    "square": Figure((_around([1.0] * 4, 1 / 8),)),
    "triangle": Figure((_around([1.0] * 3),)),
    "star": Figure((_around([1.0, 0.42] * 5),)),
    "cross": Figure((np.array(_CROSS) / np.sqrt(10),)),
    "ring": Figure((_around([1.0] * 72),), (_around([0.55] * 72),)),
    "diamond": Figure((_around([1.0] * 4) * (0.66, 1.0),)),
}

OBJECTS: Mapping[str, Figure] = {
    "house": Figure(
        (np.array([(-0.95, -0.1), (0.0, -1.0), (0.95, -0.1)]), rectangle(-0.68, -0.12, 0.68, 0.72)),
        (rectangle(-0.2, 0.2, 0.2, 0.72),),
    ),
    "tree": Figure(
        (_around([0.68] * 48) + np.array((0.0, -0.32)), rectangle(-0.16, 0.2, 0.16, 1.0))
    ),
    "boat": Figure(
        (
            np.array([(-0.9, 0.3), (0.9, 0.3), (0.5, 0.8), (-0.5, 0.8)]),
            rectangle(-0.06, -1.0, 0.06, 0.32),
            np.array([(0.06, -0.95), (0.72, 0.15), (0.06, 0.15)]),
        )
    ),
    "fish": Figure(
        (
            _around([1.0] * 48) * (0.68, 0.45) + (-0.28, 0.0),
            np.array([(0.25, 0.0), (0.88, -0.42), (0.88, 0.42)]),
        ),
        (_around([0.09] * 24) + np.array((-0.6, -0.12)),),
    ),
}

FIGURES: Mapping[str, Figure] = {**SHAPES, **OBJECTS}
