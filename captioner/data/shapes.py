"""Generated scenes of coloured objects: images, true captions and exact object masks.

    seed, index ──▶ scene() ──▶ Scene(image, objects, masks, captions)

Scenes need no download, and a small captioner learns them within minutes. Because a scene is known
completely, a caption can be checked for truth, and attention can be compared with exact masks.
"""

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from captioner import limits
from captioner.data.scene_grammar import captions_of, pick
from captioner.data.scene_objects import (
    COLOURS,
    FIGURES,
    PLAIN,
    SHAPES,
    SIZES,
    TEXTURES,
    Outline,
    SceneObject,
    rectangle,
)
from captioner.errors import UsageError, unknown

FORMAT = 3  # of scenes and their folders; increase it when either changes

JITTER = 10  # largest deviation from the named colour, in grey levels per channel
SHADE = 0.62  # brightness of a texture's dark parts relative to its bright parts
TILT = np.radians(8)  # far less than the 45° between a square and a diamond
SUPERSAMPLING = 6  # drawn points per pixel and axis
GAP = 0.03  # least distance between objects, relative to the image's side


@dataclass(frozen=True)
class Level:
    """The difficulty of scenes."""

    shapes: tuple[str, ...]  # to draw from
    backgrounds: tuple[str, ...]  # to draw from
    repeated: float  # probability that an object repeats the kind of an earlier one
    textured: float  # probability that an object has a texture
    overlap: float  # probability that an object may cover a part of earlier ones
    visible: float  # the least visible fraction of every object


_BACKGROUNDS = ("plain", "gradient", "clouds")
LEVELS: Mapping[str, Level] = {
    "plain": Level(tuple(SHAPES), _BACKGROUNDS, 0.0, 0.0, 0.0, 1.0),
    "varied": Level(tuple(FIGURES), (*_BACKGROUNDS, "grain", "tiles"), 0.2, 0.4, 0.5, 0.6),
}


@dataclass(frozen=True, eq=False)
class Scene:
    """A generated image and its complete description.

    The masks (objects, height, width) are True at the pixels of which an object covers at least half
    and no later object does, so they are disjoint.
    """

    image: Image.Image  # square, RGB
    objects: tuple[SceneObject, ...]  # in the order in which they are drawn
    masks: npt.NDArray[np.bool_]
    captions: tuple[str, ...]  # different true captions


def scene(
    seed: int, index: int, *, image_size: int = 224, max_objects: int = 3, level: str = "plain"
) -> Scene:
    """Generate scene number ``index`` of the series ``seed``; equal arguments give equal scenes.

    Args:
        seed, index: 0 or more.
        image_size: the side of the image in pixels, from 32 to 4096.
        max_objects: the scene has 1 to this many objects; at most 6.
        level: ``plain`` has seven kinds of shapes, each object in one colour and apart from the others.
            ``varied`` adds houses, trees, boats and fish, objects of the same kind, textures, busier
            backgrounds and occlusion.

    Raises:
        UsageError: an argument is outside its range.
    """
    if level not in LEVELS:
        raise UsageError(unknown("level of scenes", level, LEVELS))
    options = {"seed": seed, "image_size": image_size, "max_objects": max_objects}
    for name, value in options.items():
        limits.check(name, value, limits.SCENE[name])
    limits.check("index", index, limits.Number(0))
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]))
    count = int(rng.integers(1, max_objects + 1))
    while True:
        objects = _layout(rng, count, image_size, LEVELS[level])
        image = _background(rng, image_size, LEVELS[level])
        full = np.stack([_draw(rng, o, image) for o in objects])
        masks = full.copy()
        for i, in_front in enumerate(full):
            masks[:i] &= ~in_front
        if (masks.sum((1, 2)) >= LEVELS[level].visible * full.sum((1, 2))).all():
            return Scene(image, objects, masks, captions_of(rng, objects))


def _layout(
    rng: np.random.Generator, count: int, side: int, level: Level
) -> tuple[SceneObject, ...]:
    """Draw objects one after the other; start again if the image gets too crowded."""
    while True:
        objects: list[SceneObject] = []
        for _ in range(20 * count):
            kinds = [(o.shape, o.colour, o.size, o.texture) for o in objects]
            if not kinds or rng.random() >= level.repeated:
                kind = (pick(rng, level.shapes), pick(rng, COLOURS), pick(rng, SIZES))
                textured = level.textured > 0 and rng.random() < level.textured
                kinds = [(*kind, pick(rng, TEXTURES) if textured else PLAIN)]
            shape, colour, size, texture = pick(rng, kinds)
            radius = round(float(rng.uniform(*SIZES[size])) * side, 1)
            room = radius + GAP * side
            x, y = (round(float(v), 1) for v in rng.uniform(room, side - room, size=2))
            near = [
                o for o in objects if np.hypot(x - o.centre[0], y - o.centre[1]) <= room + o.radius
            ]
            overlapping = level.overlap > 0 and rng.random() < level.overlap
            # Overlapping objects must differ in colour.
            if not near or (overlapping and all(o.colour != colour for o in near)):
                objects.append(SceneObject(shape, colour, size, (x, y), radius, texture))
            if len(objects) == count:
                return tuple(objects)


def _background(rng: np.random.Generator, side: int, level: Level) -> Image.Image:
    """One tint, or a mixture of two; no tint is close to a named colour."""
    brightness = (0.8, 0.98) if rng.random() < 0.75 else (0.1, 0.26)
    tints = [
        colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.02, 0.1), rng.uniform(*brightness))
        for _ in range(2)
    ]
    kind = pick(rng, level.backgrounds)
    mix = np.zeros((side, side), np.float32)  # from 0, the first tint, to 1, the second
    if kind == "gradient":
        turn = rng.uniform(0, 2 * np.pi)
        y, x = np.mgrid[:side, :side]
        mix = (np.cos(turn) * x + np.sin(turn) * y).astype(np.float32)
        mix = (mix - mix.min()) / (mix.max() - mix.min())
    elif kind == "clouds":
        grain = Image.fromarray(rng.random((6, 6), dtype=np.float32))
        mix = np.asarray(grain.resize((side, side), Image.Resampling.BICUBIC)).clip(0, 1)
    elif kind == "grain":
        mix = rng.random((side, side), dtype=np.float32)
    elif kind == "tiles":
        y, x = np.mgrid[:side, :side] * int(rng.integers(4, 9)) // side
        mix = ((x + y) % 2).astype(np.float32)
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
    left, top = (int(v) for v in corner)

    def coverage(solid: Sequence[Outline], holes: Sequence[Outline] = ()) -> Image.Image:
        canvas = Image.new("L", (patch * SUPERSAMPLING,) * 2)
        pen = ImageDraw.Draw(canvas)
        for fill, outlines in ((255, solid), (0, holes)):
            for outline in outlines:
                points = outline @ rotation * drawn.radius + np.array(drawn.centre) - corner
                # Rounded down here, because Pillow would round unevenly.
                pen.polygon(np.floor(points * SUPERSAMPLING).ravel().tolist(), fill=fill)
        return canvas.reduce(SUPERSAMPLING)

    figure = FIGURES[drawn.shape]
    covered = coverage(figure.solid, figure.holes)
    red, green, blue = (int(v) for v in colour.clip(0, 255))
    paint = Image.new("RGB", covered.size, (red, green, blue))
    if drawn.texture != PLAIN:
        dark = tuple(int(SHADE * v) for v in (red, green, blue))
        paint.paste(dark, mask=coverage(_pattern(drawn.texture)))
    image.paste(paint, (left, top), covered)
    mask = Image.new("L", image.size)
    mask.paste(covered, (left, top))
    return np.asarray(mask) >= 128


def _pattern(texture: str) -> list[Outline]:
    """The dark parts of a texture, on the square around the unit circle."""
    steps = np.arange(-1.0, 1.0, 1 / 3)
    if texture == "striped":
        return [rectangle(-1.0, y, 1.0, y + 1 / 6) for y in steps]
    cells = [np.array((x, y)) for x in steps for y in steps]
    if texture == "dotted":
        turn = np.linspace(0, 2 * np.pi, 13)[:-1]
        dot = 0.1 * np.stack([np.cos(turn), np.sin(turn)], axis=1) + 1 / 6
        return [dot + cell for cell in cells]
    return [rectangle(*cell, *(cell + 1 / 3)) for i, cell in enumerate(cells) if (i // 6 + i) % 2]
