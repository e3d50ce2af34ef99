import colorsys
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as rle
from pycocotools.coco import COCO

from captioner.data import grammar, shapes, shapes_folder
from captioner.data.grammar import named_in, true_of
from captioner.data.shapes import Scene, scene
from captioner.data.shapes_folder import read_things, write
from captioner.data.things import COLOURS, FIGURES, PLAIN, SHAPES, SIZES, TEXTURES, Thing
from captioner.errors import DataError, UsageError

SMALL = {"train": 6, "val": 3, "test": 2}


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [scene(3, i, max_objects=3 + i % 2) for i in range(300)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "deeper" / "shapes"
    write(root, seed=5, sizes=SMALL, image_size=96)
    return root


@pytest.fixture(scope="module")
def varied() -> list[Scene]:
    return [scene(4, i, max_objects=5, level="varied") for i in range(300)]


def thing(
    shape: str, colour: str, x: float, y: float, size: str = "small", texture: str = PLAIN
) -> Thing:
    place = (float(x), float(y))
    return Thing(shape, colour, size, place, 20.0 if size == "small" else 40.0, texture)


def tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# The scene


def test_same_arguments_give_the_same_scene():
    one, two = scene(1, 2), scene(1, 2)
    assert one.image.tobytes() == two.image.tobytes()
    assert (one.things, one.captions) == (two.things, two.captions)
    assert np.array_equal(one.masks, two.masks)


def test_another_seed_or_index_gives_another_scene():
    pictures = {scene(s, i).image.tobytes() for s in range(3) for i in range(10)}
    assert len(pictures) == 30


def test_every_kind_of_thing_and_number_of_things_occurs(scenes: list[Scene]):
    things = [t for s in scenes for t in s.things]
    assert {t.shape for t in things} == set(SHAPES)
    assert {t.colour for t in things} == set(COLOURS)
    assert {t.size for t in things} == set(SIZES)
    assert {len(s.things) for s in scenes} == {1, 2, 3, 4}


@pytest.mark.parametrize(("side", "most"), [(32, 6), (224, 6), (320, 1)])
def test_other_sizes(side: int, most: int):
    for index in range(20):
        made = scene(0, index, image_size=side, max_objects=most)
        assert made.image.size == (side, side)
        assert made.image.mode == "RGB"
        assert made.masks.shape == (len(made.things), side, side)
        assert 1 <= len(made.things) <= most
        assert made.masks.any(axis=(1, 2)).all()
        assert all(true_of(c, made.things) and len(c.split()) <= 16 for c in made.captions)


@pytest.mark.parametrize(
    "wrong", [{"max_objects": 0}, {"max_objects": 7}, {"image_size": 31}, {"index": -1}]
)
def test_impossible_scenes_are_refused(wrong: dict[str, int]):
    with pytest.raises(UsageError, match="expected seed"):
        scene(**{"seed": 0, "index": 0, **wrong})


def test_an_unknown_level_is_named():
    with pytest.raises(UsageError, match="unknown level of scenes 'hard'; known: varied, plain"):
        scene(0, 0, level="hard")


# The masks


def test_masks_show_the_thing_and_nothing_else(scenes: list[Scene]):
    offsets = []
    for made in scenes:
        pixels = np.asarray(made.image).astype(float)
        assert made.masks.dtype == np.bool_
        assert made.masks.any(axis=(1, 2)).all()
        assert made.masks.sum(axis=0).max() == 1  # disjoint
        for t, mask in zip(made.things, made.masks, strict=True):
            # The median leaves the blended edge aside; the mean may be drawn a little to it.
            assert np.abs(np.median(pixels[mask], axis=0) - COLOURS[t.colour]).max() <= 11
            assert np.abs(pixels[mask].mean(axis=0) - COLOURS[t.colour]).max() <= 40
            y, x = np.nonzero(mask)
            offsets.append((x.mean() + 0.5 - t.centre[0], y.mean() + 0.5 - t.centre[1]))
            reach = np.hypot(x + 0.5 - t.centre[0], y + 0.5 - t.centre[1]).max()
            assert t.radius - 3 < reach < t.radius + 1
    # An upright square's edges can fall half a pixel off, and all to one side; never on the whole.
    assert np.abs(offsets).max() <= 0.6
    assert np.abs(np.mean(offsets, axis=0)).max() < 0.05


def test_mask_holds_the_pixels_more_like_the_thing_than_like_the_ground():
    # On a plain ground a pixel's place between the two colours is its covered part.
    for index in range(40):
        made = scene(0, index, max_objects=1)
        pixels = np.asarray(made.image).astype(float)
        ground = pixels[0, 0]
        if np.ptp(pixels[[0, 0, -1, -1], [0, -1, 0, -1]], axis=0).any():
            continue
        ink = np.median(pixels[made.masks[0]], axis=0)
        cover = (pixels - ground) @ (ink - ground) / ((ink - ground) @ (ink - ground))
        sure = np.abs(cover - 0.5) > 0.02
        assert np.array_equal((cover > 0.5)[sure], made.masks[0][sure])


def test_areas_are_those_of_the_shapes(scenes: list[Scene]):
    parts = {"circle": 1, "square": 0.637, "triangle": 0.413, "cross": 0.637, "diamond": 0.42}
    parts |= {"star": 5 * np.sin(np.pi / 5) * 0.42 / np.pi, "ring": 1 - 0.55**2}
    for made in scenes:
        for t, mask in zip(made.things, made.masks, strict=True):
            expected = parts[t.shape] * np.pi * t.radius**2
            assert mask.sum() == pytest.approx(expected, rel=0.04)


def test_the_ground_has_no_colour_that_a_caption_could_name(scenes: list[Scene]):
    for made in scenes[:100]:
        covered = made.masks.any(axis=0)
        for _ in range(2):  # blended edges belong to neither
            covered[1:] |= covered[:-1]
            covered[:-1] |= covered[1:]
            covered[:, 1:] |= covered[:, :-1]
            covered[:, :-1] |= covered[:, 1:]
        ground = np.asarray(made.image)[~covered][::5].astype(int)
        for colour in COLOURS.values():
            assert np.linalg.norm(ground - np.array(colour), axis=1).min() > 60
        saturation = np.ptp(ground, axis=1) / ground.max(axis=1)
        assert saturation.max() < 0.2


def test_jitter_never_makes_one_colour_another():
    names = list(COLOURS)
    palette = np.array([COLOURS[n] for n in names])
    gaps = np.linalg.norm(palette[:, None] - palette[None], axis=-1)
    np.fill_diagonal(gaps, np.inf)
    assert gaps.min() > 4 * shapes.JITTER * np.sqrt(3)
    hues = sorted(colorsys.rgb_to_hsv(*(palette[i] / 255))[0] for i in range(len(names)))
    assert min(b - a for a, b in itertools.pairwise(hues)) > 0.06


# The harder level


def test_the_varied_level_holds_all_there_is(varied: list[Scene]):
    things = [t for s in varied for t in s.things]
    assert {t.shape for t in things} == set(FIGURES)
    assert {t.texture for t in things} == {PLAIN, *TEXTURES}
    assert {len(s.things) for s in varied} == {1, 2, 3, 4, 5}
    assert 0.3 < np.mean([t.texture != PLAIN for t in things]) < 0.5


def whole(t: Thing, side: int) -> np.ndarray:
    """The thing alone on its canvas, not turned: its pixels by an even-odd test of each corner list."""
    y, x = np.mgrid[:side, :side] + 0.5
    x, y = (x - t.centre[0]) / t.radius, (y - t.centre[1]) / t.radius

    def inside(outline: np.ndarray) -> np.ndarray:
        found = np.zeros_like(x, bool)
        for (x1, y1), (x2, y2) in zip(outline, np.roll(outline, -1, 0), strict=True):
            crosses = (y1 > y) != (y2 > y)
            with np.errstate(divide="ignore", invalid="ignore"):
                found ^= crosses & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
        return found

    solid = np.any([inside(o) for o in FIGURES[t.shape].solid], axis=0)
    return solid & ~np.any([np.zeros_like(solid), *map(inside, FIGURES[t.shape].holes)], axis=0)


def test_masks_are_what_can_be_seen(varied: list[Scene]):
    hidden = 0
    for made in varied:
        assert made.masks.sum(axis=0).max() == 1  # nothing is two things at once
        for place, (t, mask) in enumerate(zip(made.things, made.masks, strict=True)):
            alone = whole(t, 224)
            in_front = np.any([np.zeros_like(alone), *made.masks[place + 1 :]], axis=0)
            # It is drawn a little turned, so that its edge is not quite where the outline is.
            agree = (mask == (alone & ~in_front)).mean()
            assert agree > 0.98
            seen = mask.sum() / (mask | (alone & in_front)).sum()
            assert seen > 0.58
            hidden += seen < 0.97
    assert hidden > 50


def test_what_overlaps_differs_in_colour(varied: list[Scene]):
    for made in varied:
        for a, b in itertools.combinations(made.things, 2):
            apart = np.hypot(*np.subtract(a.centre, b.centre)) > a.radius + b.radius
            assert apart or a.colour != b.colour


def test_a_texture_is_two_shades_of_the_colour(varied: list[Scene]):
    seen = dict.fromkeys((PLAIN, *TEXTURES), 0)
    for made in varied:
        pixels = np.asarray(made.image).astype(float)
        for t, mask in zip(made.things, made.masks, strict=True):
            ink = pixels[mask] @ COLOURS[t.colour] / np.square(COLOURS[t.colour]).sum()
            dark = np.mean((ink > 0.5) & (ink < 0.75))
            if t.texture == PLAIN:
                assert dark < 0.1
            else:
                assert 0.1 < dark < 0.7
                assert np.mean(ink > 0.85) > 0.25
            seen[t.texture] += 1
    assert min(seen.values()) > 50


def test_the_plain_level_has_none_of_it(scenes: list[Scene]):
    things = [t for s in scenes for t in s.things]
    assert {t.texture for t in things} == {PLAIN}
    assert {t.shape for t in things} == set(SHAPES)


# The captions


@pytest.mark.parametrize("level", ["scenes", "varied"])
def test_every_caption_is_true_of_its_scene(level: str, request: pytest.FixtureRequest):
    for made in request.getfixturevalue(level):
        assert len(set(made.captions)) == grammar.CAPTIONS
        for caption in made.captions:
            assert true_of(caption, made.things), (caption, made.things)
            # As a tokenizer gives them back, or a person writes them.
            assert true_of(" ".join(re.findall("[a-z]+", caption)), made.things)
            assert true_of(caption.capitalize().replace(",", " ,") + " .", made.things)


def test_captions_are_short_lower_case_and_various(scenes: list[Scene], varied: list[Scene]):
    assert all(len(c.split()) <= 16 for s in scenes for c in s.captions)
    captions = [c for s in [*scenes, *varied] for c in s.captions]
    assert all(re.fullmatch("[a-z, ]+", c) and 2 < len(c.split()) <= 20 for c in captions)
    for part in ("there is", "there are", "a picture of", "the picture shows", "large", "small"):
        assert sum(part in c for c in captions) > 10
    for relation in grammar.RELATIONS:
        assert sum(relation in c for c in captions) > 30
    assert sum(bool(re.search("two|three", c)) for c in captions) > 25


def test_captions_of_other_scenes_are_mostly_false(scenes: list[Scene]):
    other = [true_of(c, b.things) for a, b in itertools.pairwise(scenes) for c in a.captions]
    assert np.mean(other) < 0.05


def test_grammar(scenes: list[Scene]):
    vowels = "aeiou"
    for caption in {c for s in scenes for c in s.captions}:
        words = caption.replace(",", "").split()
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word in ("a", "an"):
                assert (word == "an") == (following[0] in vowels), caption
        for count, noun in re.findall(
            r"\b(an?|two|three|four) (?:small |large )?\w+ (\w+)",
            caption.replace("a picture of", ""),
        ):
            plural = noun.endswith("s") and noun != "cross"
            assert plural == (count not in ("a", "an")), caption
            assert noun not in ("crosss", "crosse")
        if caption.startswith("there"):
            assert (words[1] == "is") == (words[2] in ("a", "an")), caption


def test_relations_hold_between_the_masks(scenes: list[Scene]):
    """Read again by other means: words by a pattern of this test, places by the pixels."""
    pattern = re.compile(
        r"(?:(?:there is|there are|a picture of|the picture shows) )?"
        r"(\w+) (?:(small|large) )?(\w+) (\w+) (above|below|to the left of|to the right of) "
        r"(\w+) (?:(small|large) )?(\w+) (\w+)"
    )
    seen = 0
    for made in scenes:
        for match in filter(None, (pattern.fullmatch(c) for c in made.captions)):
            first, relation, second = match.groups()[:4], match[5], match.groups()[5:]
            boxes = []
            for count, size, colour, noun in (first, second):
                shape = noun if count in ("a", "an") else re.sub("e?s$", "", noun)
                shape = {"cros": "cross", "squar": "square", "triangl": "triangle"}.get(
                    shape, shape
                )
                shape = {"circl": "circle"}.get(shape, shape)
                found = [
                    mask
                    for t, mask in zip(made.things, made.masks, strict=True)
                    if (t.colour, t.shape) == (colour, shape) and size in (None, t.size)
                ]
                assert len(found) == {"a": 1, "an": 1, "two": 2, "three": 3}[count]
                boxes.append([np.nonzero(mask) for mask in found])
            axis = 0 if relation in ("above", "below") else 1
            before, after = boxes if relation in ("above", "to the left of") else boxes[::-1]
            for a in before:
                for b in after:
                    assert a[axis].max() < b[axis].min()
                    step = b[axis].mean() - a[axis].mean()
                    assert step > 0.45 * abs(b[1 - axis].mean() - a[1 - axis].mean())
            seen += 1
    assert seen > 200


def test_lists_name_things_from_left_to_right(scenes: list[Scene]):
    seen = 0
    for made in scenes:
        looks = {f"{t.colour} {t.shape}": t.centre[0] for t in made.things}
        if len(looks) < len(made.things):
            continue
        for caption in made.captions:
            if not any(relation in caption for relation in grammar.RELATIONS):
                named = sorted(looks.keys(), key=lambda look: caption.find(look))
                places = [looks[look] for look in named if look in caption]
                assert places == sorted(places), caption
                seen += len(places) > 1
    assert seen > 100


SCENE = [
    thing("circle", "red", 60, 60),
    thing("star", "green", 60, 160),
    thing("star", "green", 160, 165, "large"),
]


@pytest.mark.parametrize(
    "caption",
    [
        "a red circle",
        "There is a small red circle.",
        "two green stars",
        "there are two green stars and a red circle",
        "a small green star , a large green star and a red circle",
        "a small green star a large green star and a red circle",
        "the picture shows a red circle above two green stars",
        "two green stars below a red circle",
        "a picture of a large green star to the right of a small green star",
        "a red circle above a small green star",
        "a red circle to the left of a large green star",
    ],
)
def test_true_captions(caption: str):
    assert true_of(caption, SCENE)


@pytest.mark.parametrize(
    "caption",
    [
        "",
        " . ",
        "a",
        "there is",
        "blue",
        "<start> <unk>",
        "a dog on a beach",
        "a blue circle",  # colour
        "a red square",  # shape
        "a large red circle",  # size
        "a green star",  # count
        "three green stars",
        "two red circles",
        "two small green stars",
        "two large green stars and a red circle",
        "a red circle and a red circle",  # one thing twice
        "a red circle and a small red circle",
        "two green stars and a large green star",
        "a red circle below a small green star",  # relation
        "a small green star above a red circle",
        "a red circle to the left of a small green star",
        "a red circle to the left of two green stars",
        "a large green star above a small green star",
        "a red circle above a red circle",
        "a red circle and",  # broken off, or too long
        "a red circle above",
        "a red circle to the left of a",
        "a red circle and a small",
        "and a red circle",
        "above a red circle",
        "a red circle a small green star",
        "a red circle and a small green star and a large green star",
        "a red circle above a small green star and a large green star",
        "a red circle above a small green star below a red circle",
        "a red circle red",
        "the a red circle",
        "a red circle is above two green stars",
        "there is there is a red circle",
        "a red circle there is",
        "a red small circle",
        "an red circle",  # grammar
        "a red circles",
        "two green star",
        "there are a red circle",
        "there is two green stars",
        "a red_circle",
        "a redcircle",
        "a red circle 2",
    ],
)
def test_false_captions(caption: str):
    assert not true_of(caption, SCENE)


TEXTURED = [
    thing("fish", "red", 60, 60, texture="striped"),
    thing("fish", "red", 60, 160),
    thing("house", "orange", 160, 160, "large", "dotted"),
]


@pytest.mark.parametrize(
    ("caption", "true"),
    [
        ("two red fish and a dotted orange house", True),
        ("two red fish and an orange house", True),
        ("a striped red fish above a large dotted orange house", True),
        ("a small striped red fish", True),
        ("a red fish", False),  # there are two
        ("two striped red fish", False),
        ("a dotted red fish", False),
        ("a large striped orange house", False),
        ("an large dotted orange house", False),
        ("a dotted large orange house", False),
        ("a plain red fish", False),
        ("two red fishes", False),
    ],
)
def test_textures_in_captions(caption: str, true: bool):
    assert true_of(caption, TEXTURED) == true


def test_the_words_that_name_a_textured_thing():
    words = [
        "a",
        "picture",
        "of",
        "two",
        "red",
        "fish",
        "and",
        "a",
        "large",
        "dotted",
        "orange",
        "house",
    ]
    fish, house = named_in(words, TEXTURED)
    assert [words[i] for i in fish.words] == ["red", "fish"]
    assert (fish.kind, fish.things) == ("red fish", (0, 1))
    assert [words[i] for i in house.words] == ["large", "dotted", "orange", "house"]
    assert (house.kind, house.things) == ("orange house", (2,))


def test_articles_and_plurals_of_single_words():
    pair = [thing("cross", "orange", 50, 50), thing("cross", "orange", 150, 50)]
    assert true_of("an orange cross", pair[:1])
    assert true_of("a small orange cross", pair[:1])
    assert true_of("two orange crosses", pair)
    for wrong in ("a orange cross", "an small orange cross", "an orange crosses"):
        assert not true_of(wrong, pair[:1])
    for wrong in ("two orange cross", "two orange crosss", "an orange cross"):
        assert not true_of(wrong, pair)


@pytest.mark.parametrize(
    ("x", "y", "relations"),
    [
        (100, 0, {"to the left of"}),
        (39, 0, set()),  # not yet side by side
        (40, 0, {"to the left of"}),
        (100, 100, {"to the left of", "above"}),
        (100, 49, {"to the left of"}),
        (100, 50, {"to the left of", "above"}),
        (100, 201, {"above"}),  # far more above than to the left
        (-100, -30, {"to the right of"}),
        (30, -60, {"below"}),
    ],
)
def test_the_margin_of_relations(x: float, y: float, relations: set[str]):
    pair = [thing("ring", "pink", 100, 100), thing("star", "blue", 100 + x, 100 + y)]
    found = {r for r in grammar.RELATIONS if true_of(f"a pink ring {r} a blue star", pair)}
    assert found == relations


# The folder


# pycocotools' own decode() under NumPy 2
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_written_files_load_as_coco(written: Path, capsys: pytest.CaptureFixture[str]):
    annotations = written / "annotations"
    ids: list[int] = []
    for split, size in SMALL.items():
        captions = COCO(str(annotations / f"captions_{split}.json"))
        instances = COCO(str(annotations / f"instances_{split}.json"))
        assert captions.getImgIds() == instances.getImgIds()
        assert len(captions.getImgIds()) == size == len(list((written / split).iterdir()))
        things = read_things(written, split)
        ids += captions.getImgIds()
        for image in captions.loadImgs(captions.getImgIds()):
            made = scene(5, image["id"], image_size=96)
            with Image.open(written / split / image["file_name"]) as picture:
                assert picture.format == "PNG"
                assert picture.size == (image["width"], image["height"]) == (96, 96)
                assert picture.tobytes() == made.image.tobytes()
            said = [a["caption"] for a in captions.imgToAnns[image["id"]]]
            assert said == list(made.captions)
            assert things[image["id"]] == made.things
            assert all(true_of(caption, things[image["id"]]) for caption in said)
            found = instances.imgToAnns[image["id"]]
            for a, t, mask in zip(found, made.things, made.masks, strict=True):
                assert np.array_equal(instances.annToMask(a).astype(bool), mask)
                assert np.array_equal(rle.decode(a["segmentation"]).astype(bool), mask)
                y, x = np.nonzero(mask)
                left, top = x.min(), y.min()
                assert a["bbox"] == [left, top, x.max() + 1 - left, y.max() + 1 - top]
                assert a["area"] == mask.sum()
                assert a["iscrowd"] == 0
                assert instances.loadCats(a["category_id"])[0]["name"] == t.shape
    assert len(set(ids)) == sum(SMALL.values())
    capsys.readouterr()


def test_splits_share_no_picture_and_grow_alone(written: Path, tmp_path: Path):
    pictures = [p.read_bytes() for p in written.rglob("*.png")]
    assert len(set(pictures)) == len(pictures) == sum(SMALL.values())
    write(tmp_path / "more", seed=5, sizes={**SMALL, "train": 8}, image_size=96)
    before, after = tree(written), tree(tmp_path / "more")
    assert {n: b for n, b in after.items() if n in before and n.endswith("png")} == {
        n: b for n, b in before.items() if n.endswith("png")
    }


def test_writing_again_changes_nothing(written: Path):
    before = {p: p.stat().st_mtime_ns for p in written.rglob("*")}
    write(written, seed=5, sizes=SMALL, image_size=96)
    assert {p: p.stat().st_mtime_ns for p in written.rglob("*")} == before
    assert list(written.parent.iterdir()) == [written]


def test_written_twice_is_the_same(written: Path, tmp_path: Path):
    write(tmp_path / "again", seed=5, sizes=SMALL, image_size=96)
    assert tree(tmp_path / "again") == tree(written)


def test_other_users_may_read_the_folder(tmp_path: Path):
    (tmp_path / "plain").mkdir()
    write(tmp_path / "shapes", sizes={"train": 1}, image_size=32)
    assert (tmp_path / "shapes").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("changed", [{"seed": 6}, {"sizes": dict(reversed(SMALL.items()))}])
def test_a_folder_of_other_arguments_is_refused(written: Path, changed: dict[str, object]):
    before = tree(written)
    with pytest.raises(DataError, match="holds shapes made with") as error:
        write(written, **{"seed": 5, "sizes": SMALL, "image_size": 96, **changed})
    assert "\n" not in str(error.value)
    assert tree(written) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "dog.jpg").write_bytes(b"dog")
    (tmp_path / "file").write_text("text")
    for name in ("photos", "file"):
        with pytest.raises(DataError, match="is no generated shapes data set"):
            write(tmp_path / name, sizes=SMALL)
    assert {p.name for p in tmp_path.iterdir()} == {"photos", "file"}


def test_a_folder_that_lost_pictures_is_refused(tmp_path: Path):
    write(tmp_path / "shapes", sizes=SMALL, image_size=32)
    next((tmp_path / "shapes" / "val").iterdir()).unlink()
    with pytest.raises(DataError, match="lost files of its split 'val'"):
        write(tmp_path / "shapes", sizes=SMALL, image_size=32)


def test_an_empty_folder_may_be_filled(tmp_path: Path):
    write(tmp_path, sizes={"train": 1}, image_size=32)
    assert list(read_things(tmp_path, "train")) == [1]


def test_a_crash_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real, calls = shapes_folder.scene, iter(range(4))

    def scene_until_full(*args: int, **options: int) -> Scene:
        if next(calls) == 3:
            raise OSError("No space left on device")
        return real(*args, **options)

    monkeypatch.setattr(shapes_folder, "scene", scene_until_full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "shapes", sizes=SMALL, image_size=32)
    assert list(tmp_path.iterdir()) == []


def test_nothing_appears_before_the_end_and_a_faster_writer_wins(tmp_path: Path):
    root = tmp_path / "shapes"
    options = {"sizes": SMALL, "image_size": 32}
    seen: list[int] = []

    def overtaken(numbers):
        for number in numbers:
            seen.append(number)
            assert not root.exists()
            yield number
        write(root, **options)
        seen.append(root.stat().st_ino)

    write(root, **options, progress=overtaken)
    *numbers, inode = seen
    assert numbers == [int(i) for split in SMALL for i in read_things(root, split)]
    assert root.stat().st_ino == inode
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize(
    "sizes",
    [{}, {"train": 0}, {"train": -1}, {"../up": 1}, {"annotations": 1}, {"": 1}, {"a": 10**6}],
)
def test_impossible_splits_are_refused(tmp_path: Path, sizes: dict[str, int]):
    with pytest.raises(UsageError, match="cannot write splits"):
        write(tmp_path / "shapes", sizes=sizes)
    assert list(tmp_path.iterdir()) == []


def test_reading_what_is_not_there(tmp_path: Path):
    with pytest.raises(DataError, match=r"instances_val\.json"):
        read_things(tmp_path, "val")
    (tmp_path / "annotations").mkdir()
    path = tmp_path / "annotations" / "instances_val.json"
    for text in ("{", "[]", "{}", json.dumps({"annotations": [{"image_id": 1}]})):
        path.write_text(text)
        with pytest.raises(DataError, match="no instances file of generated shapes"):
            read_things(tmp_path, "val")


def test_pictures_are_small_on_disk():
    sizes = []
    for index in range(20):
        buffer = io.BytesIO()
        scene(0, index).image.save(buffer, "PNG", compress_level=1)
        sizes.append(buffer.tell())
    assert np.mean(sizes) < 60_000
