"""The check of a data set: unreadable and duplicate images, and statistics of its captions."""

import hashlib
import multiprocessing
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, TRAIN, Records, TokenizedCaptions
from captioner.errors import DataError, ImageError
from captioner.language.vocabulary import Vocabulary
from captioner.photos import images

IN_FLIGHT = 32  # files per process


def inspect(
    records: Records,
    problems: Problems,
    workers: int,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda images, _: images,
) -> None:
    """Decode all existing images in ``workers`` processes.

    ``problems`` receives images that cannot be decoded, and files with the same contents in one split or
    in two. ``progress`` takes an iterable over images and their number.
    """
    existing = records.take([i for i, r in enumerate(records) if os.path.exists(r.path)])  # noqa: PTH110
    results = map_files(_decode, (record.path for record in existing), workers)
    same: dict[bytes, list[int]] = defaultdict(list)  # the indices of the files with each digest
    for index, result in enumerate(progress(results, len(existing))):
        if isinstance(result, bytes):
            same[result].append(index)
        else:
            killed = f"{existing[index].path} cannot be read: its decoder was killed"
            problems.add("unreadable", result or killed)
    for indices in same.values():
        if len(indices) > 1:
            copies = [existing[index] for index in indices]
            # Copies in two splits are worse, because the model is then tested on training images.
            kind = "leaked-content" if len({r.split for r in copies}) > 1 else "duplicate-content"
            problems.add(kind, " = ".join(f"{r.path} ({r.split})" for r in copies))


def _decode(path: str) -> bytes | str:
    """The digest of an image file, or its error."""
    try:
        with warnings.catch_warnings(action="ignore"):  # Pillow warns about damaged metadata
            images.load(path)
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (ImageError, OSError) as error:
        return str(error)


def map_files(function: Callable[[str], Any], paths: Iterable[str], workers: int) -> Iterator[Any]:
    """Apply a function to files in several processes; None for a file that crashes its process.

    The results are in the order of the paths. Only a few paths are in flight at a time.
    """
    paths, pool = iter(paths), _pool(workers)
    try:
        while chunk := list(islice(paths, IN_FLIGHT * workers)):
            done = 0
            try:
                for result in pool.map(function, chunk):
                    yield result
                    done += 1
            except BrokenProcessPool:  # run the rest of the chunk with one process per file
                pool = _pool(workers)
                for path in chunk[done:]:
                    with _pool(1) as alone:
                        try:
                            result = alone.submit(function, path).result()
                        except BrokenProcessPool:
                            result = None
                    yield result
    finally:
        pool.shutdown(cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    # Workers are not forked from this process, because a fork breaks the threads
    # of torch and of a progress bar.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(workers, context)


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
                if len(sentence) > max_words:
                    problems.add("long", f"{record.image_id}: {len(sentence)} words: {caption!r}")
        if split == TRAIN:
            with suppress(DataError):  # no word is frequent enough
                known = set(Vocabulary.build(tokenized, min_count).plain_words)
            vocabulary |= {"words": len(known), "different_words": len(tokenized.words)}
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
