"""True sentences about a scene's things, and the way back: what a sentence says, and is it true?

    things ──────────▶ captions_of() ─▶ different true sentences
    caption, things ─▶ true_of() ─────▶ is the caption true of the scene?
    words, things ───▶ named_in() ────▶ which words name which things

Every caption comes from one small grammar, which `true_of` reads again:

    caption  = [opening] (list | relation)
    opening  = "there is" | "there are" | "a picture of" | "the picture shows"
    list     = phrase | phrase {", " phrase} " and " phrase
    relation = phrase ("above" | "below" | "to the left of" | "to the right of") phrase
    phrase   = ("a" | "an" | "two" | …) ["small" | "large"] ["striped" | …] colour shape
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from captioner.data.things import COLOURS, FIGURES, PLAIN, SIZES, TEXTURES, Thing

T = TypeVar("T")

CAPTIONS = 3  # different captions per scene

# How often a caption says more than it must: there is a usual way to say things, as among people.
OPENED, SIZED, TEXTURED, RELATED = 0.25, 0.8, 0.8, 0.5

COUNTS = ("a", "two", "three", "four", "five", "six")
OPENINGS = ("there is", "a picture of", "the picture shows")
# How the first thing lies from the second: along which axis of (x, y) and which way; y points down.
RELATIONS: Mapping[str, tuple[int, int]] = {
    "above": (1, -1),
    "below": (1, 1),
    "to the left of": (0, -1),
    "to the right of": (0, 1),
}
_MANY = {"fish": "fish", "cross": "crosses"}
_NOUNS = {s: (s, _MANY.get(s, s + "s")) for s in FIGURES}  # one, many


def pick(rng: np.random.Generator, items: Iterable[T]) -> T:
    """One of the items, each as likely."""
    options = list(items)
    return options[int(rng.integers(len(options)))]


@dataclass(frozen=True)
class _Phrase:
    """`count` things of one kind, as a caption names them; empty size and texture are left unsaid."""

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

    def among(self, things: Sequence[Thing]) -> list[Thing]:
        """The things meant; none where the scene holds more or fewer of the kind."""
        found = [
            thing
            for thing in things
            if (thing.colour, thing.shape) == (self.colour, self.shape)
            and self.size in ("", thing.size)
            and self.texture in ("", thing.texture)
        ]
        return found if len(found) == self.count else []


@dataclass(frozen=True)
class _Statement:
    """A caption taken apart: its opening, the phrases, and the relation between two of them."""

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

    def holds(self, things: Sequence[Thing]) -> bool:
        groups = [phrase.among(things) for phrase in self.phrases]
        meant = list(itertools.chain(*groups))
        # "a red ring and a large red ring" must not be one ring named twice.
        if not all(groups) or len(set(meant)) < len(meant):
            return False
        if not self.relation:
            return True
        return all(_lies(self.relation, a, b) for a, b in itertools.product(*groups))


def _lies(relation: str, a: Thing, b: Thing) -> bool:
    """Whether anybody would say that `a` lies so from `b`.

    A straight line fits between the circles around the two, and the way there leads at least half
    as far in the named direction as across it: far down and a little to the left is only "below".
    """
    axis, sign = RELATIONS[relation]
    ahead = sign * (a.centre[axis] - b.centre[axis])
    across = abs(a.centre[1 - axis] - b.centre[1 - axis])
    return ahead >= a.radius + b.radius and 2 * ahead >= across


def captions_of(rng: np.random.Generator, things: Sequence[Thing]) -> tuple[str, ...]:
    """CAPTIONS different true sentences; one lone thing already has eight."""
    captions: dict[str, None] = {}
    while len(captions) < CAPTIONS:
        captions[str(_statement(rng, things))] = None
    return tuple(captions)


def _statement(rng: np.random.Generator, things: Sequence[Thing]) -> _Statement:
    kinds: dict[tuple[str, str, str, str], int] = defaultdict(int)
    # Size and texture are said of all things of a colour and shape or of none of them.
    sized = {(t.colour, t.shape): rng.random() < SIZED for t in things}
    textured = {(t.colour, t.shape): rng.random() < TEXTURED for t in things if t.texture != PLAIN}
    for t in things:
        look = t.colour, t.shape
        # Plain is said by saying nothing, and then of none of its kind.
        said = textured.get(look, False) and not _mixed(things, look)
        kinds[t.size if sized[look] else "", t.texture if said else "", *look] += 1
    phrases = [_Phrase(count, *kind) for kind, count in kinds.items()]
    order = [phrases[int(i)] for i in rng.permutation(len(phrases))]
    opening = pick(rng, OPENINGS) if rng.random() < OPENED else ""
    related = [
        statement
        for pair in itertools.permutations(order, 2)
        for relation in RELATIONS
        if (statement := _Statement(opening, pair, relation)).holds(things)
    ]
    if related and rng.random() < RELATED:
        return pick(rng, related)
    # Three make one short sentence. From left to right, so that there is a way to look to learn.
    named = sorted(order[:3], key=lambda phrase: min(t.centre[0] for t in phrase.among(things)))
    return _Statement(opening, tuple(named))


def _mixed(things: Sequence[Thing], look: tuple[str, str]) -> bool:
    """Whether some of a colour and shape have a texture and others are plain."""
    return len({t.texture == PLAIN for t in things if (t.colour, t.shape) == look}) > 1


_SHAPE_OF = {noun: shape for shape, nouns in _NOUNS.items() for noun in nouns}
_OPENING, _RELATION, _COUNT, _SIZE, _TEXTURE, _COLOUR, _NOUN = (
    f"({'|'.join(words)})"
    for words in (
        (*OPENINGS, "there are"),
        RELATIONS,
        (*COUNTS, "an"),
        SIZES,
        TEXTURES,
        COLOURS,
        _SHAPE_OF,
    )
)
_PHRASE = rf"\b{_COUNT} (?:{_SIZE} )?(?:{_TEXTURE} )?{_COLOUR} {_NOUN}\b"


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _phrase(found: re.Match[str]) -> _Phrase:
    count, size, texture, colour, noun = found.groups()
    number = 1 if count == "an" else COUNTS.index(count) + 1
    return _Phrase(number, size or "", texture or "", colour, _SHAPE_OF[noun])


@dataclass(frozen=True)
class Named:
    """What a phrase of a caption names.

    `words` are the places of its size, texture, colour and shape among the caption's words, `kind`
    its colour and shape, and `things` the places in the scene of the things meant: none where the
    scene holds more or fewer of them than the phrase says.
    """

    words: range
    kind: str
    things: tuple[int, ...]


def named_in(words: Sequence[str], scene_things: Sequence[Thing]) -> list[Named]:
    """What the phrases of a caption, given as its words in lower case, name in a scene."""
    text, found = " ".join(words), []
    for match in re.finditer(_PHRASE, text):
        phrase = _phrase(match)
        first = match.end(1) + 1  # behind the count
        places = range(text.count(" ", 0, first), text.count(" ", 0, match.end()) + 1)
        meant = phrase.among(scene_things)
        things = tuple(i for i, thing in enumerate(scene_things) if thing in meant)
        found.append(Named(places, f"{phrase.colour} {phrase.shape}", things))
    return found


def true_of(caption: str, scene_things: Sequence[Thing]) -> bool:
    """Whether `caption` is a whole sentence of the grammar above and true of the scene.

    True when every phrase means exactly as many things as the scene holds of that kind (so "a red
    ring" is false of two), no thing is named twice, and the relation clearly holds between them. A
    caption need not name everything. Case and punctuation do not matter; anything else (a broken
    off end, "a orange ring", "two star", an unknown word) makes it false.
    """
    text = _plain(caption)
    phrases = tuple(map(_phrase, re.finditer(_PHRASE, text)))
    if not phrases:
        return False
    opening, relation = (
        m[0] if m else "" for m in (re.match(_OPENING, text), re.search(_RELATION, text))
    )
    statement = _Statement(opening.replace("there are", "there is"), phrases, relation)
    # Read loosely, then written anew: one comparison covers articles, plurals, order and leftovers.
    return _plain(str(statement)) == text and statement.holds(scene_things)
