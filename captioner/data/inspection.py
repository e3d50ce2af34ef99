"""Every image of a data set, really read: what cannot be decoded, and what is there twice.

records ─ processes ─▶ SHA-256 of each file, or why it is no picture ─▶ problems
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from captioner import images
from captioner.data.readers import missing
from captioner.data.readers.problems import Problems
from captioner.data.records import Records
from captioner.data.workers import each
from captioner.errors import ImageError

DIGEST = 16  # bytes kept of each: among a billion files two would agree with probability 1e-21


def look(path: str) -> bytes | str:
    """The digest of a file that holds a picture, else what is wrong with it."""
    try:
        images.load(path)
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()[:DIGEST]
    except (ImageError, OSError) as error:
        return str(error)


def inspect(
    records: Records,
    problems: Problems,
    workers: int,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] | None = None,
) -> None:
    """Decodes all images that exist, and adds what is wrong to the problems.

    Args:
        records: the data set.
        problems: gets the images that cannot be decoded, files with the same contents, in one split
            or in two, and file names that are in two splits.
        workers: processes to decode in.
        progress: wraps the iterator over images; its second argument is their number.
    """
    absent = set(missing(records.paths))
    there = [place for place, path in enumerate(records.paths) if path not in absent]
    digests = np.zeros((len(there), DIGEST), np.uint8)
    decoded = np.zeros(len(there), bool)
    found = records.take(there)
    looks: Iterable[bytes | str | None] = each(look, found.paths, workers)
    looks = progress(looks, len(found)) if progress else looks
    for place, (path, seen) in enumerate(zip(found.paths, looks, strict=True)):
        if isinstance(seen, bytes):
            digests[place], decoded[place] = np.frombuffer(seen, np.uint8), True
        else:
            killed = f"{path}: the process that decoded it was killed"
            problems.add("unreadable", [killed if seen is None else seen])
    _same_contents(found.take(np.flatnonzero(decoded).tolist()), digests[decoded], problems)
    _same_names(records, problems)


def _same_contents(records: Records, digests: np.ndarray, problems: Problems) -> None:
    """Files with the same digest; those of two splits are worse: a model is tested on its lessons."""
    _, group, sizes = np.unique(digests, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    shared = np.flatnonzero(sizes[group] > 1)
    alike: dict[int, list[int]] = {}
    for place in shared.tolist():
        alike.setdefault(int(group[place]), []).append(place)
    for places in alike.values():
        same = list(records.take(places))
        splits = dict.fromkeys(record.split for record in same)
        kind = "duplicate-content" if len(splits) == 1 else "leaked-content"
        problems.add(kind, [" = ".join(f"{record.path} ({record.split})" for record in same)])


def _same_names(records: Records, problems: Problems) -> None:
    """Names of files that are in two splits, in folders of their own."""
    first: dict[str, str] = {}
    for path, split in zip(records.paths, records.splits, strict=True):
        other = first.setdefault(Path(path).name, split)
        if other != split:
            problems.add("leaked-name", [f"{Path(path).name} ({other}, {split})"])
