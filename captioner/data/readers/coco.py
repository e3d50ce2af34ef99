"""COCO captions as downloaded (Lin et al. 2014, https://cocodataset.org); see docs/data.md."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.data.readers.files import MALFORMED, hash_split, parse_id, read_json
from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, Record
from captioner.errors import DataError

YEARS = ("2014", "2017")
_PREFIX = "captions_"


def read_coco(root: Path, problems: Problems, year: str = "") -> Iterator[Record]:
    """A folder with annotations/captions_*.json and one image folder per JSON (train2014, val2014, …).

    The part of a file's name after ``captions_`` is the name of its image folder and begins with the
    split. If there is only one split, it is split by hash.
    ``year`` is ``2014`` or ``2017``; by default it is 2014 if both exist. The years are never mixed,
    because they are different splits of the same photos.
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
        others = f"; there are those of {' and '.join(years)}" if years else ""
        raise DataError(
            f"no 'annotations/captions_*{year}.json' (train…, val…, test…) under '{root}'{others}"
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
    try:
        names, captions = parse_captions(content)
    except MALFORMED as error:
        raise DataError(
            f"'{file}' is not a COCO captions file: expected images with id and file_name, and "
            f"annotations with image_id and caption ({type(error).__name__}: {error})"
        ) from error
    known = {image_id for image_id, _ in names}
    problems.add("no-image", *(image_id for image_id in captions if image_id not in known))
    for image_id, name in names:
        yield problems.record(
            image_id, folder / name, name, captions.get(image_id, ()), split or hash_split(name)
        )


def parse_captions(content: Any) -> tuple[list[tuple[int | str, str]], dict[int | str, list[str]]]:
    """The (id, file name) of every image, and the captions by image id; raises one of MALFORMED."""
    names = [(parse_id(image["id"]), str(Path(image["file_name"]))) for image in content["images"]]
    captions: dict[int | str, list[str]] = defaultdict(list)
    for annotation in content["annotations"]:
        captions[parse_id(annotation["image_id"])].append(annotation["caption"].strip())
    return names, captions
