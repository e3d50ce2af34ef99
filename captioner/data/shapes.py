"""Generated scenes of coloured things: pictures, true captions and exact object masks.

    seed, index ──▶ scene() ──▶ Scene(image, things, masks, captions)

`things` says what they are made of, `grammar` what is said about them, and `shapes_folder` writes
whole data sets.

A data set that needs no files and no download, on which a small captioner learns within minutes.
Because a scene is known completely, a caption can be checked for truth and not only for likeness
with a reference, and attention can be checked against masks that hold no labelling mistake.
"""

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from captioner.data.grammar import COUNTS, captions_of, pick
from captioner.data.things import COLOURS, FIGURES, PLAIN, SHAPES, SIZES, TEXTURES, Outline, Thing
from captioner.errors import UsageError, unknown

FORMAT = 3  # of the scenes and of their folders: goes up when either changes

JITTER = 10  # how far one thing's colour may lie from its name's, in grey levels per channel
SHADE = 0.62  # the darker of a textured thing's two colours, as a part of the other
TILT = np.radians(8)  # far less than what turns a square into a diamond
SUPERSAMPLING = 6  # drawn points per pixel and axis


@dataclass(frozen=True)
class Level:
    """How hard scenes are.

    Attributes:
        shapes: what there is to see.
        twins: the part of the later things that are like an earlier one, without which there would
            hardly be anything to count.
        textured: the part of the things that have a texture.
        backgrounds: kinds of ground.
        gap: least distance between things, as a part of the picture's side.
        overlap: the part of all things that may lie partly behind a later one.
        visible: at least this part of every thing can be seen.
    """

    shapes: tuple[str, ...]
    twins: float
    textured: float
    backgrounds: tuple[str, ...]
    gap: float
    overlap: float
    visible: float


_GROUNDS = ("plain", "gradient", "clouds")
LEVELS: Mapping[str, Level] = {
    "plain": Level(tuple(SHAPES), 0.0, 0.0, _GROUNDS, 0.03, 0.0, 1.0),
    "varied": Level(tuple(FIGURES), 0.2, 0.4, (*_GROUNDS, "grain", "tiles"), 0.03, 0.5, 0.6),
}


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and everything there is to know about it.

    `image` is RGB and square. `masks` (things, height, width) is True at the pixels that the thing
    of the same place in `things` covers by half or more, and no later one does: no pixel has two.
    `captions` holds different sentences, each one true.
    """

    image: Image.Image
    things: tuple[Thing, ...]
    masks: npt.NDArray[np.bool_]
    captions: tuple[str, ...]


def scene(
    seed: int, index: int, *, image_size: int = 224, max_objects: int = 3, level: str = "plain"
) -> Scene:
    """Scene number `index` of the endless series `seed`: the same arguments give the same scene.

    `image_size` is the side in pixels, 32 or more; the scene holds 1 to `max_objects` (at most six)
    things. At the `level` ``plain`` there are seven shapes of one colour each, apart from each other
    and seldom two alike; ``varied`` has houses, trees, boats and fish as well, twins, textures, busier
    grounds, and things partly behind others. Raises UsageError for numbers outside these ranges and
    for negative ones.
    """
    if level not in LEVELS:
        raise UsageError(unknown("level of scenes", level, LEVELS))
    if seed < 0 or index < 0 or image_size < 32 or not 1 <= max_objects <= len(COUNTS):
        raise UsageError(
            f"no scene for {seed=}, {index=}, {image_size=}, {max_objects=}: expected seed and "
            f"index from 0, image_size from 32, max_objects from 1 to {len(COUNTS)}"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]))
    hard = LEVELS[level]
    count = int(rng.integers(1, max_objects + 1))
    while True:
        things = _layout(rng, count, image_size, hard)
        image = _background(rng, image_size, hard)
        whole = np.stack([_draw(rng, thing, image) for thing in things])
        masks = whole.copy()
        for place, in_front in enumerate(whole):  # what is drawn later
            masks[:place] &= ~in_front
        if (masks.sum((1, 2)) >= hard.visible * whole.sum((1, 2))).all():
            return Scene(image, things, masks, captions_of(rng, things))


def _layout(rng: np.random.Generator, count: int, side: int, level: Level) -> tuple[Thing, ...]:
    """Things placed one after the other; a crowded start is thrown away."""
    while True:
        things: list[Thing] = []
        for _ in range(20 * count):
            looks = [(t.shape, t.colour, t.size, t.texture) for t in things]
            if not looks or rng.random() >= level.twins:
                look = (pick(rng, level.shapes), pick(rng, COLOURS), pick(rng, SIZES))
                textured = level.textured > 0 and rng.random() < level.textured
                looks = [(*look, pick(rng, TEXTURES) if textured else PLAIN)]
            shape, colour, size, texture = pick(rng, looks)
            radius = round(float(rng.uniform(*SIZES[size])) * side, 1)
            room = radius + level.gap * side
            x, y = (round(float(v), 1) for v in rng.uniform(room, side - room, size=2))
            near = [
                t for t in things if np.hypot(x - t.centre[0], y - t.centre[1]) <= room + t.radius
            ]
            # In front of another only if their colours differ, or nobody could tell the two apart.
            in_front = (
                level.overlap > 0
                and rng.random() < level.overlap
                and all(t.colour != colour for t in near)
            )
            if not near or in_front:
                things.append(Thing(shape, colour, size, (x, y), radius, texture))
            if len(things) == count:
                return tuple(things)


def _background(rng: np.random.Generator, side: int, level: Level) -> Image.Image:
    """A plain tint, or two tints that no colour's name fits in a gradient, clouds, grain or tiles."""
    brightness = (0.8, 0.98) if rng.random() < 0.75 else (0.1, 0.26)
    tints = [
        colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.02, 0.1), rng.uniform(*brightness))
        for _ in range(2)
    ]
    kind = pick(rng, level.backgrounds)
    mix = np.zeros((side, side), np.float32)  # 0: the first tint, 1: the second
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


def _draw(rng: np.random.Generator, thing: Thing, image: Image.Image) -> npt.NDArray[np.bool_]:
    """Paint `thing` on `image`, its edges smooth; its mask (height, width)."""
    turn = rng.uniform(-TILT, TILT)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    colour = np.array(COLOURS[thing.colour]) + rng.integers(-JITTER, JITTER + 1, size=3)
    # Only a patch around the thing is drawn large and shrunk: its grey is the covered part.
    corner = np.floor(np.array(thing.centre) - thing.radius).astype(int)
    patch = int(np.ceil(2 * thing.radius)) + 1
    left, top = (int(v) for v in corner)

    def covered(solid: Sequence[Outline], holes: Sequence[Outline]) -> Image.Image:
        canvas = Image.new("L", (patch * SUPERSAMPLING,) * 2)
        pen = ImageDraw.Draw(canvas)
        for fill, outlines in ((255, solid), (0, holes)):
            for outline in outlines:
                points = outline @ rotation * thing.radius + np.array(thing.centre) - corner
                # Pillow wants the whole numbers of its pixels, and would round all to one side itself.
                pen.polygon(np.floor(points * SUPERSAMPLING).ravel().tolist(), fill=fill)
        return canvas.reduce(SUPERSAMPLING)

    figure = FIGURES[thing.shape]
    coverage = covered(figure.solid, figure.holes)
    red, green, blue = (int(v) for v in colour.clip(0, 255))
    paint = Image.new("RGB", coverage.size, (red, green, blue))
    if thing.texture != PLAIN:
        dark = tuple(int(SHADE * v) for v in (red, green, blue))
        paint.paste(dark, mask=covered(_pattern(thing.texture), ()))
    image.paste(paint, (left, top), coverage)
    whole = Image.new("L", image.size)
    whole.paste(coverage, (left, top))
    return np.asarray(whole) >= 128


def _pattern(texture: str) -> list[Outline]:
    """The dark parts of a texture, over the unit circle's square."""
    places = np.arange(-1.0, 1.0, 1 / 3)
    if texture == "striped":
        return [_rectangle(-1.0, y, 2.0, 1 / 6) for y in places]
    if texture == "dotted":
        turn = np.linspace(0, 2 * np.pi, 13)[:-1]
        dot = 0.1 * np.stack([np.cos(turn), np.sin(turn)], axis=1) + 1 / 6
        return [dot + np.array((x, y)) for x in places for y in places]
    return [
        _rectangle(x, y, 1 / 3, 1 / 3)
        for i, x in enumerate(places)
        for j, y in enumerate(places)
        if (i + j) % 2
    ]


def _rectangle(x: float, y: float, width: float, height: float) -> Outline:
    return np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
