"""The objects of generated scenes, and a small grammar for generating and parsing their captions.

caption  = [opening] (list | relation)
opening  = "there is" | "there are" | "a picture of" | "the picture shows"
list     = phrase | phrase {", " phrase} " and " phrase
relation = phrase ("above" | "below" | "to the left of" | "to the right of") phrase
phrase   = ("a" | "an" | "two" | …) ["small" | "large"] colour shape
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

T = TypeVar("T")

CAPTIONS = 3  # different captions per scene

# Probabilities that a caption has an opening, names sizes, or states a relation.
OPENING, SIZE, RELATION = 0.25, 0.8, 0.5

# Backgrounds are light or dark greys with a slight tint.
COLOURS = {
    "red": (214, 34, 42),
    "orange": (245, 127, 24),
    "yellow": (252, 222, 40),
    "green": (38, 160, 66),
    "blue": (36, 92, 220),
    "purple": (124, 48, 176),
    "pink": (246, 120, 182),
}
# The range of radii, relative to the image's side; the gap keeps the words unambiguous.
SIZES = {"small": (0.09, 0.115), "large": (0.165, 0.2)}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "diamond")
COUNTS = ("a", "two", "three", "four", "five", "six")
OPENINGS = ("there is", "a picture of", "the picture shows")
# The axis of (x, y) and the sign of the first object's offset from the second; y points down.
RELATIONS = {
    "above": (1, -1),
    "below": (1, 1),
    "to the left of": (0, -1),
    "to the right of": (0, 1),
}
_PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}
_SHAPE_OF = {**{shape: shape for shape in SHAPES}, **{n: shape for shape, n in _PLURALS.items()}}


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene; the top left pixel covers x and y from 0 to 1."""

    shape: str  # one of SHAPES
    colour: str  # a name in COLOURS
    size: str  # a name in SIZES
    centre: tuple[float, float]  # (x, y) of the circumscribed circle, in pixels
    radius: float  # of this circle, in pixels

    @property
    def category(self) -> str:
        """Colour and shape, such as "red circle"."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Mention:
    """Words of a caption that name objects."""

    words: tuple[int, ...]  # positions in the caption
    category: str  # that the words name
    instances: tuple[int, ...]  # indices of the objects; empty if none of them has a mask
    types: tuple[str, ...] = ()  # of the objects, such as "people"; empty if there are no types


def pick(rng: np.random.Generator, items: Iterable[T]) -> T:
    """Draw one of the items uniformly."""
    options = list(items)
    return options[int(rng.integers(len(options)))]


@dataclass(frozen=True)
class _Phrase:
    """A noun phrase for ``count`` objects of one kind; the size may be empty."""

    count: int
    size: str
    colour: str
    shape: str

    def __str__(self) -> str:
        noun = self.shape if self.count == 1 else _PLURALS[self.shape]
        words = " ".join(filter(None, (self.size, self.colour, noun)))
        article = "an" if self.count == 1 and words[0] in "aeiou" else COUNTS[self.count - 1]
        return f"{article} {words}"

    def referents(self, objects: Sequence[SceneObject]) -> list[int]:
        """The indices of the objects that the phrase names; empty unless exactly ``count`` match."""
        matching = [
            index
            for index, o in enumerate(objects)
            if (o.colour, o.shape) == (self.colour, self.shape) and self.size in ("", o.size)
        ]
        return matching if len(matching) == self.count else []


@dataclass(frozen=True)
class _Statement:
    """A parsed caption: its opening, its phrases, and the relation between two of them."""

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

    def is_true(self, objects: Sequence[SceneObject]) -> bool:
        groups = [phrase.referents(objects) for phrase in self.phrases]
        referents = list(itertools.chain(*groups))
        # "a red ring and a large red ring" must not name one ring twice.
        if not all(groups) or len(set(referents)) < len(referents):
            return False
        pairs = itertools.product(*groups) if self.relation else ()
        return all(self._relation_holds(objects[a], objects[b]) for a, b in pairs)

    def _relation_holds(self, a: SceneObject, b: SceneObject) -> bool:
        """Whether the relation clearly holds between two objects.

        The circles around the two must be separated along the axis, and the distance along the axis
        must be at least half of the distance across it: an object far below and slightly to the
        left is only "below".
        """
        axis, sign = RELATIONS[self.relation]
        along = sign * (a.centre[axis] - b.centre[axis])
        across = abs(a.centre[1 - axis] - b.centre[1 - axis])
        return along >= a.radius + b.radius and 2 * along >= across


def captions_of(rng: np.random.Generator, objects: Sequence[SceneObject]) -> tuple[str, ...]:
    """Generate CAPTIONS different true captions."""
    captions: dict[str, None] = {}
    while len(captions) < CAPTIONS:  # even a single object has eight captions
        captions[str(_statement(rng, objects))] = None
    return tuple(captions)


def _statement(rng: np.random.Generator, objects: Sequence[SceneObject]) -> _Statement:
    """Draw a true statement."""
    # The size is named for all objects of a colour and shape or for none of them.
    named = {o.category: rng.random() < SIZE for o in objects}
    kinds = Counter((o.size if named[o.category] else "", o.colour, o.shape) for o in objects)
    found = [_Phrase(count, *kind) for kind, count in kinds.items()]
    phrases = [found[int(i)] for i in rng.permutation(len(found))]
    opening = pick(rng, OPENINGS) if rng.random() < OPENING else ""
    related = [
        statement
        for pair in itertools.permutations(phrases, 2)
        for relation in RELATIONS
        if (statement := _Statement(opening, pair, relation)).is_true(objects)
    ]
    if related and rng.random() < RELATION:
        return pick(rng, related)

    def left(phrase: _Phrase) -> float:
        return min(objects[i].centre[0] for i in phrase.referents(objects))

    # At most three phrases, from left to right, so that the order of attention can be learned.
    return _Statement(opening, tuple(sorted(phrases[:3], key=left)))


_OPENING = re.compile("|".join((*OPENINGS, "there are")))
_RELATION = re.compile("|".join(RELATIONS))
_PHRASE = re.compile(
    rf"\b({'|'.join(COUNTS)}|an) (?:({'|'.join(SIZES)}) )?"
    rf"({'|'.join(COLOURS)}) ({'|'.join(_SHAPE_OF)})\b"
)


def _parse_phrase(match: re.Match[str]) -> _Phrase:
    count, size, colour, noun = match.groups()
    number = 1 if count == "an" else COUNTS.index(count) + 1
    return _Phrase(number, size or "", colour, _SHAPE_OF[noun])


def find_mentions(words: Sequence[str], objects: Sequence[SceneObject]) -> list[Mention]:
    """The phrases of a caption, given as lower-case words, and the objects they refer to.

    The category of a mention is a colour and a shape, such as "red circle". A phrase with a wrong
    count refers to no object.
    """
    text, mentions = " ".join(words), []
    for match in _PHRASE.finditer(text):
        phrase = _parse_phrase(match)
        start = match.end(1) + 1  # after the count
        positions = range(text.count(" ", 0, start), text.count(" ", 0, match.end()) + 1)
        referents = tuple(phrase.referents(objects))
        mentions.append(Mention(tuple(positions), f"{phrase.colour} {phrase.shape}", referents))
    return mentions


def true_of(caption: str, objects: Sequence[SceneObject]) -> bool:
    """Whether a caption follows the grammar above and is true of a scene.

    Every phrase must match exactly as many objects as it says, no object may be named twice, and the
    relation must clearly hold. A caption need not name every object. Case and punctuation are ignored.
    """
    text = _normalised(caption)
    phrases = tuple(map(_parse_phrase, _PHRASE.finditer(text)))
    if not phrases:
        return False
    opening, relation = _OPENING.match(text), _RELATION.search(text)
    statement = _Statement(
        opening[0].replace("there are", "there is") if opening else "",
        phrases,
        relation[0] if relation else "",
    )
    # Writing the parsed caption again detects wrong articles, plurals, order and leftover words.
    return _normalised(str(statement)) == text and statement.is_true(objects)


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
