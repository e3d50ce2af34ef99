"""Generated scenes of coloured objects: images, true captions and exact object masks.

Because a scene is known completely, a caption can be checked for truth, and attention can be compared
with exact masks.
"""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from captioner import limits
from captioner.data.scene_grammar import COLOURS, SHAPES, SIZES, SceneObject, captions_of, pick

Outline = npt.NDArray[np.float64]
"""The corners (corners, 2) of a polygon inside the unit circle; y points down."""

JITTER = 10  # largest deviation from the named colour, in grey levels per channel
TILT = np.radians(8)  # far less than the 45° between a square and a diamond
SUPERSAMPLING = 6  # drawn points per pixel and axis
GAP = 0.03  # least distance between objects, relative to the image's side


def _around(radii: Sequence[float], turn: float = 0.0) -> Outline:
    """A polygon with one corner per radius, clockwise from `turn` (1 is a full turn)."""
    angles = 2 * np.pi * (np.arange(len(radii)) / len(radii) + turn)
    corners: Outline = np.stack([np.sin(angles), -np.cos(angles)], axis=1) * np.c_[radii]
    return corners


_CROSS = [(-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1)]
_CROSS += [(-x, -y) for x, y in _CROSS]

OUTLINES: dict[str, Outline] = {
    "circle": _around([1.0] * 72),
    "square": _around([1.0] * 4, 1 / 8),
    "triangle": _around([1.0] * 3),
    "star": _around([1.0, 0.42] * 5),
    "cross": np.array(_CROSS) / np.sqrt(10),
    "ring": _around([1.0] * 72),
    "diamond": _around([1.0] * 4) * (0.66, 1.0),
}
HOLES: dict[str, Outline] = {"ring": _around([0.55] * 72)}


@dataclass(frozen=True, eq=False)
class Scene:
    """A generated image and its complete description."""

    image: Image.Image  # square, RGB
    objects: tuple[SceneObject, ...]
    masks: npt.NDArray[np.bool_]  # (objects, height, width): an object covers half a pixel or more
    captions: tuple[str, ...]  # different true captions


def scene(seed: int, index: int, *, image_size: int = 224, max_objects: int = 3) -> Scene:
    """Generate scene number ``index`` of the series ``seed``; equal arguments give equal scenes.

    The image has ``image_size`` pixels a side, from 32 to 4096, and the scene 1 to ``max_objects``
    objects, at most 6. UsageError if an argument is outside its range.
    """
    options = {"seed": seed, "image_size": image_size, "max_objects": max_objects}
    for name, value in options.items():
        limits.check(name, value, limits.SCENE[name])
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]))
    count = int(rng.integers(1, max_objects + 1))
    objects = _layout(rng, count, image_size)
    image = _background(rng, image_size)
    masks = np.stack([_draw(rng, o, image) for o in objects])
    return Scene(image, objects, masks, captions_of(rng, objects))


def _layout(rng: np.random.Generator, count: int, side: int) -> tuple[SceneObject, ...]:
    """Draw objects one after the other; start again if the image gets too crowded."""
    while True:
        objects: list[SceneObject] = []
        for _ in range(20 * count):
            if objects:
                rng.random()  # unused, but keeps scenes equal to those generated earlier
            shape, colour, size = pick(rng, SHAPES), pick(rng, COLOURS), pick(rng, SIZES)
            radius = round(float(rng.uniform(*SIZES[size])) * side, 1)
            room = radius + GAP * side
            x, y = (round(float(v), 1) for v in rng.uniform(room, side - room, size=2))
            distances = [np.hypot(x - o.centre[0], y - o.centre[1]) - o.radius for o in objects]
            if min(distances, default=np.inf) > room:
                objects.append(SceneObject(shape, colour, size, (x, y), radius))
            if len(objects) == count:
                return tuple(objects)


def _background(rng: np.random.Generator, side: int) -> Image.Image:
    """One tint, or a mixture of two; no tint is close to a named colour."""
    brightness = (0.8, 0.98) if rng.random() < 0.75 else (0.1, 0.26)
    tints = [
        colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.02, 0.1), rng.uniform(*brightness))
        for _ in range(2)
    ]
    kind = pick(rng, ("plain", "gradient", "clouds"))
    mix = np.zeros((side, side), np.float32)  # from 0, the first tint, to 1, the second
    if kind == "gradient":
        turn = rng.uniform(0, 2 * np.pi)
        y, x = np.mgrid[:side, :side]
        mix = (np.cos(turn) * x + np.sin(turn) * y).astype(np.float32)
        mix = (mix - mix.min()) / (mix.max() - mix.min())
    elif kind == "clouds":
        grain = Image.fromarray(rng.random((6, 6), dtype=np.float32))
        mix = np.asarray(grain.resize((side, side), Image.Resampling.BICUBIC)).clip(0, 1)
    start, end = (np.array(tint, np.float32) * 255 for tint in tints)
    return Image.fromarray((start + mix[..., None] * (end - start)).round().astype(np.uint8))


def _draw(
    rng: np.random.Generator, drawn: SceneObject, image: Image.Image
) -> npt.NDArray[np.bool_]:
    """Paint an object with smooth edges on the image; return its mask (height, width)."""
    turn = rng.uniform(-TILT, TILT)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    colour = np.array(COLOURS[drawn.colour]) + rng.integers(-JITTER, JITTER + 1, size=3)
    # A patch around the object is drawn enlarged, then reduced: its grey level is the coverage.
    corner = np.floor(np.array(drawn.centre) - drawn.radius).astype(int)
    patch = int(np.ceil(2 * drawn.radius)) + 1
    canvas = Image.new("L", (patch * SUPERSAMPLING,) * 2)
    for fill, outlines in ((255, OUTLINES), (0, HOLES)):
        if drawn.shape in outlines:
            points = outlines[drawn.shape] @ rotation * drawn.radius + drawn.centre - corner
            # Rounded down here, because Pillow would round unevenly.
            points = np.floor(points * SUPERSAMPLING)
            ImageDraw.Draw(canvas).polygon(points.ravel().tolist(), fill=fill)
    covered = canvas.reduce(SUPERSAMPLING)
    left, top = (int(v) for v in corner)
    red, green, blue = (int(v) for v in colour.clip(0, 255))
    image.paste((red, green, blue), (left, top), covered)
    mask = Image.new("L", image.size)
    mask.paste(covered, (left, top))
    return np.asarray(mask) >= 128
