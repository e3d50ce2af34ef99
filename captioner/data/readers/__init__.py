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

from captioner.data.readers.coco import SETS, YEARS, read_coco, read_karpathy
from captioner.data.readers.flickr import read_flickr8k, read_flickr30k
from captioner.data.readers.problems import Problems
from captioner.data.readers.tables import read_csv, read_folder, read_jsonl
from captioner.data.records import Record, Records
from captioner.errors import DataError, unknown
from captioner.paths import walk


def read_auto(root: Path, problems: Problems) -> Iterator[Record]:
    """Photos with a .txt beside each, a .csv or .jsonl of captions, or COCO's annotations."""
    name, source = detect(root)
    return READERS[name](source, problems)


def detect(root: Path) -> tuple[str, Path]:
    """Return the kind of data set that lies in a folder, or is this file, and what its reader takes.

    A file named ``captions`` counts before other tables, tables before COCO's annotations, and these
    before text files.

    Raises:
        DataError: there is nothing that a reader for photos of the user reads.
    """
    for pattern in ("captions.{}", "*.{}"):
        for kind in ("csv", "jsonl"):
            files = [root] if root.is_file() else sorted(root.glob(pattern.format(kind)))
            if files and files[0].suffix == f".{kind}":
                return kind, files[0]
    if next(root.glob("annotations/captions_*.json"), None):
        return "coco", root
    if next(walk(root, (".txt",)), None):
        return "folder", root
    raise DataError(
        f"no captions found in '{root}': expected a .txt file beside each photo, captions.csv or "
        "captions.jsonl with the columns image and caption, or annotations/captions_*.json as in COCO"
    )


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
    if not records and not problems.found:
        raise DataError(f"no captioned image found under {str(root)!r} for data set {name!r}")
    return records, problems
