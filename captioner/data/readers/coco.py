"""COCO captions as downloaded (Lin et al. 2014, https://cocodataset.org), and Karpathy's splits.

Karpathy & Fei-Fei (2015) split COCO, Flickr8k and Flickr30k. docs/data.md shows all files.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.data.readers.problems import Problems
from captioner.data.readers.text_files import (
    MALFORMED,
    find_file,
    find_image_folder,
    hash_split,
    parse_id,
    parse_split,
    read_json,
)
from captioner.data.records import SPLITS, TRAIN, Record
from captioner.errors import DataError

YEARS = ("2014", "2017")
SETS = ("coco", "flickr8k", "flickr30k")
_PREFIX = "captions_"


def read_coco(root: Path, problems: Problems, year: str = "") -> Iterator[Record]:
    """A folder with annotations/captions_*.json and one image folder per JSON (train2014, val2014, …).

    The part of a file's name after ``captions_`` is the name of its image folder and begins with the
    split. ``year`` is by default 2014 if both exist. The years are never mixed, because they are
    different splits of the same photos.
    """
    files = {
        file: split
        for file in sorted((root / "annotations").glob(f"{_PREFIX}*.json"))
        for split in SPLITS
        if file.stem.startswith(_PREFIX + split)
    }
    years = [y for y in YEARS if any(file.stem.endswith(y) for file in files)]
    if year or len(years) > 1:
        files = {f: split for f, split in files.items() if f.stem.endswith(year or years[0])}
    if not files:
        raise DataError(
            f"no 'annotations/captions_*{year}.json' (train…, val…, test…) under '{root}'"
        )
    problems.sources += files
    for file, split in files.items():
        with problems.collect_file_errors():
            yield from _read(root, file, split if len(files) > 1 else None, problems)


def _read(root: Path, file: Path, split: str | None, problems: Problems) -> Iterator[Record]:
    """The images of one file; without a split, they are split by hash."""
    part = file.stem.removeprefix(_PREFIX)
    folder = next((f for f in (root / part, root / "images" / part) if f.is_dir()), None)
    if folder is None:
        raise DataError(f"'{file}' needs the image folder '{root / part}', which does not exist")
    content = read_json(file)
    captions: dict[int | str, list[str]] = defaultdict(list)
    try:
        names = [
            (parse_id(entry["id"]), str(Path(entry["file_name"]))) for entry in content["images"]
        ]
        for entry in content["annotations"]:
            captions[parse_id(entry["image_id"])].append(entry["caption"].strip())
    except MALFORMED as error:
        raise DataError(
            f"'{file}' is not a COCO captions file ({type(error).__name__}: {error})"
        ) from error
    known = {image_id for image_id, _ in names}
    problems.add("no-image", *(image_id for image_id in captions if image_id not in known))
    for image_id, name in names:
        texts = captions.get(image_id, ())
        yield from problems.record(image_id, folder, name, texts, split or hash_split(name))


def read_karpathy(root: Path, problems: Problems, dataset: str = "") -> Iterator[Record]:
    """dataset_coco.json, dataset_flickr8k.json or dataset_flickr30k.json, beside the images.

    ``restval`` joins ``train``, as in the papers: 113,287, 5,000 and 5,000 images. ``dataset`` is one of
    the three; it is required if ``root`` contains several.
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
                f"'{file}' is not one of Karpathy's files ({type(error).__name__}: {error})"
            ) from error
    folder = root
    if rows and "/" not in rows[0][1]:  # names of COCO include their folder
        folder = find_image_folder(root, rows[0][1])
    for image_id, name, split_name, captions in rows:
        if (split := parse_split(split_name)) is None:
            problems.add("no-split", f"{name}: {split_name!r:.80}")
        yield from problems.record(image_id, folder, name, captions, split or TRAIN)


def _row(image: Any) -> tuple[int | str, str, Any, list[str]]:
    """Id, name with its folder, split and captions of an image."""
    image_id = parse_id(image["cocoid"] if "cocoid" in image else image["imgid"])
    name = (Path(image.get("filepath", "")) / image["filename"]).as_posix()
    return image_id, name, image["split"], [s["raw"].strip() for s in image["sentences"]]
