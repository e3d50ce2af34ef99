"""Finds the words of a caption that name COCO's categories.

Captions name each category with many words; ``coco_words.toml`` is the table of synonyms.
"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

FindNames = Callable[[Sequence[str]], list[tuple[tuple[int, ...], str]]]
"""The words of a caption → the positions and the category of every name in it."""


class CategoryWords:
    """Finds the names of categories and COCO's synonyms in captions; the longest match wins."""

    def __init__(self, categories: Iterable[str]) -> None:
        table = _table()
        # None marks phrases that contain a category's name and mean something else.
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

    def find(self, words: Sequence[str]) -> list[tuple[tuple[int, ...], str]]:
        """The positions and the category of every name in a caption."""
        # The tokenizer keeps "stop-sign" as one word.
        parts = [(index, part) for index, word in enumerate(words) for part in word.split("-")]
        texts = [part for _, part in parts]
        names, start = [], 0
        while start < len(parts):
            for end in range(min(start + self.longest, len(parts)), start, -1):
                name = tuple(texts[start:end])
                if name in self.entries and _is_noun(name, texts[:start], texts[end:]):
                    if (category := self.entries[name]) is not None:
                        positions = dict.fromkeys(index for index, _ in parts[start:end])
                        names.append((tuple(positions), category))
                    start = end
                    break
            else:
                start += 1
        return names


def _is_noun(name: tuple[str, ...], before: list[str], after: list[str]) -> bool:
    """Whether a name that can also be an adjective ("orange") is used as a noun."""
    rules = _table()["alone"]
    if " ".join(name) not in rules["words"]:
        return True
    if not before:
        return not after
    return before[-1] in rules["after"] and (not after or after[0] in rules["before"])


def forms(name: str) -> list[tuple[str, ...]]:
    """A name in the singular and the plural, as words: ("fire", "hydrant"), ("fire", "hydrants")."""
    table = _table()
    words = tuple(name.replace("'s", " 's").split())
    if name in table["uncounted"]["words"]:
        return [words]
    *others, last = words
    plural = f"{last}s"
    if last in table["plurals"]:
        plural = table["plurals"][last]
    elif last.endswith(("s", "x", "z", "ch", "sh")):
        plural = f"{last}es"
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        plural = f"{last[:-1]}ies"
    return [words, (*others, plural)]


@cache
def _table() -> dict[str, Any]:
    text = files("captioner.data").joinpath("coco_words.toml").read_text("utf-8")
    return tomllib.loads(text)
