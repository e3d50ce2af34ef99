"""Text ⇄ token ids: the tokenizer, and a vocabulary built from the training split only."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property

from captioner.errors import DataError

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)

# coco-caption drops these, but for brackets: its list has them in capitals (-LRB- … -RCB-), while its
# tokenizer writes -lrb-, so that there they count as words. A captioner has no use for such words.
PUNCTUATION = frozenset([*"'`\".?!,:;-()[]{}<>", "''", "``", "--", "..."])

_TYPOGRAPHIC = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "--", "—": "--", "…": "..."}
)
# What keeps its full stop: initials (but not the article), p.m., and what stands before names.
_ABBREVIATION = re.compile(
    r"(?!a\.$)(?:[a-z]\.)+|(?:mrs?|ms|dr|jr|sr|st|rd|ave|blvd|mt|co|inc|vs|etc)\."
)
# Between single quotes, which Treebank rules take for apostrophes; not the 'n' of rock 'n' roll.
_QUOTED = re.compile(r"(?<!\w)'([a-z](?:[^']|'(?=[a-z]))*[^'\s])'(?!\w)")
_LEADING = re.compile(r"^-+(?=[a-z])")
# Words with hyphens, commas and one full stop, as nine captions of ten are: there the rules find just
# the words, slowly. But for the words that they take apart, and abbreviations.
_PLAIN = re.compile(r"[a-z0-9]+(?:(?:-|,? )[a-z0-9]+)*(?P<stop> ?\.)?")
_TAKEN_APART = re.compile(r"cannot|gimme|gonna|gotta|lemme|wanna")


class Tokenizer:
    """Splits a caption into lower-case words the way coco-caption scores it.

    NLTK's Penn Treebank rules (they need no downloaded data), lower case, punctuation dropped: the
    closest to Stanford's PTBTokenizer that runs without Java. Brackets aside, the two disagree on
    5 of 41,486 captions of Flickr8k and COCO.

    >>> Tokenizer()("A man, who isn't tall, rides his dog's sled.")
    ['a', 'man', 'who', 'is', "n't", 'tall', 'rides', 'his', 'dog', "'s", 'sled']
    """

    name = "nltk-treebank"

    @cached_property
    def _split(self) -> "object":
        # NLTK takes most of a second to import, and captioning a photo never tokenizes anything.
        from nltk.tokenize import TreebankWordTokenizer

        return TreebankWordTokenizer()

    def __call__(self, text: str) -> list[str]:
        """The words of ``text``; an empty list if it holds none."""
        text = text.lower().translate(_TYPOGRAPHIC)
        if (plain := _PLAIN.fullmatch(text)) and not _TAKEN_APART.search(text):
            words = text.rstrip(" .").replace(",", "").split(" ")
            if plain["stop"] != "." or not _ABBREVIATION.fullmatch(words[-1] + "."):
                return words
        # Treebank rules take the last full stop off, be it of "st." or of the sentence, and no
        # other, though captions hold several sentences. So they get one of their own.
        text = _QUOTED.sub(r'"\1"', text) + " ."
        found = map(_trimmed, self._split.tokenize(text))  # type: ignore[attr-defined]
        return [word for word in found if word and word not in PUNCTUATION]


def _trimmed(word: str) -> str:
    if _ABBREVIATION.fullmatch(word):
        return word
    return _LEADING.sub("", word).rstrip(".-")


def join(words: Iterable[str]) -> str:
    """Words as a sentence again: clitics go back to the word they were cut from.

    >>> join(["the", "dog", "'s", "bone", "is", "n't", "here"])
    "the dog's bone isn't here"
    """
    return re.sub(r" (n't|'(?:s|m|d|re|ve|ll))(?= |$)", r"\1", " ".join(words))


class Vocabulary:
    """Words ⇄ ids. The first four ids are ``<pad> <start> <end> <unk>``.

    Args:
        words: the words proper, most frequent first, without the four specials.

    Raises:
        DataError: a word is there twice, is empty, or is one of the specials.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words: tuple[str, ...] = (*SPECIALS, *words)
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words) or "" in self._ids:
            twice = [word or "the empty word" for word, n in Counter(self.words).items() if n > 1]
            raise DataError(
                f"a vocabulary needs {len(self.words)} different, non-empty words; given twice or "
                f"empty: {', '.join(twice[:5]) or 'the empty word'}"
            )

    @classmethod
    def build(cls, captions: Iterable[Sequence[str]], min_count: int = 5) -> "Vocabulary":
        """The vocabulary of the given *training* captions: words seen ``min_count`` times or more.

        Ordered by frequency, then alphabetically, so that the same captions in any order give the
        same ids.
        """
        counts = Counter(word for caption in captions for word in caption)
        kept = [word for word, n in counts.items() if n >= min_count and word not in SPECIALS]
        if not kept:
            raise DataError(
                f"no word appears {min_count} times in the training captions: "
                "lower data.min_count or check that the captions were read"
            )
        return cls(sorted(kept, key=lambda word: (-counts[word], word)))

    def __len__(self) -> int:
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    @property
    def plain_words(self) -> list[str]:
        """The words without the four specials: what the constructor takes."""
        return list(self.words[len(SPECIALS) :])

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with any word or its place."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:12]

    def encode(self, words: Iterable[str]) -> list[int]:
        """Ids of ``words``; an unknown word becomes ``<unk>``. No start or end is added."""
        return [self._ids.get(word, UNK) for word in words]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of ``ids`` up to the first ``<end>``; ``<pad>`` and ``<start>`` are left out."""
        words = []
        for index in ids:
            if index == END:
                break
            if index not in (PAD, START):
                words.append(self.words[index])
        return words
