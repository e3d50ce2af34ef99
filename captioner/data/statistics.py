"""Statistics of a data set: images, captions, words, and the coverage of the vocabulary."""

from collections import Counter
from typing import Any

import numpy as np

from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, TRAIN, Records
from captioner.data.tokenized import TokenizedCaptions
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
        images[split] = len(part)
        for record, sentences in zip(part, tokenized.sentences, strict=True):
            per_image[len(sentences)] += 1
            for caption, sentence in zip(record.captions, sentences, strict=True):
                lengths[len(sentence)] += 1
                if len(sentence) > max_words:
                    problems.add("long", f"{record.image_id}: {len(sentence)} words: {caption!r}")
        captions[split] = sum(map(len, tokenized.sentences))
        if split == TRAIN:
            vocabulary["different_words"] = len(tokenized.words)
            try:
                known = set(Vocabulary.build(tokenized, min_count).plain_words)
            except DataError:  # no word is frequent enough
                continue
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
    shares = [[word in known for word in sentence] for sentence in tokenized]
    words = [is_known for sentence in shares for is_known in sentence]
    return {
        "words": round(100 * sum(words) / max(len(words), 1), 2),
        "captions": round(100 * sum(map(all, shares)) / max(len(shares), 1), 2),
    }


def summary(counts: Counter[int]) -> dict[str, Any]:
    """Least, mean, median and largest of some values, given how often each occurs; 0 without values."""
    values = np.sort(np.fromiter(counts.elements(), int)) if counts else np.zeros(1, int)
    return {
        "least": int(values[0]),
        "mean": round(float(values.mean()), 2),
        "median": int(values[(len(values) - 1) // 2]),
        "most": int(values[-1]),
    }
