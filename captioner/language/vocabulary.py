"""Text ⇄ token ids: the tokenizer, and a vocabulary built from the training split only."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from captioner.errors import DataError

MAX_WORD = 100
"""Largest number of characters in a word."""
# Control characters, line separators, surrogates, and characters that change the direction of text.
CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)

# coco-caption drops all of these but brackets: its list has -LRB-, and its tokenizer writes -lrb-.
PUNCTUATION = frozenset([*"'`\".?!,:;-()[]{}<>", "''", "``", "--", "..."])

_TYPOGRAPHIC = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "--", "—": "--", "…": "..."}
    | dict(zip("。、，！？：；（）「」", '.,,!?:;()""', strict=True))
)
# Thai, Lao, Burmese, Khmer, kana and Chinese characters: no spaces separate their words.
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)
# Words that keep their full stop: initials (but not the article "a"), p.m., titles and the like.
_ABBREVIATION = re.compile(
    r"(?!a\.$)(?:[a-z]\.)+|(?:mrs?|ms|dr|jr|sr|st|rd|ave|blvd|mt|co|inc|vs|etc)\."
)
# Text in single quotes, which the Treebank rules read as apostrophes; not the 'n' of rock 'n' roll.
# The length is limited, because a text of quotes only would take quadratic time.
_QUOTED = re.compile(r"(?<!\w)'([a-z](?:[^']|'(?=[a-z])){0,200}[^'\s])'(?!\w)")
_LEADING = re.compile(r"^-+(?=[a-z])")
# Nine of ten captions have only words, hyphens, commas and at most one full stop, at the end. Without
# abbreviations and words in _CONTRACTED, splitting at spaces equals the Treebank rules and is faster.
_PLAIN = re.compile(r"[a-z0-9]+(?:(?:-|,? )[a-z0-9]+)*(?P<stop> ?\.)?")
_CONTRACTED = re.compile(r"cannot|gimme|gonna|gotta|lemme|wanna")


class Tokenizer:
    """Split a caption into lower-case words the way coco-caption does before scoring.

    It applies NLTK's Penn Treebank rules and drops punctuation. Apart from brackets, the result differs
    from Stanford's PTBTokenizer on 5 of 41,486 captions of Flickr8k and COCO. In a script without spaces
    between words, every character counts as a word.

    >>> Tokenizer()("A man, who isn't tall, rides his dog's sled.")
    ['a', 'man', 'who', 'is', "n't", 'tall', 'rides', 'his', 'dog', "'s", 'sled']
    """

    name = "nltk-treebank"

    @cached_property
    def _split(self) -> Any:
        # Importing NLTK takes most of a second, and captioning needs no tokenizer.
        from nltk.tokenize import TreebankWordTokenizer

        return TreebankWordTokenizer()

    def __call__(self, text: str) -> list[str]:
        """Return the words of a caption."""
        text = text.lower().translate(_TYPOGRAPHIC)
        if (plain := _PLAIN.fullmatch(text)) and not _CONTRACTED.search(text):
            words = text.rstrip(" .").replace(",", "").split(" ")
            if plain["stop"] != "." or not _ABBREVIATION.fullmatch(words[-1] + "."):
                return words
        # The Treebank rules split off only the last full stop. One is added here, so that a final
        # "st." keeps its own. Those of earlier sentences are removed afterwards.
        text = re.sub(_UNSPACED, r" \g<0> ", _QUOTED.sub(r'"\1"', text)) + " ."
        tokens = [
            token if _ABBREVIATION.fullmatch(token) else _LEADING.sub("", token).rstrip(".-")
            for token in self._split.tokenize(text)
        ]
        return [token for token in tokens if token and token not in PUNCTUATION]


def unspaced(text: str) -> bool:
    """Return whether a text is mostly in a script without spaces between words, such as Chinese."""
    return 2 * len(re.findall(_UNSPACED, text)) > sum(map(str.isalpha, text))


def is_plain(word: str) -> bool:
    """Return whether a word can be shown: 1 to ``MAX_WORD`` characters, none of them for control."""
    return 0 < len(word) <= MAX_WORD and not CONTROL.search(word)


def join(words: Iterable[str]) -> str:
    """Join words to a sentence; clitics are attached to the word before.

    >>> join(["the", "dog", "'s", "bone", "is", "n't", "here"])
    "the dog's bone isn't here"
    >>> join(["一", "只", "狗"])
    '一只狗'
    """
    text = re.sub(r" (n't|'(?:s|m|d|re|ve|ll))(?= |$)", r"\1", " ".join(words))
    return re.sub(f"(?<={_UNSPACED}) (?={_UNSPACED})", "", text)


class Vocabulary:
    """Words ⇄ ids. The first four ids are ``<pad> <start> <end> <unk>``.

    Args:
        words: the words without these four, most frequent first.

    Raises:
        DataError: a word is repeated, one of the four, or not plain.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words: tuple[str, ...] = (*SPECIALS, *words)
        self._ids = {word: index for index, word in enumerate(self.words)}
        counts = Counter(self.words)
        if wrong := [word for word, n in counts.items() if n > 1 or not is_plain(word)]:
            raise DataError(
                f"a vocabulary needs different words of 1 to {MAX_WORD} characters, without control "
                f"characters, got {wrong[:5]}"
            )

    @classmethod
    def build(
        cls, captions: Iterable[Sequence[str]], min_count: int = 5, kept: Sequence[str] = ()
    ) -> "Vocabulary":
        """Build the vocabulary of *training* captions: words that occur ``min_count`` times or more.

        Words are ordered by frequency, then alphabetically, so the order of captions does not matter.
        The words ``kept`` come first, in their order and however rare they are.

        Raises:
            DataError: no word is frequent enough.
        """
        counts = Counter(word for caption in captions for word in caption)
        frequent = {word for word, n in counts.items() if n >= min_count and is_plain(word)}
        new = frequent.difference(kept, SPECIALS)
        if not new and not kept:
            raise DataError(
                f"no word appears {min_count} times in the training captions: lower data.min_count"
            )
        return cls([*kept, *sorted(new, key=lambda word: (-counts[word], word))])

    def __len__(self) -> int:
        return len(self.words)

    @property
    def plain_words(self) -> list[str]:
        """The words without the four special ones."""
        return list(self.words[len(SPECIALS) :])

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that depend on the words and their order."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:12]

    def encode(self, words: Iterable[str]) -> list[int]:
        """Return the ids of words; an unknown word becomes ``<unk>``. Start and end are not added."""
        return [self._ids.get(word, UNK) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words up to the first ``<end>``, without ``<pad>`` and ``<start>``."""
        before_end = takewhile(lambda index: index != END, ids)
        return [self.words[index] for index in before_end if index not in (PAD, START)]
