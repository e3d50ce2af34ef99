"""A small grammar for generating and parsing captions of generated scenes.

objects ──────────▶ captions_of()   ─▶ different true captions
caption, objects ─▶ true_of()       ─▶ whether the caption is true of the scene
words, objects ───▶ find_mentions() ─▶ which words name which objects

caption  = [opening] (list | relation)
opening  = "there is" | "there are" | "a picture of" | "the picture shows"
list     = phrase | phrase {", " phrase} " and " phrase
relation = phrase ("above" | "below" | "to the left of" | "to the right of") phrase
phrase   = ("a" | "an" | "two" | …) ["small" | "large"] ["striped" | …] colour shape
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from captioner.data.scene_objects import COLOURS, FIGURES, PLAIN, SIZES, TEXTURES, SceneObject

T = TypeVar("T")

CAPTIONS = 3  # different captions per scene

# Probabilities that a caption has an opening, names sizes, names textures, or states a relation.
OPENING, SIZE, TEXTURE, RELATION = 0.25, 0.8, 0.8, 0.5

COUNTS = ("a", "two", "three", "four", "five", "six")
OPENINGS = ("there is", "a picture of", "the picture shows")
# The axis of (x, y) and the sign of the first object's offset from the second; y points down.
RELATIONS: Mapping[str, tuple[int, int]] = {
    "above": (1, -1),
    "below": (1, 1),
    "to the left of": (0, -1),
    "to the right of": (0, 1),
}
_IRREGULAR = {"fish": "fish", "cross": "crosses"}
_NOUNS = {shape: (shape, _IRREGULAR.get(shape, shape + "s")) for shape in FIGURES}
_SHAPE_OF = {noun: shape for shape, nouns in _NOUNS.items() for noun in nouns}


@dataclass(frozen=True)
class Mention:
    """Words of a caption that name objects.

    ``instances`` is empty if the image has no such object, or none with a mask.
    """

    words: tuple[int, ...]  # positions in the caption
    category: str  # that the words name
    instances: tuple[int, ...]  # indices among the objects of the image


def pick(rng: np.random.Generator, items: Iterable[T]) -> T:
    """Draw one of the items uniformly."""
    options = list(items)
    return options[int(rng.integers(len(options)))]


@dataclass(frozen=True)
class _Phrase:
    """A noun phrase for ``count`` objects of one kind; size and texture may be empty."""

    count: int
    size: str
    texture: str
    colour: str
    shape: str

    def __str__(self) -> str:
        noun = _NOUNS[self.shape][self.count > 1]
        words = " ".join(filter(None, (self.size, self.texture, self.colour, noun)))
        article = "an" if self.count == 1 and words[0] in "aeiou" else COUNTS[self.count - 1]
        return f"{article} {words}"

    def referents(self, objects: Sequence[SceneObject]) -> list[SceneObject]:
        """The objects that the phrase refers to; none if the scene has more or fewer than it says."""
        matching = [
            o
            for o in objects
            if (o.colour, o.shape) == (self.colour, self.shape)
            and self.size in ("", o.size)
            and self.texture in ("", o.texture)
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
        """Whether the statement is true of a scene with these objects."""
        groups = [phrase.referents(objects) for phrase in self.phrases]
        referents = list(itertools.chain(*groups))
        # "a red ring and a large red ring" must not name one ring twice.
        if not all(groups) or len(set(referents)) < len(referents):
            return False
        pairs = itertools.product(*groups) if self.relation else ()
        return all(_related(self.relation, a, b) for a, b in pairs)


def _related(relation: str, a: SceneObject, b: SceneObject) -> bool:
    """Whether the relation clearly holds between `a` and `b`.

    The circles around the two must be separated along the axis, and the distance along the axis must be
    at least half of the distance across it: far down and a little to the left is only "below".
    """
    axis, sign = RELATIONS[relation]
    along = sign * (a.centre[axis] - b.centre[axis])
    across = abs(a.centre[1 - axis] - b.centre[1 - axis])
    return along >= a.radius + b.radius and 2 * along >= across


def captions_of(rng: np.random.Generator, objects: Sequence[SceneObject]) -> tuple[str, ...]:
    """Draw CAPTIONS different true captions."""
    captions: dict[str, None] = {}
    while len(captions) < CAPTIONS:  # even a single object has eight captions
        captions[str(_statement(rng, objects))] = None
    return tuple(captions)


def _statement(rng: np.random.Generator, objects: Sequence[SceneObject]) -> _Statement:
    """Draw a true statement."""
    phrases = _phrases(rng, objects)
    phrases = [phrases[int(i)] for i in rng.permutation(len(phrases))]
    opening = pick(rng, OPENINGS) if rng.random() < OPENING else ""
    related = [
        statement
        for pair in itertools.permutations(phrases, 2)
        for relation in RELATIONS
        if (statement := _Statement(opening, pair, relation)).is_true(objects)
    ]
    if related and rng.random() < RELATION:
        return pick(rng, related)
    # At most three phrases, from left to right, so that attention has an order to learn.
    listed = sorted(phrases[:3], key=lambda p: min(o.centre[0] for o in p.referents(objects)))
    return _Statement(opening, tuple(listed))


def _phrases(rng: np.random.Generator, objects: Sequence[SceneObject]) -> list[_Phrase]:
    """Phrases that together name all objects.

    The size is named for all objects of a colour and shape or for none of them. So is the texture, and
    only if all of them have one, because no word says "plain".
    """
    named_size = {o.category: rng.random() < SIZE for o in objects}
    named_texture = {o.category: rng.random() < TEXTURE for o in objects if o.texture != PLAIN}
    named_texture |= {o.category: False for o in objects if o.texture == PLAIN}
    kinds: Counter[tuple[str, ...]] = Counter()
    for o in objects:
        size = o.size if named_size[o.category] else ""
        texture = o.texture if named_texture[o.category] else ""
        kinds[size, texture, o.colour, o.shape] += 1
    return [_Phrase(count, *kind) for kind, count in kinds.items()]


_OPENING = "|".join((*OPENINGS, "there are"))
_RELATION = "|".join(RELATIONS)
_PHRASE = re.compile(
    rf"\b({'|'.join(COUNTS)}|an) (?:({'|'.join(SIZES)}) )?(?:({'|'.join(TEXTURES)}) )?"
    rf"({'|'.join(COLOURS)}) ({'|'.join(_SHAPE_OF)})\b"
)


def _parse_phrase(match: re.Match[str]) -> _Phrase:
    count, size, texture, colour, noun = match.groups()
    number = 1 if count == "an" else COUNTS.index(count) + 1
    return _Phrase(number, size or "", texture or "", colour, _SHAPE_OF[noun])


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
        referents = phrase.referents(objects)
        indices = tuple(i for i, o in enumerate(objects) if o in referents)
        mentions.append(Mention(tuple(positions), f"{phrase.colour} {phrase.shape}", indices))
    return mentions


def true_of(caption: str, objects: Sequence[SceneObject]) -> bool:
    """Whether a caption follows the grammar above and is true of a scene.

    Every phrase must match exactly as many objects as it says ("a red ring" is false of two rings), no
    object may be named twice, and the relation must clearly hold. A caption need not name every
    object. Case and punctuation are ignored; any other deviation makes the caption false.
    """
    text = _normalised(caption)
    phrases = tuple(map(_parse_phrase, _PHRASE.finditer(text)))
    if not phrases:
        return False
    opening = "".join(re.findall(f"^(?:{_OPENING})", text)).replace("there are", "there is")
    relation = next(iter(re.findall(_RELATION, text)), "")
    statement = _Statement(opening, phrases, relation)
    # Writing the parsed caption again detects wrong articles, plurals, order and leftover words.
    return _normalised(str(statement)) == text and statement.is_true(objects)


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))
