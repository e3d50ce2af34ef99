"""Generated scenes of coloured shapes: pictures, true captions and exact object masks.

    seed, index ──────▶ scene() ───▶ Scene(image, things, masks, captions)
    caption, things ──▶ true_of() ─▶ is the caption true of the scene?
    words, things ────▶ named_in() ▶ which words name which things

`shapes_folder` writes whole data sets of them.

A data set that needs no files and no download, on which a small captioner learns within minutes.
Because a scene is known completely, a caption can be checked for truth and not only for likeness
with a reference, and attention can be checked against masks that hold no labelling mistake.

Every caption comes from one small grammar, which `true_of` reads again:

    caption  = [opening] (list | relation)
    opening  = "there is" | "there are" | "a picture of" | "the picture shows"
    list     = phrase | phrase {", " phrase} " and " phrase
    relation = phrase ("above" | "below" | "to the left of" | "to the right of") phrase
    phrase   = ("a" | "an" | "two" | …) ["small" | "large"] colour shape
"""

import colorsys
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from captioner.errors import UsageError

T = TypeVar("T")
Outline = npt.NDArray[np.float64]

FORMAT = 2  # of the scenes and of their folders: goes up when either changes
CAPTIONS = 5  # different captions per scene

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
JITTER = 10  # how far one thing's colour may lie from its name's, in grey levels per channel

# Radii as parts of the picture's side; nothing lies between the two, so that the words are clear.
SIZES: Mapping[str, tuple[float, float]] = {"small": (0.09, 0.115), "large": (0.165, 0.2)}
GAP = 0.03  # least distance between things and to the border, as a part of the picture's side
TILT = np.radians(8)  # far less than what turns a square into a diamond
SUPERSAMPLING = 6  # drawn points per pixel and axis

COUNTS = ("a", "two", "three", "four", "five", "six")
OPENINGS = ("there is", "a picture of", "the picture shows")
# How the first thing lies from the second: along which axis of (x, y) and which way; y points down.
RELATIONS: Mapping[str, tuple[int, int]] = {
    "above": (1, -1),
    "below": (1, 1),
    "to the left of": (0, -1),
    "to the right of": (0, 1),
}


def _around(radii: Sequence[float], *, turn: float = 0.0, stretch: float = 1.0) -> Outline:
    """A closed outline (corners, 2), a corner per radius, clockwise from `turn` (1 = all round)."""
    angles = 2 * np.pi * (np.arange(len(radii)) / len(radii) + turn)
    corners: Outline = np.stack([stretch * np.sin(angles), -np.cos(angles)], axis=1) * np.c_[radii]
    return corners


_CROSS = [(-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1)]
_CROSS += [(-x, -y) for x, y in _CROSS]

# Outlines in the unit circle around the centroid: the first is filled, one after it cut out.
SHAPES: Mapping[str, tuple[Outline, ...]] = {
    "circle": (_around([1.0] * 72),),
    "square": (_around([1.0] * 4, turn=1 / 8),),
    "triangle": (_around([1.0] * 3),),
    "star": (_around([1.0, 0.42] * 5),),
    "cross": (np.array(_CROSS) / np.sqrt(10),),
    "ring": (_around([1.0] * 72), _around([0.55] * 72)),
    "diamond": (_around([1.0] * 4, stretch=0.66),),
}
_NOUNS = {s: (s, s + ("es" if s.endswith("s") else "s")) for s in SHAPES}  # one, many


@dataclass(frozen=True)
class Thing:
    """One object of a scene: what a caption may say about it and where it lies.

    `shape`, `colour` and `size` are names from SHAPES, COLOURS and SIZES; `centre` is (x, y) of the
    centroid and `radius` that of the circle around all corners, both in pixels. Pixel (row 0,
    column 0) covers x and y from 0 to 1.
    """

    shape: str
    colour: str
    size: str
    centre: tuple[float, float]
    radius: float


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and everything there is to know about it.

    `image` is RGB and square. `masks` (things, height, width) is True at the pixels that the thing
    of the same place in `things` covers by half or more. Things never touch, so all of each is
    visible and no pixel has two. `captions` holds CAPTIONS different sentences, each one true.
    """

    image: Image.Image
    things: tuple[Thing, ...]
    masks: npt.NDArray[np.bool_]
    captions: tuple[str, ...]


def scene(seed: int, index: int, *, image_size: int = 224, max_objects: int = 3) -> Scene:
    """Scene number `index` of the endless series `seed`: the same arguments give the same scene.

    `image_size` is the side in pixels, 32 or more; the scene holds 1 to `max_objects` (at most six)
    things. Raises UsageError for numbers outside these ranges and for negative ones.
    """
    if seed < 0 or index < 0 or image_size < 32 or not 1 <= max_objects <= len(COUNTS):
        raise UsageError(
            f"no scene for {seed=}, {index=}, {image_size=}, {max_objects=}: expected seed and "
            f"index from 0, image_size from 32, max_objects from 1 to {len(COUNTS)}"
        )
    rng = np.random.default_rng(np.random.SeedSequence([seed, index]))
    things = _layout(rng, int(rng.integers(1, max_objects + 1)), image_size)
    image = _background(rng, image_size)
    masks = np.stack([_draw(rng, thing, image) for thing in things])
    return Scene(image, things, masks, _captions(rng, things))


def _pick(rng: np.random.Generator, items: Iterable[T]) -> T:
    options = list(items)
    return options[int(rng.integers(len(options)))]


def _layout(rng: np.random.Generator, count: int, side: int) -> tuple[Thing, ...]:
    """Things that do not touch, placed one after the other; a crowded start is thrown away."""
    while True:
        things: list[Thing] = []
        for _ in range(20 * count):
            # Some are twins of an earlier one, or there would hardly be anything to count.
            looks = [(t.shape, t.colour, t.size) for t in things]
            if not looks or rng.random() < 0.8:
                looks = [(_pick(rng, SHAPES), _pick(rng, COLOURS), _pick(rng, SIZES))]
            shape, colour, size = _pick(rng, looks)
            radius = round(float(rng.uniform(*SIZES[size])) * side, 1)
            room = radius + GAP * side
            x, y = (round(float(v), 1) for v in rng.uniform(room, side - room, size=2))
            if all(np.hypot(x - t.centre[0], y - t.centre[1]) > room + t.radius for t in things):
                things.append(Thing(shape, colour, size, (x, y), radius))
            if len(things) == count:
                return tuple(things)


def _background(rng: np.random.Generator, side: int) -> Image.Image:
    """A plain tint, a gradient or soft clouds between two tints that no colour's name fits."""
    brightness = (0.8, 0.98) if rng.random() < 0.75 else (0.1, 0.26)
    tints = [
        colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.02, 0.1), rng.uniform(*brightness))
        for _ in range(2)
    ]
    kind = _pick(rng, ("plain", "gradient", "clouds"))
    mix = np.zeros((side, side), np.float32)  # 0: the first tint, 1: the second
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


def _draw(rng: np.random.Generator, thing: Thing, image: Image.Image) -> npt.NDArray[np.bool_]:
    """Paint `thing` on `image`, its edges smooth; its mask (height, width)."""
    turn = rng.uniform(-TILT, TILT)
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    colour = np.array(COLOURS[thing.colour]) + rng.integers(-JITTER, JITTER + 1, size=3)
    # Only a patch around the thing is drawn large and shrunk: its grey is the covered part.
    corner = np.floor(np.array(thing.centre) - thing.radius).astype(int)
    patch = int(np.ceil(2 * thing.radius)) + 1
    canvas = Image.new("L", (patch * SUPERSAMPLING,) * 2)
    pen = ImageDraw.Draw(canvas)
    for fill, outline in zip((255, 0), SHAPES[thing.shape], strict=False):
        points = outline @ rotation * thing.radius + np.array(thing.centre) - corner
        # Pillow wants the whole numbers of its pixels, and would round all to one side itself.
        pen.polygon(np.floor(points * SUPERSAMPLING).ravel().tolist(), fill=fill)
    coverage = canvas.reduce(SUPERSAMPLING)
    left, top = (int(v) for v in corner)
    red, green, blue = (int(v) for v in colour.clip(0, 255))
    image.paste((red, green, blue), (left, top), coverage)
    whole = Image.new("L", image.size)
    whole.paste(coverage, (left, top))
    return np.asarray(whole) >= 128


@dataclass(frozen=True)
class _Phrase:
    """`count` things of one kind, as a caption names them; an empty size is left unsaid."""

    count: int
    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        noun = _NOUNS[self.shape][self.count > 1]
        words = " ".join(filter(None, (self.size, self.colour, noun)))
        article = "an" if self.count == 1 and words[0] in "aeiou" else COUNTS[self.count - 1]
        return f"{article} {words}"

    def among(self, things: Sequence[Thing]) -> list[Thing]:
        """The things meant; none where the scene holds more or fewer of the kind."""
        found = [
            thing
            for thing in things
            if (thing.colour, thing.shape) == (self.colour, self.shape)
            and self.size in ("", thing.size)
        ]
        return found if len(found) == self.count else []


@dataclass(frozen=True)
class _Statement:
    """A caption taken apart: its opening, the phrases, and the relation between two of them."""

    opening: str
    phrases: tuple[_Phrase, ...]
    relation: str = ""

    def __str__(self) -> str:
        *others, last = map(str, self.phrases)
        opening = self.opening
        if opening == "there is" and self.phrases[0].count > 1:
            opening = "there are"
        if self.relation and len(others) == 1:
            body = f"{others[0]} {self.relation} {last}"
        else:
            body = f"{', '.join(others)} and {last}" if others else last
        return f"{opening} {body}".lstrip()

    def holds(self, things: Sequence[Thing]) -> bool:
        groups = [phrase.among(things) for phrase in self.phrases]
        meant = list(itertools.chain(*groups))
        # "a red ring and a large red ring" must not be one ring named twice.
        if not all(groups) or len(set(meant)) < len(meant):
            return False
        if not self.relation:
            return True
        return all(_lies(self.relation, a, b) for a, b in itertools.product(*groups))


def _lies(relation: str, a: Thing, b: Thing) -> bool:
    """Whether anybody would say that `a` lies so from `b`.

    A straight line fits between the circles around the two, and the way there leads at least half
    as far in the named direction as across it: far down and a little to the left is only "below".
    """
    axis, sign = RELATIONS[relation]
    ahead = sign * (a.centre[axis] - b.centre[axis])
    across = abs(a.centre[1 - axis] - b.centre[1 - axis])
    return ahead >= a.radius + b.radius and 2 * ahead >= across


def _captions(rng: np.random.Generator, things: Sequence[Thing]) -> tuple[str, ...]:
    """CAPTIONS different true sentences; one lone thing already has eight."""
    captions: dict[str, None] = {}
    while len(captions) < CAPTIONS:
        captions[str(_statement(rng, things))] = None
    return tuple(captions)


def _statement(rng: np.random.Generator, things: Sequence[Thing]) -> _Statement:
    kinds: dict[tuple[str, str, str], int] = defaultdict(int)
    sized = {(t.colour, t.shape): rng.random() < 0.5 for t in things}
    for t in things:
        kinds[t.size if sized[t.colour, t.shape] else "", t.colour, t.shape] += 1
    phrases = [_Phrase(count, *kind) for kind, count in kinds.items()]
    order = [phrases[int(i)] for i in rng.permutation(len(phrases))]
    opening = _pick(rng, OPENINGS) if rng.random() < 0.5 else ""
    related = [
        statement
        for pair in itertools.permutations(order, 2)
        for relation in RELATIONS
        if (statement := _Statement(opening, pair, relation)).holds(things)
    ]
    if related and rng.random() < 0.6:
        return _pick(rng, related)
    # Three make one short sentence. From left to right, so that there is a way to look to learn.
    named = sorted(order[:3], key=lambda phrase: min(t.centre[0] for t in phrase.among(things)))
    return _Statement(opening, tuple(named))


_SHAPE_OF = {noun: shape for shape, nouns in _NOUNS.items() for noun in nouns}
_OPENING, _RELATION, _COUNT, _SIZE, _COLOUR, _NOUN = (
    f"({'|'.join(words)})"
    for words in ((*OPENINGS, "there are"), RELATIONS, (*COUNTS, "an"), SIZES, COLOURS, _SHAPE_OF)
)
_PHRASE = rf"\b{_COUNT} (?:{_SIZE} )?{_COLOUR} {_NOUN}\b"


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _phrase(found: re.Match[str]) -> _Phrase:
    count, size, colour, noun = found.groups()
    number = 1 if count == "an" else COUNTS.index(count) + 1
    return _Phrase(number, size or "", colour, _SHAPE_OF[noun])


@dataclass(frozen=True)
class Named:
    """What a phrase of a caption names.

    `words` are the places of its size, colour and shape among the caption's words, `kind` its colour and
    shape, and `things` the places in the scene of the things meant: none where the scene holds more or
    fewer of them than the phrase says.
    """

    words: range
    kind: str
    things: tuple[int, ...]


def named_in(words: Sequence[str], scene_things: Sequence[Thing]) -> list[Named]:
    """What the phrases of a caption, given as its words in lower case, name in a scene."""
    text, found = " ".join(words), []
    for match in re.finditer(_PHRASE, text):
        phrase = _phrase(match)
        first = match.start(2) if match[2] else match.start(3)  # size, if it is said, or colour
        places = range(text.count(" ", 0, first), text.count(" ", 0, match.end()) + 1)
        meant = phrase.among(scene_things)
        things = tuple(i for i, thing in enumerate(scene_things) if thing in meant)
        found.append(Named(places, f"{phrase.colour} {phrase.shape}", things))
    return found


def true_of(caption: str, scene_things: Sequence[Thing]) -> bool:
    """Whether `caption` is a whole sentence of the grammar above and true of the scene.

    True when every phrase means exactly as many things as the scene holds of that kind (so "a red
    ring" is false of two), no thing is named twice, and the relation clearly holds between them. A
    caption need not name everything. Case and punctuation do not matter; anything else (a broken
    off end, "a orange ring", "two star", an unknown word) makes it false.
    """
    text = _plain(caption)
    phrases = tuple(map(_phrase, re.finditer(_PHRASE, text)))
    if not phrases:
        return False
    opening, relation = (
        m[0] if m else "" for m in (re.match(_OPENING, text), re.search(_RELATION, text))
    )
    statement = _Statement(opening.replace("there are", "there is"), phrases, relation)
    # Read loosely, then written anew: one comparison covers articles, plurals, order and leftovers.
    return _plain(str(statement)) == text and statement.holds(scene_things)
