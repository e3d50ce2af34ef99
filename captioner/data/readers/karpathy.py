"""Karpathy's splits of COCO, Flickr8k and Flickr30k (Karpathy & Fei-Fei 2015).

docs/data.md shows the file. The Flickr files have neither ``filepath`` nor ``cocoid``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.data.readers.files import (
    MALFORMED,
    find_file,
    find_image_folder,
    parse_id,
    parse_split,
    read_json,
)
from captioner.data.readers.problems import Problems
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError

SETS = ("coco", "flickr8k", "flickr30k")


def read_karpathy(root: Path, problems: Problems, dataset: str = "") -> Iterator[Record]:
    """dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json, beside the images.

    The file may be in ``root`` or one of its folders. COCO's images are in ``train2014`` and
    ``val2014``, Flickr's in the folders of their own data sets. ``restval`` joins ``train``, as in the
    papers: 113,287, 5,000 and 5,000 images.
    ``dataset`` is one of the three; it is required if ``root`` contains several.
    """
    files = {s: f for s in SETS if (f := find_file(root, f"dataset_{s}.json"))}
    if not dataset and len(files) > 1:
        raise DataError(
            f"'{root}' holds Karpathy's files of {' and '.join(files)}; choose one with "
            f"--data.name {' or '.join(f'karpathy-{name}' for name in files)}"
        )
    dataset = dataset or next(iter(files), "")
    if dataset not in files:
        expected = dataset or f"{{{','.join(SETS)}}}"
        raise DataError(f"no 'dataset_{expected}.json' under '{root}'")
    file = files[dataset]
    problems.sources.append(file)
    rows: list[tuple[int | str, str, Any, list[str]]] = []
    with problems.collect_file_errors():
        content = read_json(file)
        try:
            rows = list(map(_row, content["images"]))
        except MALFORMED as error:
            raise DataError(
                f"'{file}' is not one of Karpathy's files: expected images with filename, split, "
                f"imgid and sentences, each with raw ({type(error).__name__}: {error})"
            ) from error
    folder = root
    if rows and "/" not in rows[0][1]:  # names of COCO include their folder
        folder = find_image_folder(root, rows[0][1])
    for image_id, name, split_name, captions in rows:
        if (split := parse_split(split_name)) is None:
            problems.add("no-split", f"{name}: {split_name!r:.80}")
        yield problems.record(image_id, folder / name, name, captions, split or TRAIN)


def _row(image: Any) -> tuple[int | str, str, Any, list[str]]:
    """Id, name with its folder, split and captions of an image."""
    image_id = parse_id(image["cocoid"] if "cocoid" in image else image["imgid"])
    name = (Path(image.get("filepath", "")) / image["filename"]).as_posix()
    return image_id, name, image["split"], [s["raw"].strip() for s in image["sentences"]]
