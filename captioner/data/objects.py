"""Which words of a caption name which objects of its picture.

    words, picture ─▶ Mention(words, category, instances)

COCO's categories are named by many words: ``CategoryWords`` finds them by a table of synonyms
(``coco_words.toml``). Generated scenes are described in a grammar, which ``ShapePhrases`` parses, so
that a phrase means the very things it speaks of.
"""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

from captioner.data.grammar import named_in
from captioner.data.things import Thing


@dataclass(frozen=True)
class Mention:
    """Words that name objects.

    Attributes:
        words: their places in the caption; the map of a mention is the mean of its words' maps.
        category: what they name.
        instances: places of the objects meant among the picture's instances; none where the picture
            holds nothing so named, or nothing that has a mask.
    """

    words: tuple[int, ...]
    category: str
    instances: tuple[int, ...]


@runtime_checkable
class Picture(Protocol):
    """What finding mentions needs to know of a picture."""

    @property
    def categories(self) -> Sequence[str]:
        """The category of every instance."""

    @property
    def things(self) -> Sequence[Thing]:
        """The things of a generated scene, one for every instance; empty for a photograph."""


@runtime_checkable
class Namer(Protocol):
    """Finds the mentions of a caption."""

    def __call__(self, words: Sequence[str], picture: Picture) -> list[Mention]:
        """The mentions, in the order of the caption.

        Args:
            words: of the caption, in lower case.
            picture: what it is about.
        """
        ...


class ShapePhrases:
    """Names of generated scenes: a phrase's size, colour and shape name the things it means.

    A category is a colour and a shape, "red circle". Phrases that count wrongly mean nothing.
    """

    def __call__(self, words: Sequence[str], picture: Picture) -> list[Mention]:
        """The mentions, in the order of the caption."""
        named = named_in(words, picture.things)
        return [Mention(tuple(n.words), n.kind, n.things) for n in named]


class CategoryWords:
    """Names of categories by a table of synonyms, the longest first.

    Args:
        categories: the names to find. COCO's have synonyms; any other is found by itself, in the
            singular and the plural.
    """

    def __init__(self, categories: Iterable[str]) -> None:
        table = _table()
        self.entries: dict[tuple[str, ...], str | None] = {
            form: None for phrase in table["none"]["phrases"] for form in forms(phrase)
        }
        young = table["young"]
        for category in categories:
            for name in (category, *table["categories"].get(category, ())):
                for form in forms(name):
                    self.entries[form] = category
                    if category in young["categories"]:
                        self.entries |= {(word, *form): category for word in young["words"]}
        self.longest = max(map(len, self.entries))
        self.alone = set(table["alone"]["words"])
        self.before = set(table["alone"]["before"])
        self.after = set(table["alone"]["after"])

    def __call__(self, words: Sequence[str], picture: Picture) -> list[Mention]:
        """The mentions, in the order of the caption; all of a category mean all its instances."""
        return [
            Mention(
                places,
                category,
                tuple(i for i, there in enumerate(picture.categories) if there == category),
            )
            for places, category in self.find(words)
        ]

    def find(self, words: Sequence[str]) -> list[tuple[tuple[int, ...], str]]:
        """The places and the category of every name in a caption, given as words in lower case."""
        # "stop-sign" is one word to the tokenizer.
        parts = [(place, part) for place, word in enumerate(words) for part in word.split("-")]
        found, here = [], 0
        while here < len(parts):
            for length in range(min(self.longest, len(parts) - here), 0, -1):
                name = tuple(part for _, part in parts[here : here + length])
                if name in self.entries and self._means(name, parts[:here], parts[here + length :]):
                    category = self.entries[name]
                    if category is not None:
                        places = dict.fromkeys(place for place, _ in parts[here : here + length])
                        found.append((tuple(places), category))
                    here += length
                    break
            else:
                here += 1
        return found

    def _means(
        self, name: tuple[str, ...], before: list[tuple[int, str]], following: list[tuple[int, str]]
    ) -> bool:
        """Whether a name that may be an adjective is none here."""
        if " ".join(name) not in self.alone:
            return True
        if not before:
            return not following
        return before[-1][1] in self.after and (not following or following[0][1] in self.before)


def forms(name: str) -> list[tuple[str, ...]]:
    """A name in the singular and the plural, as words.

    >>> forms("fire hydrant")
    [('fire', 'hydrant'), ('fire', 'hydrants')]
    """
    table = _table()
    words = tuple(name.replace("'s", " 's").split())
    if name in table["uncounted"]["words"]:
        return [words]
    *others, last = words
    return [words, (*others, table["plurals"].get(last) or _plural(last))]


def _plural(noun: str) -> str:
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


@cache
def _table() -> dict[str, Any]:
    text = files("captioner.data").joinpath("coco_words.toml").read_text("utf-8")
    return tomllib.loads(text)
