"""Which words of a caption name which objects."""

import tomllib
from collections import Counter
from types import SimpleNamespace

import pytest

from captioner.data import objects
from captioner.data.objects import CategoryWords, ShapePhrases, forms
from captioner.data.things import Thing
from captioner.text import Tokenizer

TABLE = tomllib.loads((objects.files("captioner.data") / "coco_words.toml").read_text("utf-8"))
COCO = list(TABLE["categories"])
words_of = Tokenizer()


@pytest.fixture(scope="module")
def namer():
    return CategoryWords(COCO)


def named(namer, caption):
    words = words_of(caption)
    return [(" ".join(words[i] for i in at), category) for at, category in namer.find(words)]


def test_the_table_has_cocos_eighty_categories():
    assert len(COCO) == 80
    assert {"person", "traffic light", "hair drier", "toothbrush", "dining table"} <= set(COCO)


def test_no_word_is_in_two_categories_or_in_one_and_in_none():
    groups = [[category, *synonyms] for category, synonyms in TABLE["categories"].items()]
    groups.append(TABLE["none"]["phrases"])
    entries = [
        form for names in groups for form in {form for name in names for form in forms(name)}
    ]
    assert [entry for entry, times in Counter(entries).items() if times > 1] == []


def test_the_rules_speak_of_words_in_the_table():
    known = {name for names in TABLE["categories"].values() for name in names} | set(COCO)
    assert set(TABLE["uncounted"]["words"]) <= known
    assert set(TABLE["plurals"]) <= {word for name in known for word in name.split()}
    assert set(TABLE["young"]["categories"]) <= set(COCO)


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("A dog and two cats.", [("dog", "dog"), ("cats", "cat")]),
        ("a hot dog on a bun", [("hot dog", "hot dog")]),
        ("two hot dogs beside a dog", [("hot dogs", "hot dog"), ("dog", "dog")]),
        ("a baby bear in the woods", [("baby bear", "bear")]),
        ("a baby elephant and its mother", [("baby elephant", "elephant"), ("mother", "person")]),
        ("a baby with a teddy bear", [("baby", "person"), ("teddy bear", "teddy bear")]),
        ("a cat on the toilet seat", [("cat", "cat"), ("toilet seat", "toilet")]),
        ("a roll of toilet paper", []),
        ("men and women with knives", [("men", "person"), ("women", "person"), ("knives", "knife")]),
        ("buses, sandwiches, puppies and mice", [
            ("buses", "bus"), ("sandwiches", "sandwich"), ("puppies", "dog"), ("mice", "mouse"),
        ]),
        ("a red stop-sign at a bus stop", [("stop-sign", "stop sign")]),
        ("people wait at the train station", [("people", "person")]),
        ("an orange kite", [("kite", "kite")]),
        ("a man in orange and black", [("man", "person")]),
        ("the bus is orange", [("bus", "bus")]),
        ("an apple and an orange", [("apple", "apple"), ("orange", "orange")]),
        ("an orange next to a glass of orange juice", [("orange", "orange")]),
        ("oranges in a bowl", [("oranges", "orange"), ("bowl", "bowl")]),
        ("a glass of red wine and eye glasses", [("glass of red wine", "wine glass")]),
        ("the catcher's mitt", [("catcher 's mitt", "baseball glove")]),
        ("a man on skis at a ski resort", [("man", "person"), ("skis", "skis")]),
        ("a slice of carrot cake", [("carrot cake", "cake")]),
        ("the boy's tie", [("boy", "person"), ("tie", "tie")]),
        ("the bust of a german shepherd", [("german shepherd", "dog")]),
        ("a green field under the sky", []),
    ],
)  # fmt: skip
def test_words_name_categories(namer, caption, expected):
    assert named(namer, caption) == expected


def test_every_entry_names_its_category(namer):
    for category, synonyms in TABLE["categories"].items():
        for name in (category, *synonyms):
            for form in forms(name):
                assert [found for _, found in namer.find(form)] == [category], form


def test_other_categories_go_by_their_names():
    own = CategoryWords(["traffic cone", "wolf"])
    assert named(own, "three traffic cones and a dog") == [("traffic cones", "traffic cone")]


def test_a_category_means_all_its_instances(namer):
    picture = SimpleNamespace(categories=["dog", "cat", "dog"], things=())
    dogs, horse = namer(["two", "dogs", "and", "a", "horse"], picture)
    assert (dogs.words, dogs.category, dogs.instances) == ((1,), "dog", (0, 2))
    assert (horse.category, horse.instances) == ("horse", ())


def thing(shape, colour, size="small", x=10.0):
    return Thing(shape, colour, size, (x, 10.0), 5.0)


@pytest.mark.parametrize(
    ("caption", "things", "expected"),
    [
        (
            "a large red circle above an orange star",
            [thing("star", "orange"), thing("circle", "red", "large")],
            [((1, 2, 3), "red circle", (1,)), ((6, 7), "orange star", (0,))],
        ),
        (
            "there are two red crosses and a blue ring",
            [thing("cross", "red"), thing("ring", "blue"), thing("cross", "red", x=50.0)],
            [((3, 4), "red cross", (0, 2)), ((7, 8), "blue ring", (1,))],
        ),
        # Of two red circles, "a red circle" means neither; "a small red circle" means one.
        (
            "a red circle",
            [thing("circle", "red"), thing("circle", "red", "large")],
            [((1, 2), "red circle", ())],
        ),
        (
            "a small red circle",
            [thing("circle", "red", "large"), thing("circle", "red")],
            [((1, 2, 3), "red circle", (1,))],
        ),
        ("a green star", [thing("circle", "red")], [((1, 2), "green star", ())]),
        ("red above blue", [thing("circle", "red")], []),
    ],
)
def test_phrases_name_things(caption, things, expected):
    picture = SimpleNamespace(categories=[f"{t.colour} {t.shape}" for t in things], things=things)
    found = ShapePhrases()(caption.split(), picture)
    assert [(m.words, m.category, m.instances) for m in found] == expected
