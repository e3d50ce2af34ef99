"""A data set in numbers: images, captions, words, and how many of them a model would know."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, TRAIN, Records
from captioner.data.sentences import Spoken
from captioner.errors import DataError
from captioner.text import Tokenizer, Vocabulary


@dataclass(frozen=True)
class Coverage:
    """How much of a split the vocabulary of the training captions can say, in percent.

    Attributes:
        words: of all words said, every time they are.
        captions: of the captions, those in which it knows every word.
    """

    words: float
    captions: float


@dataclass(frozen=True)
class Statistics:
    """What is in a data set; splits without images are left out.

    Attributes:
        images: number by split.
        captions: number by split.
        captions_per_image: how many images have so many captions.
        caption_lengths: how many captions have so many words.
        different_words: in the training captions.
        vocabulary: of these, words said ``min_count`` times or more; 0 without training captions.
        min_count: how often a word must be said.
        coverage: of the other splits.
    """

    images: dict[str, int]
    captions: dict[str, int]
    captions_per_image: dict[int, int]
    caption_lengths: dict[int, int]
    different_words: int
    vocabulary: int
    min_count: int
    coverage: dict[str, Coverage]


def statistics(records: Records, problems: Problems, max_words: int, min_count: int) -> Statistics:
    """Counts, and adds the captions of more than ``max_words`` words to the problems."""
    tokenizer = Tokenizer()
    images: dict[str, int] = {}
    captions: dict[str, int] = {}
    per_image: Counter[int] = Counter()
    lengths: Counter[int] = Counter()
    coverage: dict[str, Coverage] = {}
    vocabulary, different = Vocabulary([]), 0
    for split in SPLITS:  # the training captions first: the others are measured by their words
        part = records.of_split(split)
        if not part:
            continue
        spoken = Spoken(part, tokenizer)
        images[split] = len(part)
        per_split: Counter[int] = Counter()
        for record, sentences in zip(part, spoken.sentences, strict=True):
            per_image[len(sentences)] += 1
            per_split.update(map(len, sentences))
            for caption, sentence in zip(record.captions, sentences, strict=True):
                if len(sentence) > max_words:
                    problems.add("long", [f"{record.image_id}: {len(sentence)} words: {caption!r}"])
        captions[split] = per_split.total()
        lengths += per_split
        if split == TRAIN:
            different = len(spoken.words)
            try:
                vocabulary = Vocabulary.build(spoken, min_count)
            except DataError:  # nothing is said often enough
                continue
        else:
            coverage[split] = _coverage(spoken, vocabulary)
    return Statistics(
        images,
        captions,
        dict(sorted(per_image.items())),
        dict(sorted(lengths.items())),
        different,
        len(vocabulary.plain_words),
        min_count,
        coverage,
    )


def _coverage(spoken: Iterable[list[str]], vocabulary: Vocabulary) -> Coverage:
    known = set(vocabulary.plain_words)
    words = said = whole = captions = 0
    for sentence in spoken:
        unknown = sum(word not in known for word in sentence)
        words, said = words + len(sentence), said + len(sentence) - unknown
        captions, whole = captions + 1, whole + (unknown == 0)
    return Coverage(100 * said / max(words, 1), 100 * whole / max(captions, 1))


def mean(counts: dict[int, int]) -> float:
    """The mean of numbers that are counted."""
    return sum(n * times for n, times in counts.items()) / max(sum(counts.values()), 1)


def quantile(counts: dict[int, int], share: float) -> int:
    """The number that such a share of all do not exceed; 0 of none."""
    wanted, seen = share * sum(counts.values()), 0
    for number, times in sorted(counts.items()):
        seen += times
        if seen >= wanted:
            return number
    return 0


def as_dict(statistics: Statistics) -> dict[str, Any]:
    """For JSON."""
    lengths = statistics.caption_lengths
    return {
        "images": statistics.images,
        "captions": statistics.captions,
        "captions_per_image": statistics.captions_per_image,
        "words_per_caption": {
            "least": min(lengths, default=0),
            "mean": round(mean(lengths), 2),
            "median": quantile(lengths, 0.5),
            "most": max(lengths, default=0),
            "counts": lengths,
        },
        "vocabulary": {
            "min_count": statistics.min_count,
            "words": statistics.vocabulary,
            "different_words": statistics.different_words,
            "coverage": {
                split: {"words": round(c.words, 2), "captions": round(c.captions, 2)}
                for split, c in statistics.coverage.items()
            },
        },
    }
