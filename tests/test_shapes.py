"""Generated scenes: exact masks and true captions."""

import itertools
import re

import numpy as np
import pytest

from captioner.data import scene_grammar
from captioner.data.scene_grammar import COLOURS, SHAPES, SceneObject, true_of
from captioner.data.shapes import HOLES, OUTLINES, Scene, scene
from captioner.errors import UsageError


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [scene(3, i, max_objects=3 + i % 2) for i in range(160)]


# ── Scenes ────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_and_number_of_objects_occurs(scenes: list[Scene]):
    objects = [o for s in scenes for o in s.objects]
    assert {o.shape for o in objects} == set(SHAPES) == set(OUTLINES)
    assert {o.colour for o in objects} == set(COLOURS)
    assert {o.size for o in objects} == {"small", "large"}
    assert {len(s.objects) for s in scenes} == {1, 2, 3, 4}


@pytest.mark.parametrize(("side", "most"), [(32, 6), (224, 6), (320, 1)])
def test_other_sizes(side: int, most: int):
    for index in range(10):
        drawn = scene(0, index, image_size=side, max_objects=most)
        assert (drawn.image.size, drawn.image.mode) == ((side, side), "RGB")
        assert drawn.masks.shape == (len(drawn.objects), side, side)
        assert 1 <= len(drawn.objects) <= most
        assert drawn.masks.any(axis=(1, 2)).all()
        assert all(true_of(c, drawn.objects) and len(c.split()) <= 16 for c in drawn.captions)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_objects": 7}, "max_objects must be a whole number from 1 to 6, got 7"),
        ({"image_size": 31}, "image_size must be a whole number from 32 to 4,096"),
        ({"index": -1}, "index must be a whole number of 0 or more"),
    ],
)
def test_invalid_scenes_are_refused(wrong: dict[str, int], message: str):
    with pytest.raises(UsageError, match=message):
        scene(**{"seed": 0, "index": 0, **wrong})


# ── Masks ─────────────────────────────────────────────────────────────────────────────────────────


def test_masks_cover_their_objects_exactly(scenes: list[Scene]):
    offsets = []
    for drawn in scenes:
        pixels = np.asarray(drawn.image).astype(float)
        assert drawn.masks.dtype == np.bool_
        for o, mask in zip(drawn.objects, drawn.masks, strict=True):
            # The median ignores the blended edge.
            assert np.abs(np.median(pixels[mask], axis=0) - COLOURS[o.colour]).max() <= 11
            y, x = np.nonzero(mask)
            x, y = x + 0.5 - o.centre[0], y + 0.5 - o.centre[1]
            offsets.append((x.mean(), y.mean()))
            assert o.radius - 3 < np.hypot(x, y).max() < o.radius + 1
    # The edges of an upright square can be off by half a pixel, but not on average.
    assert np.abs(offsets).max() <= 0.6
    assert np.abs(np.mean(offsets, axis=0)).max() < 0.05


def test_no_background_has_a_named_colour(scenes: list[Scene]):
    for drawn in scenes[:100]:
        covered = drawn.masks.any(axis=0)
        for _ in range(2):  # leave out blended edges
            covered[1:] |= covered[:-1]
            covered[:-1] |= covered[1:]
            covered[:, 1:] |= covered[:, :-1]
            covered[:, :-1] |= covered[:, 1:]
        background = np.asarray(drawn.image)[~covered][::5].astype(int)
        for colour in COLOURS.values():
            assert np.linalg.norm(background - np.array(colour), axis=1).min() > 60
        assert (np.ptp(background, axis=1) / background.max(axis=1)).max() < 0.2


def unturned(o: SceneObject, side: int) -> np.ndarray:
    """The pixels of an object alone, by an even-odd test of each outline."""
    y, x = np.mgrid[:side, :side] + 0.5
    x, y = (x - o.centre[0]) / o.radius, (y - o.centre[1]) / o.radius
    inside = np.zeros_like(x, bool)
    for outline in (OUTLINES[o.shape], *([HOLES[o.shape]] if o.shape in HOLES else [])):
        for (x1, y1), (x2, y2) in zip(outline, np.roll(outline, -1, 0), strict=True):
            crosses = (y1 > y) != (y2 > y)
            with np.errstate(divide="ignore", invalid="ignore"):
                inside ^= crosses & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside


def test_masks_have_the_outlines_of_their_objects_and_lie_apart(scenes: list[Scene]):
    for drawn in scenes[:40]:
        for o, mask in zip(drawn.objects, drawn.masks, strict=True):
            # Objects are drawn slightly turned, so the edges differ.
            assert (mask == unturned(o, 224)).mean() > 0.98
        for a, b in itertools.combinations(drawn.objects, 2):
            assert np.hypot(*np.subtract(a.centre, b.centre)) > a.radius + b.radius


# ── Captions ────────────────────────────────────────────────────────────────────────────────────────


def test_every_caption_is_true_of_its_scene(scenes: list[Scene]):
    for drawn in scenes:
        assert len(set(drawn.captions)) == scene_grammar.CAPTIONS
        for caption in drawn.captions:
            assert true_of(caption, drawn.objects), (caption, drawn.objects)
            # As a tokenizer returns them, or a person writes them.
            assert true_of(" ".join(re.findall("[a-z]+", caption)), drawn.objects)
            assert true_of(caption.capitalize().replace(",", " ,") + " .", drawn.objects)


def test_captions_are_short_lower_case_and_diverse(scenes: list[Scene]):
    captions = [c for s in scenes for c in s.captions]
    assert all(re.fullmatch("[a-z, ]+", c) and 2 < len(c.split()) <= 20 for c in captions)
    for part in ("there is", "a picture of", "the picture shows", "large", "small"):
        assert sum(part in c for c in captions) > 5
    for relation in scene_grammar.RELATIONS:
        assert sum(relation in c for c in captions) > 15
    pairs = itertools.pairwise(scenes)
    assert np.mean([true_of(c, b.objects) for a, b in pairs for c in a.captions]) < 0.05


def test_relations_hold_between_the_masks(scenes: list[Scene]):
    """Checked by other means: a pattern for the words, and the pixels for the positions."""
    pattern = re.compile(
        r"(?:(?:there is|there are|a picture of|the picture shows) )?"
        r"(\w+) (?:(small|large) )?(\w+) (\w+) (above|below|to the left of|to the right of) "
        r"(\w+) (?:(small|large) )?(\w+) (\w+)"
    )
    singular = {shape + "s": shape for shape in SHAPES} | {"crosses": "cross"}
    checked = 0
    for drawn in scenes:
        for match in filter(None, (pattern.fullmatch(c) for c in drawn.captions)):
            first, relation, second = match.groups()[:4], match[5], match.groups()[5:]
            groups = []
            for count, size, colour, noun in (first, second):
                masks = [
                    mask
                    for o, mask in zip(drawn.objects, drawn.masks, strict=True)
                    if (o.colour, o.shape) == (colour, singular.get(noun, noun))
                    and size in (None, o.size)
                ]
                assert len(masks) == {"a": 1, "an": 1, "two": 2, "three": 3}[count]
                groups.append([np.nonzero(mask) for mask in masks])
            axis = 0 if relation in ("above", "below") else 1
            before, after = groups if relation in ("above", "to the left of") else groups[::-1]
            for a, b in itertools.product(before, after):
                assert a[axis].max() < b[axis].min()
                step = b[axis].mean() - a[axis].mean()
                assert step > 0.45 * abs(b[1 - axis].mean() - a[1 - axis].mean())
            checked += 1
    assert checked > 100


def test_lists_name_objects_from_left_to_right(scenes: list[Scene]):
    checked = 0
    for drawn in scenes:
        x_of = {o.category: o.centre[0] for o in drawn.objects}
        if len(x_of) < len(drawn.objects):
            continue
        for caption in drawn.captions:
            if not any(relation in caption for relation in scene_grammar.RELATIONS):
                named = sorted(filter(caption.count, x_of), key=caption.find)
                positions = [x_of[category] for category in named]
                assert positions == sorted(positions), caption
                checked += len(positions) > 1
    assert checked > 50
