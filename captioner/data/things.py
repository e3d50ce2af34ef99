"""What generated scenes are made of: coloured, textured things and their outlines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Outline = npt.NDArray[np.float64]

# No black, white, grey or brown: those are left to the background.
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (214, 34, 42),
    "orange": (245, 127, 24),
    "yellow": (252, 222, 40),
    "green": (38, 160, 66),
    "blue": (36, 92, 220),
    "purple": (124, 48, 176),
    "pink": (246, 120, 182),
}

# Radii as parts of the picture's side; nothing lies between the two, so that the words are clear.
SIZES: Mapping[str, tuple[float, float]] = {"small": (0.09, 0.115), "large": (0.165, 0.2)}

PLAIN = "plain"
TEXTURES = ("striped", "dotted", "checked")


@dataclass(frozen=True)
class Thing:
    """One object of a scene: what a caption may say about it and where it lies.

    `shape`, `colour` and `size` are names from SHAPES, COLOURS and SIZES; `texture` is one of
    TEXTURES or PLAIN; `centre` is (x, y) of the circle around all corners and `radius` its own, both
    in pixels. Pixel (row 0, column 0) covers x and y from 0 to 1.
    """

    shape: str
    colour: str
    size: str
    centre: tuple[float, float]
    radius: float
    texture: str = PLAIN


@dataclass(frozen=True)
class Figure:
    """How a shape is drawn, in the unit circle around its centre; y points down.

    `solid` outlines (corners, 2) are filled, then `holes` cut out.
    """

    solid: tuple[Outline, ...]
    holes: tuple[Outline, ...] = ()


def _around(
    radii: Sequence[float],
    *,
    turn: float = 0.0,
    stretch: float = 1.0,
    centre: tuple[float, float] = (0.0, 0.0),
) -> Outline:
    """A closed outline, a corner per radius, clockwise from `turn` (1 = all round)."""
    angles = 2 * np.pi * (np.arange(len(radii)) / len(radii) + turn)
    corners: Outline = np.stack([stretch * np.sin(angles), -np.cos(angles)], axis=1) * np.c_[radii]
    return corners + np.array(centre)


def _box(left: float, top: float, right: float, bottom: float) -> Outline:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


_CROSS = [(-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1)]
_CROSS += [(-x, -y) for x, y in _CROSS]

SHAPES: Mapping[str, Figure] = {
    "circle": Figure((_around([1.0] * 72),)),
    "square": Figure((_around([1.0] * 4, turn=1 / 8),)),
    "triangle": Figure((_around([1.0] * 3),)),
    "star": Figure((_around([1.0, 0.42] * 5),)),
    "cross": Figure((np.array(_CROSS) / np.sqrt(10),)),
    "ring": Figure((_around([1.0] * 72),), (_around([0.55] * 72),)),
    "diamond": Figure((_around([1.0] * 4, stretch=0.66),)),
}

OBJECTS: Mapping[str, Figure] = {
    "house": Figure(
        (np.array([(-0.95, -0.1), (0.0, -1.0), (0.95, -0.1)]), _box(-0.68, -0.12, 0.68, 0.72)),
        (_box(-0.2, 0.2, 0.2, 0.72),),
    ),
    "tree": Figure((_around([0.68] * 48, centre=(0.0, -0.32)), _box(-0.16, 0.2, 0.16, 1.0))),
    "boat": Figure(
        (
            np.array([(-0.9, 0.3), (0.9, 0.3), (0.5, 0.8), (-0.5, 0.8)]),
            np.array([(-0.06, -1.0), (0.06, -1.0), (0.06, 0.32), (-0.06, 0.32)]),
            np.array([(0.06, -0.95), (0.72, 0.15), (0.06, 0.15)]),
        )
    ),
    "fish": Figure(
        (
            _around([1.0] * 48, stretch=1.0, centre=(0.0, 0.0)) * (0.68, 0.45) + (-0.28, 0.0),
            np.array([(0.25, 0.0), (0.88, -0.42), (0.88, 0.42)]),
        ),
        (_around([0.09] * 24, centre=(-0.6, -0.12)),),
    ),
}

FIGURES: Mapping[str, Figure] = {**SHAPES, **OBJECTS}
