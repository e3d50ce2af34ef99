"""Readers of data sets as their authors distribute them.

    data.root ─ one of READERS ─▶ records + problems ─▶ read(): records, or one error with all problems
                                                     └▶ `captioner data check`: both

A reader takes the data set's folder, yields records, and collects problems instead of stopping at the
first. An image that exists but cannot be decoded is only noticed when it is used, and then left out.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from captioner.data.readers.coco import SETS, YEARS, read_coco, read_karpathy
from captioner.data.readers.flickr import read_flickr8k, read_flickr30k
from captioner.data.readers.problems import Problems
from captioner.data.readers.tables import check_table, read_csv, read_folder, read_jsonl
from captioner.data.records import Record, Records
from captioner.errors import DataError, unknown
from captioner.photos.paths import walk


class Found(NamedTuple):
    """The kind of data set in a folder.

    Attributes:
        name: the reader in ``READERS``.
        source: what the reader takes: the folder or a table in it.
        left_aside: why other tables are not used.
    """

    name: str
    source: Path
    left_aside: list[str]


def read_auto(root: Path, problems: Problems) -> Iterator[Record]:
    """Photos with a .txt beside each, a .csv or .jsonl of captions, or COCO's annotations."""
    found = detect(root)
    return READERS[found.name](found.source, problems)


def detect(root: Path) -> Found:
    """Find out which kind of data set lies in a folder, or is this file.

    A file named ``captions`` counts before other tables, tables before COCO's annotations, and these
    before text files. A table counts only if it has the columns of a table of captions.

    Raises:
        DataError: there is nothing that a reader for photos of the user reads.
    """
    tables: list[Path] = []
    left_aside: list[str] = []
    for table in _tables(root):
        try:
            if table != root:  # a file that the user names is read, with all its errors
                check_table(table)
            tables.append(table)
        except DataError as error:
            left_aside.append(str(error))
    if tables:
        used, *others = tables
        left_aside += [f"'{other}': the captions of '{used}' are used" for other in others]
        return Found(used.suffix[1:], used, left_aside)
    if next(root.glob("annotations/captions_*.json"), None):
        return Found("coco", root, left_aside)
    if next(walk(root, (".txt",)), None):
        return Found("folder", root, left_aside)
    reasons = "".join(f"; {reason}" for reason in left_aside)
    raise DataError(
        f"no captions found in '{root}': expected a .txt file beside each photo, captions.csv or "
        f"captions.jsonl with the columns image and caption, or annotations/captions_*.json as in COCO"
        f"{reasons}"
    )


def _tables(root: Path) -> list[Path]:
    """The files that can be tables of captions, in the order in which they count."""
    kinds = ("csv", "jsonl")
    if root.is_file():
        return [root] if root.suffix in (".csv", ".jsonl") else []
    patterns = [pattern.format(kind) for pattern in ("captions.{}", "*.{}") for kind in kinds]
    return list(dict.fromkeys(file for p in patterns for file in sorted(root.glob(p))))


READERS: dict[str, Callable[[Path, Problems], Iterator[Record]]] = {
    "coco": read_coco,
    **{f"coco{year}": partial(read_coco, year=year) for year in YEARS},
    "flickr8k": read_flickr8k,
    "flickr30k": read_flickr30k,
    "karpathy": read_karpathy,
    **{f"karpathy-{dataset}": partial(read_karpathy, dataset=dataset) for dataset in SETS},
    "jsonl": read_jsonl,
    "csv": read_csv,
    "folder": read_folder,
    "auto": read_auto,
}
"""The values of ``data.name``, except the generated ``shapes``."""


def read(name: str, root: str | Path) -> Records:
    """The records of data set ``name`` under ``root``, sorted by split and image id.

    Raises:
        DataError: unknown name, missing folder or files, broken JSON, duplicates, images without
            captions, an empty data set.
    """
    records, problems = scan(name, root)
    problems.check()
    return records


def scan(name: str, root: str | Path) -> tuple[Records, Problems]:
    """The records of a data set and all its problems; records may lack captions.

    Raises:
        DataError: unknown name, no such folder, or nothing in it that belongs to such a data set.
    """
    if name not in READERS:
        raise DataError(unknown("data set", name, READERS))
    root, reader = Path(os.path.expanduser(root)), READERS[name]  # noqa: PTH111 - never raises
    is_table = name in ("jsonl", "csv", "auto") and os.path.isfile(root)  # noqa: PTH113
    if not os.path.isdir(root) and not is_table:  # noqa: PTH112
        expected = (reader.func if isinstance(reader, partial) else reader).__doc__ or ""
        raise DataError(
            f"data.root {str(root)!r} is not a folder; expected the folder of a {name} data set: "
            f"{expected.splitlines()[0]}"
        )
    problems = Problems()
    records = Records(reader(root, problems))
    ids, files = Counter(r.image_id for r in records), Counter(r.path for r in records)
    problems.add("duplicate-id", *(image_id for image_id, count in ids.items() if count > 1))
    problems.add("duplicate-path", *(file for file, count in files.items() if count > 1))
    problems.add("missing", *(r.path for r in records if not os.path.exists(r.path)))  # noqa: PTH110
    if not records and not problems.fatal:
        raise DataError(f"no captioned image found under {str(root)!r} for data set {name!r}")
    return records, problems
