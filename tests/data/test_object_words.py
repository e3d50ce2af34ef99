"""Which words of a caption name which objects."""

import tomllib
from collections import Counter
from importlib.resources import files

import pytest

from captioner.data.object_words import CategoryWords, forms
from captioner.language.vocabulary import Tokenizer

TABLE = tomllib.loads((files("captioner.data") / "coco_words.toml").read_text("utf-8"))
COCO = list(TABLE["categories"])
words_of = Tokenizer()


@pytest.fixture(scope="module")
def finder():
    return CategoryWords(COCO)


def named(finder, caption):
    words = words_of(caption)
    return [(" ".join(words[i] for i in at), category) for at, category in finder.find(words)]


def test_no_word_is_listed_twice():
    groups = [[category, *synonyms] for category, synonyms in TABLE["categories"].items()]
    groups.append(TABLE["none"]["phrases"])
    entries = [
        form for names in groups for form in {form for name in names for form in forms(name)}
    ]
    assert [entry for entry, times in Counter(entries).items() if times > 1] == []


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
def test_words_name_categories(finder, caption, expected):
    assert named(finder, caption) == expected


def test_every_entry_names_its_category(finder):
    for category, synonyms in TABLE["categories"].items():
        for name in (category, *synonyms):
            for form in forms(name):
                assert [found for _, found in finder.find(form)] == [category], form


def test_other_categories_are_found_by_their_names():
    finder = CategoryWords(["traffic cone", "wolf"])
    assert named(finder, "three traffic cones and a dog") == [("traffic cones", "traffic cone")]
