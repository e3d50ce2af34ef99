"""Readers of data sets as their authors distribute them.

A reader takes the data set's folder, yields records, and collects problems instead of stopping at the
first. An image that exists but cannot be decoded is only noticed when it is used, and then left out.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from captioner.data.readers.coco import SETS, YEARS, read_coco, read_karpathy
from captioner.data.readers.flickr import read_flickr8k, read_flickr30k
from captioner.data.readers.problems import LEFT_OUT, Problems
from captioner.data.readers.tables import check_table, read_csv, read_folder, read_jsonl
from captioner.data.readers.text_files import find_file
from captioner.data.records import Record, Records
from captioner.errors import DataError, unknown
from captioner.photos.paths import walk

_LOG = logging.getLogger(__name__)


class Reader(NamedTuple):
    """A reader, and the files by which ``auto`` recognises its data sets."""

    read: Callable[[Path, Problems], Iterator[Record]]
    signs: tuple[str, ...] = ()


class Found(NamedTuple):
    """The kind of data set in a folder."""

    name: str  # of the reader
    source: Path  # what it reads: the folder or a table in it
    left_aside: list[str]  # why other tables are not used


def read_auto(root: Path, problems: Problems) -> Iterator[Record]:
    """Photos with a .txt beside each, a table of captions, COCO, Flickr, or one of Karpathy's splits."""
    found = detect(root)
    return READERS[found.name].read(found.source, problems)


def detect(root: Path) -> Found:
    """Find out which kind of data set lies in a folder, or is this file; DataError if there is none.

    A table named ``captions`` or ``metadata`` counts before other tables, tables before the data sets
    that ``READERS`` recognises, and these before text files. A table counts only if it has the columns
    of a table of captions.
    """
    used: list[Path] = []
    left_aside: dict[Path, str] = {}
    for table in _tables(root):
        try:
            if table != root:  # a file that the user names is read, with all its errors
                check_table(table)
            used.append(table)
        except DataError as error:
            left_aside[table] = str(error)
    if used:
        first, *others = used
        reasons = [f"'{other}': the captions of '{first}' are used" for other in others]
        kept = [*left_aside.values(), *reasons]
        if first.name == "captions.txt":
            return Found("flickr8k", root, kept)
        in_split = first.parent not in (root, root.parent)
        return Found(first.suffix[1:], root if in_split else first, [] if in_split else kept)
    for name, reader in READERS.items():
        if file := find_file(root, *reader.signs):
            left_aside.pop(file, None)
            return Found(name, root, list(left_aside.values()))
    if next(walk(root, (".txt",)), None):
        return Found("folder", root, list(left_aside.values()))
    raise DataError(
        f"no captions found in '{root}': expected a .txt file beside each photo, captions.csv or "
        "captions.jsonl with the columns image and caption, or a data set as in docs/data.md"
        + "".join(f"; {reason}" for reason in left_aside.values())
    )


def _tables(root: Path) -> list[Path]:
    """The files that can be tables of captions, in the order in which they count."""
    if root.is_file():
        return [root] if root.suffix in (".csv", ".jsonl") else []
    names = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl", "captions.txt")
    patterns = (*names, "*.csv", "*.jsonl", "*/metadata.csv", "*/metadata.jsonl")
    return list(dict.fromkeys(file for name in patterns for file in sorted(root.glob(name))))


READERS: dict[str, Reader] = {
    "coco": Reader(read_coco, ("annotations/captions_*.json",)),
    **{f"coco{year}": Reader(partial(read_coco, year=year)) for year in YEARS},
    "flickr8k": Reader(read_flickr8k, ("Flickr8k.token.txt",)),
    "flickr30k": Reader(read_flickr30k, ("results_20130124.token", "results.csv")),
    "karpathy": Reader(read_karpathy, tuple(f"dataset_{name}.json" for name in SETS)),
    **{f"karpathy-{name}": Reader(partial(read_karpathy, dataset=name)) for name in SETS},
    "jsonl": Reader(read_jsonl),
    "csv": Reader(read_csv),
    "folder": Reader(read_folder),
    "auto": Reader(read_auto),
}
"""The values of ``data.name``, except the generated ``shapes``."""


def read(name: str, root: str | Path) -> Records:
    """The records of data set ``name`` under ``root``, sorted by split and image id.

    Images and captions that cannot be used are left out with a warning.

    Raises:
        DataError: unknown name, missing folder or files, broken JSON, duplicates, an empty data set.
    """
    records, problems = scan(name, root)
    problems.check()
    left_out = problems.summary(LEFT_OUT)
    if not records:
        raise DataError(f"no captioned image found under {str(root)!r}: {left_out}")
    if left_out:
        _LOG.warning("left out: %s (captioner data check lists all)", left_out)
    return records


def scan(name: str, root: str | Path) -> tuple[Records, Problems]:
    """The records of a data set and all its problems; DataError if no such data set is there."""
    if name not in READERS:
        raise DataError(unknown("data set", name, READERS))
    root, reader = Path(os.path.expanduser(root)), READERS[name].read  # noqa: PTH111 - never raises
    is_table = name in ("jsonl", "csv", "auto") and root.is_file()
    if not root.is_dir() and not is_table:
        raise DataError(
            f"data.root {str(root)!r} is not a folder; expected the folder of a {name} data set"
        )
    problems = Problems()
    records = Records(reader(root, problems))
    ids, files = Counter(r.image_id for r in records), Counter(r.path for r in records)
    problems.add("duplicate-id", *(image_id for image_id, count in ids.items() if count > 1))
    problems.add("duplicate-path", *(file for file, count in files.items() if count > 1))
    if not records and not problems.found:
        raise DataError(f"no captioned image found under {str(root)!r} for data set {name!r}")
    return records, problems
