"""Data sets as their authors distribute them → records.

Every reader takes the data set's root folder and lists all that is wrong with it in one error,
before anything is trained. An image file that exists but cannot be decoded is found later, when it
is read, and costs only itself.
"""

import csv
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record
from captioner.errors import DataError, unknown

_LOG = logging.getLogger(__name__)

# One eighth each for development and test where a data set comes without its own split: the
# proportions of Flickr8k (6,000 / 1,000 / 1,000).
_HELD_OUT = {0: TEST, 1: VAL}


def read(name: str, root: str | Path) -> list[Record]:
    """The records of data set ``name`` under ``root``, sorted by split and image id.

    Raises:
        DataError: unknown name, missing folder or files, broken JSON, duplicates, images without
            captions, an empty data set.
    """
    if name not in READERS:
        raise DataError(unknown("data set", name, READERS))
    root = Path(root).expanduser()
    if not root.is_dir():
        raise DataError(
            f"data.root {str(root)!r} is not a folder; expected the folder of a {name} data set: "
            f"{READERS[name].__doc__.splitlines()[0]}"  # type: ignore[union-attr]
        )
    records = READERS[name](root)
    if not records:
        raise DataError(f"no captioned image found under {str(root)!r} for data set {name!r}")
    return sorted(records, key=lambda r: (SPLITS.index(r.split), str(r.image_id).zfill(12)))


def read_flickr8k(root: Path) -> list[Record]:
    """An image folder beside Flickr8k.token.txt with Flickr_8k.*Images.txt, or beside captions.txt.

    Both the original archive (``Flicker8k_Dataset``, ``Flickr8k_text``) and the repackaged one
    (``Images``, ``captions.txt``) are understood, the text files in the root or in any folder under
    it. Without split lists an eighth of the images each is held out for ``val`` and ``test``, chosen
    by a hash of the file name.
    """
    images = _first(root, ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images"), "folder")
    token_file = _find(root, "Flickr8k.token.txt")
    if token_file is not None:
        captions = _token_captions(token_file)
    elif (token_file := _find(root, "captions.txt")) is not None:
        captions = _csv_captions(token_file)
    else:
        raise DataError(f"neither 'Flickr8k.token.txt' nor 'captions.txt' found under '{root}'")
    splits = {}
    for split, part in ((TRAIN, "train"), (VAL, "dev"), (TEST, "test")):
        if listing := _find(root, f"Flickr_8k.{part}Images.txt"):
            names = [name for name in _lines(listing) if name]
            if not names:
                raise DataError(f"'{listing}' is empty; expected one image name per line")
            splits[split] = names
    if not splits:
        splits = _own_split(captions)
    problems = _Problems(str(token_file))
    problems.add("listed twice in the split files", _duplicates(splits.values()))
    listed = [(split, name) for split, names in splits.items() for name in names]
    problems.add(
        "listed in a split but without captions", [n for _, n in listed if n not in captions]
    )
    return _records(
        ((name, images / name, captions.get(name, ()), split) for split, name in listed), problems
    )


def read_coco(root: Path) -> list[Record]:
    """A folder with annotations/captions_*.json and one image folder per JSON (train2014, val2014, …).

    The part of a file's name after ``captions_`` names its image folder, and its beginning the
    split. Years are not mixed: if both 2014 and 2017 are there, 2014 is taken. If only one split is
    there, an eighth of its images each is held out for ``val`` and ``test``, chosen by a hash of
    the file name.
    """
    files = sorted((root / "annotations").glob("captions_*.json"))
    files = [file for file in files if _coco_split(file) is not None]
    if not files:
        raise DataError(f"no 'annotations/captions_*.json' (train…, val…, test…) under '{root}'")
    years = {"".join(c for c in file.stem if c.isdigit()) for file in files}
    if {"2014", "2017"} <= years:
        _LOG.warning("'%s' holds captions of 2014 and of 2017; those of 2014 are taken", root)
        files = [file for file in files if file.stem.endswith("2014")]
    problems = _Problems(", ".join(f"'{file}'" for file in files))
    rows: list[tuple[int, Path, Sequence[str], str]] = []
    for file in files:
        folder = root / file.stem.removeprefix("captions_")
        if not folder.is_dir():
            raise DataError(f"'{file}' needs the image folder '{folder}', which does not exist")
        rows += _coco_rows(file, folder, _coco_split(file) or TRAIN, problems)
    problems.add("with an id used twice", _duplicates([[row[0] for row in rows]]))
    if len(files) == 1:
        own = _own_split([path.name for _, path, _, _ in rows])
        where = {name: split for split, names in own.items() for name in names}
        rows = [(i, path, captions, where[path.name]) for i, path, captions, _ in rows]
    return _records(rows, problems)


READERS: dict[str, Callable[[Path], list[Record]]] = {
    "flickr8k": read_flickr8k,
    "coco": read_coco,
}


class _Problems:
    """Collects what is wrong, kind by kind, to be told all at once in one line."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.kinds: list[str] = []

    def add(self, kind: str, items: Iterable[object]) -> None:
        found = [str(item) for item in items]
        if found:
            named = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
            self.kinds.append(f"{len(found):,} images {kind} ({named})")

    def check(self) -> None:
        if self.kinds:
            raise DataError(
                f"{self.source}: "
                + "; ".join(self.kinds)
                + "; repair the files or remove the entries"
            )


def _records(
    rows: Iterable[tuple[int | str, Path, Sequence[str], str]], problems: _Problems
) -> list[Record]:
    """Rows as records; an image without a file or without a caption is a problem."""
    records = [
        Record(image_id, str(path), tuple(captions), split)
        for image_id, path, captions, split in rows
    ]
    # One listing per folder instead of one stat per image: COCO has 120,000 of them.
    folders = {Path(record.path).parent for record in records}
    there = {str(file) for folder in folders if folder.is_dir() for file in folder.iterdir()}
    problems.add("that do not exist", [r.path for r in records if r.path not in there])
    problems.check()
    return records


def _token_captions(file: Path) -> dict[str, list[str]]:
    """``name.jpg#0<TAB>caption`` lines → captions by image name."""
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(_lines(file), 1):
        if not line:
            continue
        key, tab, caption = line.partition("\t")
        name, hash_sign, _ = key.rpartition("#")
        if not tab or not hash_sign:
            raise DataError(
                f"'{file}' line {number}: expected 'name.jpg#0<TAB>caption', got {line!r:.80}"
            )
        if _has_words(caption):
            captions.setdefault(name, []).append(caption.strip())
    return captions


def _csv_captions(file: Path) -> dict[str, list[str]]:
    """``image,caption`` rows under that header → captions by image name."""
    captions: dict[str, list[str]] = {}
    # Strict: a quotation mark that is never closed would swallow the lines after it.
    rows = csv.reader((line + "\n" for line in _lines(file)), strict=True)
    try:
        header = next(rows, [])
        if [column.strip() for column in header] != ["image", "caption"]:
            raise DataError(
                f"'{file}': expected the header 'image,caption', got {','.join(header)!r:.80}"
            )
        for row in filter(None, rows):
            if len(row) != 2:
                raise DataError(
                    f"'{file}' line {rows.line_num}: expected 'image,caption', got {row!r:.80}"
                )
            if _has_words(row[1]):
                captions.setdefault(row[0], []).append(row[1].strip())
    except csv.Error as error:
        raise DataError(
            f"'{file}' line {rows.line_num}: expected 'image,caption', quoted as CSV has it: {error}"
        ) from error
    return captions


def _coco_rows(
    file: Path, folder: Path, split: str, problems: _Problems
) -> list[tuple[int, Path, Sequence[str], str]]:
    content = _json(file)
    try:
        paths = [(image["id"], folder / image["file_name"]) for image in content["images"]]
        captions: dict[int, list[str]] = {image_id: [] for image_id, _ in paths}
        strays = []
        for annotation in content["annotations"]:
            image_id, caption = annotation["image_id"], annotation["caption"].strip()
            if image_id not in captions:
                strays.append(image_id)
            elif _has_words(caption):
                captions[image_id].append(caption)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"'{file}' is not a COCO captions file: expected images with id and file_name, and "
            f"annotations with image_id and caption ({type(error).__name__}: {error})"
        ) from error
    problems.add("captioned but missing from the list of images", dict.fromkeys(strays))
    problems.add("without captions", [path.name for i, path in paths if not captions[i]])
    return [(i, path, captions[i], split) for i, path in paths]


def _has_words(caption: str) -> bool:
    """Whether a caption says anything: of one like "..." a model would learn to say nothing."""
    return any(map(str.isalnum, caption))


def _coco_split(file: Path) -> str | None:
    name = file.stem.removeprefix("captions_")
    return next((split for split in SPLITS if name.startswith(split)), None)


def _own_split(names: Iterable[str]) -> dict[str, list[str]]:
    """A split that depends on each file's name alone, so that adding images moves no other."""
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name in names:
        eighth = hashlib.sha256(name.encode()).digest()[0] % 8
        splits[_HELD_OUT.get(eighth, TRAIN)].append(name)
    return splits


def _first(root: Path, names: Sequence[str], what: str) -> Path:
    for name in names:
        if (root / name).is_dir():
            return root / name
    raise DataError(f"no image {what} under '{root}'; expected one of: {', '.join(names)}")


def _find(root: Path, name: str) -> Path | None:
    return next(iter(sorted([*root.glob(name), *root.glob(f"*/{name}")])), None)


def _lines(file: Path) -> list[str]:
    try:
        # Not splitlines(): a caption may hold one of the rarer line separators of Unicode.
        return [line.strip() for line in file.read_text(encoding="utf-8-sig").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"'{file}' cannot be read as UTF-8 text: {error}") from error


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"'{file}' is not readable JSON: {error}") from error


def _duplicates(groups: Iterable[Iterable[Any]]) -> list[Any]:
    counts = Counter(item for group in groups for item in group)
    return [item for item, n in counts.items() if n > 1]
