"""COCO captions as downloaded (Lin et al. 2014, https://cocodataset.org).

annotations/captions_train2014.json    {"images": [{"id", "file_name", …}],
annotations/captions_val2014.json       "annotations": [{"image_id", "caption", …}]}
train2014/ val2014/                    or images/train2014/ …
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from captioner.data.readers import splits
from captioner.data.readers.files import as_id, read_json, said
from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, Record
from captioner.errors import DataError

YEARS = ("2014", "2017")


def read_coco(root: Path, problems: Problems, year: str = "") -> Iterator[Record]:
    """A folder with annotations/captions_*.json and one image folder per JSON (train2014, val2014, …).

    The part of a file's name after ``captions_`` names its image folder, and its beginning the split.
    If only one split is there, an eighth of its images each is held out for ``val`` and ``test``.

    Args:
        root: the folder.
        problems: what is wrong with single files and images.
        year: ``2014`` or ``2017``; without it, where both are there, 2014. They are never mixed:
            they are the same photographs, split differently.
    """
    files = {
        file: split
        for file in sorted((root / "annotations").glob("captions_*.json"))
        if (split := _split(file)) is not None
    }
    years = [y for y in YEARS if any(file.stem.endswith(y) for file in files)]
    if year or len(years) > 1:
        files = {f: split for f, split in files.items() if f.stem.endswith(year or years[0])}
    if not files:
        there = f"; there are those of {' and '.join(years)}" if years else ""
        raise DataError(
            f"no 'annotations/captions_*{year}.json' (train…, val…, test…) under '{root}'{there}"
        )
    problems.sources += files
    for file, split in files.items():
        yield from _read(root, file, split if len(files) > 1 else None, problems)


def _read(root: Path, file: Path, split: str | None, problems: Problems) -> Iterator[Record]:
    """The images of one file; without a split, in our own."""
    part = file.stem.removeprefix("captions_")
    folder = next((f for f in (root / part, root / "images" / part) if f.is_dir()), root / part)
    if not folder.is_dir():
        problem = f"'{file}' needs the image folder '{folder}', which does not exist"
        problems.add("file", [problem])
        return
    try:
        names, captions = _contents(file)
    except DataError as error:
        problems.add("file", [error])
        return
    known = {image_id for image_id, _ in names}
    problems.add("no-image", (image_id for image_id in captions if image_id not in known))
    for image_id, name in names:
        found = tuple(said(captions.get(image_id, ()), name, problems))
        if not found:
            problems.add("no-captions", [name])
        yield Record(image_id, str(folder / name), found, split or splits.own(name))


def _contents(file: Path) -> tuple[list[tuple[int | str, str]], dict[int | str, list[str]]]:
    """Ids and names of the images; captions by id."""
    content = read_json(file)
    try:
        names = [(as_id(image["id"]), str(Path(image["file_name"]))) for image in content["images"]]
        captions: dict[int | str, list[str]] = {}
        for annotation in content["annotations"]:
            captions.setdefault(as_id(annotation["image_id"]), []).append(
                annotation["caption"].strip()
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{file}' is not a COCO captions file: expected images with id and file_name, and "
            f"annotations with image_id and caption ({type(error).__name__}: {error})"
        ) from error
    return names, captions


def _split(file: Path) -> str | None:
    name = file.stem.removeprefix("captions_")
    return next((split for split in SPLITS if name.startswith(split)), None)


read_coco2014 = partial(read_coco, year="2014")
read_coco2017 = partial(read_coco, year="2017")
