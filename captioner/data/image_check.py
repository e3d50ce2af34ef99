"""Decode every image of a data set, and find unreadable and duplicate files.

records ─ processes ─▶ SHA-256 of each file, or its error ─▶ problems
"""

import hashlib
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any

from captioner import images
from captioner.data.readers.problems import Problems
from captioner.data.records import Records
from captioner.errors import ImageError

IN_FLIGHT = 32  # files per process


def inspect(
    records: Records,
    problems: Problems,
    workers: int,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda images, _: images,
) -> None:
    """Decode all existing images in ``workers`` processes.

    ``problems`` receives images that cannot be decoded, files with the same contents in one split or in
    two, and file names in two splits. ``progress`` takes an iterable over images and their number.
    """
    existing = records.take([i for i, r in enumerate(records) if os.path.exists(r.path)])  # noqa: PTH110
    results = map_files(_decode, (record.path for record in existing), workers)
    same: dict[bytes, list[int]] = {}  # the indices of the files with each digest
    for index, result in enumerate(progress(results, len(existing))):
        if isinstance(result, bytes):
            same.setdefault(result, []).append(index)
        else:
            killed = f"{existing[index].path}: the process that decoded it was killed"
            problems.add("unreadable", result or killed)
    for indices in same.values():
        if len(indices) > 1:
            copies = [existing[index] for index in indices]
            # Copies in two splits are worse: the model is tested on its training images.
            kind = "leaked-content" if len({r.split for r in copies}) > 1 else "duplicate-content"
            problems.add(kind, " = ".join(f"{r.path} ({r.split})" for r in copies))
    split_of: dict[str, str] = {}
    for record in records:
        name = Path(record.path).name
        split = split_of.setdefault(name, record.split)
        if split != record.split:
            problems.add("leaked-name", f"{name} ({split}, {record.split})")


def _decode(path: str) -> bytes | str:
    """The digest of an image file, or its error."""
    try:
        images.load(path)
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (ImageError, OSError) as error:
        return str(error)


def map_files(function: Callable[[str], Any], paths: Iterable[str], workers: int) -> Iterator[Any]:
    """Apply a function to files in several processes; a file that kills a process gives None.

    The results are in the order of the paths. Only a few paths are in flight at a time.
    ``function`` must be defined at the top level of a module and must not raise.
    """
    paths, pool = iter(paths), _pool(workers)
    try:
        while chunk := list(islice(paths, IN_FLIGHT * workers)):
            done = 0
            try:
                for result in pool.map(function, chunk):
                    yield result
                    done += 1
            except BrokenProcessPool:
                # One of the files killed its process: run each in its own process.
                pool = _pool(workers)
                for path in chunk[done:]:
                    yield _apply_alone(function, path)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _apply_alone(function: Callable[[str], Any], path: str) -> Any:
    with _pool(1) as pool:
        try:
            return pool.submit(function, path).result()
        except BrokenProcessPool:
            return None


def _pool(workers: int) -> ProcessPoolExecutor:
    # Not forked from this process: a fork breaks the threads of torch and of a progress bar.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    context.set_forkserver_preload(["captioner.data.image_check"])
    # Pillow warns about damaged metadata.
    return ProcessPoolExecutor(workers, context, warnings.simplefilter, ("ignore",))
