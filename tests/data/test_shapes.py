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


def test_every_kind_and_number_of_objects_occurs(scenes):
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


def test_too_many_objects_are_refused():
    with pytest.raises(UsageError, match="max_objects must be a whole number from 1 to 6, got 7"):
        scene(0, 0, max_objects=7)


# ── Masks ─────────────────────────────────────────────────────────────────────────────────────────


def test_masks_cover_their_objects_exactly(scenes):
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


def test_masks_have_the_outlines_of_their_objects_and_lie_apart(scenes):
    for drawn in scenes[:40]:
        for o, mask in zip(drawn.objects, drawn.masks, strict=True):
            # Objects are drawn slightly turned, so the edges differ.
            assert (mask == unturned(o, 224)).mean() > 0.98
        for a, b in itertools.combinations(drawn.objects, 2):
            assert np.hypot(*np.subtract(a.centre, b.centre)) > a.radius + b.radius


# ── Captions ────────────────────────────────────────────────────────────────────────────────────────


def test_every_caption_is_true_of_its_scene(scenes):
    for drawn in scenes:
        assert len(set(drawn.captions)) == scene_grammar.CAPTIONS
        for caption in drawn.captions:
            assert true_of(caption, drawn.objects), (caption, drawn.objects)
            # As a tokenizer returns them, or a person writes them.
            assert true_of(" ".join(re.findall("[a-z]+", caption)), drawn.objects)
            assert true_of(caption.capitalize().replace(",", " ,") + " .", drawn.objects)
