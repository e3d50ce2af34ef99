"""The check of a data set: unreadable and duplicate images, and statistics of its captions."""

import hashlib
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import chain
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from joblib import Parallel, delayed

from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, TRAIN, Records, TokenizedCaptions
from captioner.errors import DataError, ImageError
from captioner.language.vocabulary import Vocabulary, unspaced
from captioner.photos import images


def inspect(
    records: Records,
    problems: Problems,
    workers: int,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda images, _: images,
) -> None:
    """Find images that cannot be decoded, and files with the same contents, with some processes."""
    existing = records.take([i for i, r in enumerate(records) if os.path.exists(r.path)])  # noqa: PTH110
    results = _decoded([record.path for record in existing], workers)
    same: dict[bytes, list[int]] = defaultdict(list)  # the indices of the files with each digest
    for index, result in enumerate(progress(results, len(existing))):
        if isinstance(result, bytes):
            same[result].append(index)
        else:
            problems.add("unreadable", result)
    for indices in same.values():
        if len(indices) > 1:
            copies = [existing[index] for index in indices]
            # Copies in two splits are worse, because the model is then tested on training images.
            kind = "leaked-content" if len({r.split for r in copies}) > 1 else "duplicate-content"
            problems.add(kind, " = ".join(f"{r.path} ({r.split})" for r in copies))


def _decoded(paths: Sequence[str], workers: int) -> Iterator[bytes | str]:
    """The digest or the error of each file, in order."""
    workers = max(workers, 2)  # with one, joblib would decode in this process
    for start in range(0, len(paths), 8 * workers):
        part = paths[start : start + 8 * workers]
        try:
            yield from Parallel(workers)(map(delayed(_decode), part))
        except BrokenProcessPool:  # a file ended the process that decoded it: find out which
            if len(part) > 1:
                for path in part:
                    yield from _decoded([path], workers)
            else:
                yield f"{part[0]} ends the process that decodes it"


def _decode(path: str) -> bytes | str:
    """The digest of an image file, or its error."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns about damaged metadata
            images.load(path)
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (ImageError, OSError) as error:
        return str(error)


def statistics(
    records: Records, problems: Problems, max_words: int, min_count: int
) -> dict[str, Any]:
    """Count images, captions and words, and find captions that training would cut."""
    images: dict[str, int] = {}
    captions: dict[str, int] = {}
    per_image: Counter[int] = Counter()
    lengths: Counter[int] = Counter()
    vocabulary: dict[str, Any] = {"min_count": min_count, "words": 0, "different_words": 0}
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
            for caption, sentence in zip(record.captions, sentences, strict=True):
                lengths[len(sentence)] += 1
                if unspaced(caption):
                    problems.add("no-spaces", f"{record.image_id}: {caption!r}")
                if len(sentence) > max_words:
                    problems.add("long", f"{record.image_id}: {len(sentence)} words: {caption!r}")
        if split == TRAIN:
            with suppress(DataError):  # no word is frequent enough
                known = set(Vocabulary.build(tokenized, min_count).plain_words)
            vocabulary |= {"words": len(known), "different_words": len(set(chain(*tokenized)))}
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
    """Minimum, mean, median and maximum of values, given how often each occurs; 0 without values."""
    values = sorted(counts.elements()) or [0]
    return {
        "least": values[0],
        "mean": round(fmean(values), 2),
        "median": median_low(values),
        "most": values[-1],
    }
