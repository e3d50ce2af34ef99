"""Data sets as their authors distribute them → records.

    data.root ─ one of READERS ─▶ records + problems ─▶ read(): records, or all problems in one error
                                                     └▶ `captioner data check`: both, and the images

A reader takes the data set's folder, names all that is wrong with it, and goes on. An image file that
exists but cannot be decoded is found later, when it is read, and costs only itself.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from captioner.data.readers.coco import YEARS, read_coco
from captioner.data.readers.flickr import read_flickr8k, read_flickr30k
from captioner.data.readers.folder import read_folder
from captioner.data.readers.karpathy import SETS, read_karpathy
from captioner.data.readers.problems import Problems
from captioner.data.readers.tables import read_csv, read_jsonl
from captioner.data.records import Record, Records
from captioner.errors import DataError, unknown

READERS: dict[str, Callable[[Path, Problems], Iterable[Record]]] = {
    "coco": read_coco,
    **{f"coco{year}": partial(read_coco, year=year) for year in YEARS},
    "flickr8k": read_flickr8k,
    "flickr30k": read_flickr30k,
    "karpathy": read_karpathy,
    **{f"karpathy-{dataset}": partial(read_karpathy, dataset=dataset) for dataset in SETS},
    "jsonl": read_jsonl,
    "csv": read_csv,
    "folder": read_folder,
}
"""What ``data.name`` may be, but for the generated ``shapes``."""

_FILES = ("jsonl", "csv")  # whose root may be the file itself


def read(name: str, root: str | Path) -> Records:
    """The records of data set ``name`` under ``root``, sorted by split and image id.

    Raises:
        DataError: unknown name, missing folder or files, broken JSON, duplicates, images without
            captions, an empty data set.
    """
    records, problems = scan(name, root)
    problems.check()
    if not records:
        raise nothing_in(root, name)
    return records


def scan(name: str, root: str | Path) -> tuple[Records, Problems]:
    """The records and all that is wrong with them, which may leave records without captions.

    Raises:
        DataError: unknown name, no such folder, or nothing in it that belongs to such a data set.
    """
    if name not in READERS:
        raise DataError(unknown("data set", name, READERS))
    root = Path(root).expanduser()
    if not root.is_dir() and not (name in _FILES and root.is_file()):
        reader = READERS[name]
        expected = (reader.func if isinstance(reader, partial) else reader).__doc__ or ""
        raise DataError(
            f"data.root {str(root)!r} is not a folder; expected the folder of a {name} data set: "
            f"{expected.splitlines()[0]}"
        )
    problems = Problems()
    records = Records(READERS[name](root, problems))
    problems.add("duplicate-id", _twice(records.ids))
    problems.add("duplicate-path", _twice(records.paths))
    problems.add("missing", missing(records.paths))
    return records, problems


def nothing_in(root: str | Path, name: str) -> DataError:
    """The error of a data set without images."""
    return DataError(f"no captioned image found under {str(root)!r} for data set {name!r}")


def _twice(items: Iterable[int | str]) -> list[int | str]:
    return [item for item, times in Counter(items).items() if times > 1]


def missing(paths: Iterable[str]) -> Iterable[str]:
    """The paths that lead to no file."""
    # One listing per folder instead of one stat per image: COCO has 123,000 of them.
    listings: dict[str, frozenset[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in listings:
            try:
                listings[folder] = frozenset(os.listdir(folder))  # noqa: PTH208 - names, not paths
            except OSError:
                listings[folder] = frozenset()
        # A file system may take A.JPG for a.jpg, and the end of the path may be a folder's.
        if name not in listings[folder] and not os.path.exists(path):  # noqa: PTH110
            yield path
