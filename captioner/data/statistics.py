"""Statistics of a data set: images, captions, words, and the coverage of the vocabulary."""

from collections import Counter
from contextlib import suppress
from itertools import chain
from statistics import fmean, median_low
from typing import Any

from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, TRAIN, Records, TokenizedCaptions
from captioner.errors import DataError
from captioner.text import Vocabulary


def statistics(
    records: Records, problems: Problems, max_words: int, min_count: int
) -> dict[str, Any]:
    """Count images, captions and words, for the JSON report; splits without images are left out.

    ``problems`` receives the captions of more than ``max_words`` words. A word of the vocabulary occurs
    ``min_count`` times or more in the training captions.
    """
    images: dict[str, int] = {}
    captions: dict[str, int] = {}
    per_image: Counter[int] = Counter()
    lengths: Counter[int] = Counter()
    vocabulary = {"min_count": min_count, "words": 0, "different_words": 0}
    coverage: dict[str, dict[str, float]] = {}
    known: set[str] = set()
    for split in SPLITS:  # the training split first, because it gives the vocabulary
        part = records.of_split(split)
        if not part:
            continue
        tokenized = TokenizedCaptions(part)
        images[split], captions[split] = len(part), sum(map(len, tokenized.sentences))
        for record, sentences in zip(part, tokenized.sentences, strict=True):
            per_image[len(sentences)] += 1
            lengths.update(map(len, sentences))
            for caption, sentence in zip(record.captions, sentences, strict=True):
                if len(sentence) > max_words:
                    problems.add("long", f"{record.image_id}: {len(sentence)} words: {caption!r}")
        if split == TRAIN:
            vocabulary["different_words"] = len(tokenized.words)
            with suppress(DataError):  # no word is frequent enough
                known = set(Vocabulary.build(tokenized, min_count).plain_words)
            vocabulary["words"] = len(known)
        else:
            coverage[split] = _coverage(tokenized, known)
    return {
        "images": images,
        "captions": captions,
        "captions_per_image": dict(sorted(per_image.items())),
        "words_per_caption": {**summary(lengths), "counts": dict(sorted(lengths.items()))},
        "vocabulary": {**vocabulary, "coverage": coverage},
    }


def _coverage(tokenized: TokenizedCaptions, known: set[str]) -> dict[str, float]:
    """The percentages of words in the vocabulary, and of captions with only such words."""
    captions = [[word in known for word in sentence] for sentence in tokenized]
    words = list(chain(*captions))
    return {
        "words": round(100 * sum(words) / max(len(words), 1), 2),
        "captions": round(100 * sum(map(all, captions)) / max(len(captions), 1), 2),
    }


def summary(counts: Counter[int]) -> dict[str, Any]:
    """Least, mean, median and largest of some values, given how often each occurs; 0 without values."""
    values = sorted(counts.elements()) or [0]
    return {
        "least": values[0],
        "mean": round(fmean(values), 2),
        "median": median_low(values),
        "most": values[-1],
    }
