"""How far captions that are sampled for a photo agree with its caption, and which captions are right.

Where a model recognises a photo, sampled captions agree; where it guesses, they differ
(self-consistency, Wang et al. 2023, arXiv 2203.11171).
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from math import log
from typing import Any

from captioner.language.vocabulary import Tokenizer
from captioner.language.word_classes import FUNCTION_WORDS

SAMPLES = 24  # captions that are sampled for each photo
RIGHT = 0.75  # least share of content words that the references of a right caption contain
NO_WORDS = log(0.5 / (SAMPLES + 1))  # the agreement on a caption without content words


def agreement(words: Iterable[str], samples: Sequence[Iterable[str]]) -> float:
    """Return the mean of ``log((n_w + ½) / (S + 1))`` over the content words w of a caption.

    n_w is the number of the S samples that contain w. Words are compared by their stems.
    """
    found = [set(map(stem, sample)) for sample in samples]
    content = _content(words)
    counts = [sum(word in sample for sample in found) for word in content]
    shares = [log((count + 0.5) / (len(found) + 1)) for count in counts]
    return sum(shares) / len(shares) if shares else NO_WORDS


def is_right(words: Iterable[str], references: Collection[str]) -> bool:
    """Return whether the references contain three quarters of a caption's content words, by stem."""
    known = {stem(word) for reference in references for word in Tokenizer()(reference)}
    content = _content(words)
    return bool(content) and sum(word in known for word in content) >= RIGHT * len(content)


@lru_cache(100_000)
def stem(word: str) -> str:
    """Return the stem of a word, by Porter's rules."""
    return str(_stemmer().stem(word))


@cache
def _stemmer() -> Any:
    from nltk.stem import PorterStemmer  # takes a tenth of a second, which other captions save

    return PorterStemmer()


def _content(words: Iterable[str]) -> list[str]:
    return [stem(word) for word in words if word not in FUNCTION_WORDS]
