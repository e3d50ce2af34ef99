"""Which captions are true of a scene, and which words name which objects."""

import re

import pytest

from captioner.data import scene_grammar
from captioner.data.scene_grammar import SceneObject, find_mentions, true_of


def figure(shape: str, colour: str, x: float, y: float, size: str = "small") -> SceneObject:
    radius = 20.0 if size == "small" else 40.0
    return SceneObject(shape, colour, size, (float(x), float(y)), radius)


SCENE = [
    figure("circle", "red", 60, 60),
    figure("star", "green", 60, 160),
    figure("star", "green", 160, 165, "large"),
]
CROSSES = [figure("cross", "orange", 50, 50), figure("cross", "orange", 150, 50)]

TRUE = """
a red circle | There is a small red circle. | two green stars
there are two green stars and a red circle
a small green star , a large green star and a red circle
a small green star a large green star and a red circle
the picture shows a red circle above two green stars | two green stars below a red circle
a picture of a large green star to the right of a small green star
a red circle above a small green star | a red circle to the left of a large green star
"""
FALSE = """
. | a | there is | <start> <unk> | a dog on a beach | a blue circle | a red square
a large red circle | a green star | three green stars | two red circles | two small green stars
two large green stars and a red circle | a red circle and a red circle
a red circle and a small red circle | two green stars and a large green star
a red circle below a small green star | a red circle to the left of a small green star
a red circle to the left of two green stars | a large green star above a small green star
a red circle above a red circle | a red circle and | a red circle to the left of a
and a red circle | above a red circle | a red circle a small green star
a red circle and a small green star and a large green star
a red circle above a small green star and a large green star
a red circle above a small green star below a red circle | a red circle red | the a red circle
a red circle is above two green stars | there is there is a red circle | a red circle there is
a red small circle | an red circle | a red circles | two green star | there are a red circle
there is two green stars | a red_circle | a redcircle | a red circle 2
"""


@pytest.mark.parametrize(
    ("objects", "true", "false"),
    [
        (SCENE, TRUE, FALSE),
        (
            CROSSES[:1],
            "an orange cross | a small orange cross",
            "a orange cross | an orange crosses",
        ),
        (CROSSES, "two orange crosses", "two orange cross | two orange crosss | an orange cross"),
    ],
)
def test_true_and_false_captions(objects: list[SceneObject], true: str, false: str):
    for captions, expected in ((true.strip(), True), (false.strip(), False)):
        for caption in re.split(r" \| |\n", captions):
            assert true_of(caption, objects) == expected, caption
    assert not true_of("", objects)


@pytest.mark.parametrize(
    ("caption", "objects", "expected"),
    [
        (
            "a small green star above two red circles",
            [
                figure("circle", "red", 0, 9),
                figure("star", "green", 0, 0),
                figure("circle", "red", 50, 9),
            ],
            [((1, 2, 3), "green star", (1,)), ((6, 7), "red circle", (0, 2))],
        ),
        ("two orange crosses", CROSSES, [((1, 2), "orange cross", (0, 1))]),
        # "a green star" refers to neither of two; "a large green star" refers to one.
        ("a green star", SCENE, [((1, 2), "green star", ())]),
        ("a large green star", SCENE, [((1, 2, 3), "green star", (2,))]),
        ("a blue ring", SCENE, [((1, 2), "blue ring", ())]),
        ("red above blue", SCENE, []),
    ],
)
def test_mentions(caption, objects, expected):
    mentions = find_mentions(caption.split(), objects)
    assert [(m.words, m.category, m.instances) for m in mentions] == expected


@pytest.mark.parametrize(
    ("x", "y", "relations"),
    [
        (39, 0, set()),  # the circles around both overlap
        (40, 0, {"to the left of"}),
        (100, 49, {"to the left of"}),
        (100, 50, {"to the left of", "above"}),
        (100, 201, {"above"}),
        (-100, -30, {"to the right of"}),
        (30, -60, {"below"}),
    ],
)
def test_the_margin_of_relations(x: float, y: float, relations: set[str]):
    pair = [figure("ring", "pink", 100, 100), figure("star", "blue", 100 + x, 100 + y)]
    holding = {r for r in scene_grammar.RELATIONS if true_of(f"a pink ring {r} a blue star", pair)}
    assert holding == relations
