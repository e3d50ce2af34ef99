"""Flickr8k (Hodosh, Young, Hockenmaier 2013) and Flickr30k (Young et al. 2014) as distributed.

Flickr8k.token.txt, results_20130124.token   1000268201_693b08cb0e.jpg#0<TAB>A child …
results.csv                                  image_name| comment_number| comment
captions.txt                                 image,caption or image_name,comment_number,comment
Flickr_8k.trainImages.txt; train.txt         one image a line; Flickr30k's without .jpg
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath

from captioner import paths
from captioner.data.readers import splits
from captioner.data.readers.files import find, image_folder, lines, said
from captioner.data.readers.problems import Problems
from captioner.data.records import TEST, TRAIN, VAL, Record
from captioner.errors import DataError

FOLDERS_8K = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")
FOLDERS_30K = ("flickr30k-images", "flickr30k_images", "Images", "images")

Captions = dict[str, list[str]]  # by image name
Form = Callable[[Path, Problems], Iterable[tuple[str, str]]]

# A row that lost the separator between its number and its caption, as one of results.csv has.
_MERGED = re.compile(r"\s*\d+\s+(\S.*)")


def read_flickr8k(root: Path, problems: Problems) -> Iterator[Record]:
    """An image folder beside Flickr8k.token.txt with Flickr_8k.*Images.txt, or beside captions.txt.

    Both the original archive (``Flicker8k_Dataset``, ``Flickr8k_text``) and the repackaged one
    (``Images``, ``captions.txt``) are understood, the text files in the root or in any folder under
    it. Without split lists an eighth of the images each is held out for ``val`` and ``test``, chosen
    by a hash of the file name.
    """
    captions = _captions(
        root, {"Flickr8k.token.txt": _token_file, "captions.txt": _comma_file}, problems
    )
    parts = {TRAIN: "train", VAL: "dev", TEST: "test"}
    lists = {s: find(root, f"Flickr_8k.{part}Images.txt") for s, part in parts.items()}
    yield from _records(root, FOLDERS_8K, captions, lists, problems)


def read_flickr30k(root: Path, problems: Problems) -> Iterator[Record]:
    """An image folder beside results_20130124.token, results.csv or captions.txt.

    ``flickr30k-images`` with the token file is the original, ``flickr30k_images`` with ``results.csv``
    the one that Kaggle repackages. The set has no split of its own: the lists ``train.txt``,
    ``val.txt`` and ``test.txt`` of Flickr30k Entities are taken if they are there, else a hash of the
    file name; the split of the papers is Karpathy's.
    """
    captions = _captions(
        root,
        {
            "results_20130124.token": _token_file,
            "results.csv": _bar_file,
            "captions.txt": _comma_file,
        },
        problems,
    )
    lists = {split: find(root, f"{split}.txt") for split in (TRAIN, VAL, TEST)}
    yield from _records(root, FOLDERS_30K, captions, lists, problems)


def _captions(
    root: Path,
    forms: dict[str, Callable[[Path, Problems], Iterable[tuple[str, str]]]],
    problems: Problems,
) -> Captions:
    """The captions of the first of these files that is there."""
    for name, read in forms.items():
        if file := find(root, name):
            problems.sources.append(file)
            captions: Captions = {}
            try:
                for image, caption in read(file, problems):
                    captions.setdefault(image, []).append(caption)
            except DataError as error:
                problems.add("file", [error])
            return captions
    *others, last = (f"'{name}'" for name in forms)
    raise DataError(f"neither {', '.join(others)} nor {last} found under '{root}'")


def _records(
    root: Path,
    folders: tuple[str, ...],
    captions: Captions,
    lists: dict[str, Path | None],
    problems: Problems,
) -> Iterator[Record]:
    if not captions:
        return
    if any(lists.values()):
        split_of = _listed({s: file for s, file in lists.items() if file}, captions, problems)
    else:
        # The original Flickr8k captions "….jpg.1", a file that nobody has.
        names = [n for n in captions if PurePath(n).suffix.lower() in paths.SUFFIXES]
        split_of = {name: splits.own(name) for name in names}
    folder = image_folder(root, folders, next(iter(split_of), ""))
    for name, split in split_of.items():
        found = tuple(said(captions.get(name, ()), name, problems))
        if not found:
            kind = "not-captioned" if any(lists.values()) else "no-captions"
            problems.add(kind, [name])
        yield Record(name, str(folder / name), found, split)


def _listed(lists: dict[str, Path], captions: Captions, problems: Problems) -> dict[str, str]:
    """The split of every listed image."""
    listed: list[tuple[str, str]] = []
    for split, file in lists.items():
        try:
            names = [name for name in lines(file) if name]
        except DataError as error:
            problems.add("file", [error])
            continue
        if not names:
            problems.add("file", [f"'{file}' is empty; expected one image name per line"])
        listed += [
            (name if name in captions or PurePath(name).suffix else f"{name}.jpg", split)
            for name in names
        ]
    problems.add(
        "duplicate-split", [n for n, count in Counter(n for n, _ in listed).items() if count > 1]
    )
    split_of: dict[str, str] = {}
    for name, split in listed:
        split_of.setdefault(name, split)
    return split_of


def _token_file(file: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """``name.jpg#0<TAB>caption`` lines."""
    for number, line in enumerate(lines(file), 1):
        if not line:
            continue
        key, tab, caption = line.partition("\t")
        name, hash_sign, _ = key.rpartition("#")
        if tab and hash_sign:
            yield name, caption
        else:
            _bad_line(problems, file, number, "name.jpg#0<TAB>caption", line)


def _bar_file(file: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """``image_name| comment_number| comment`` rows under that header; nothing is quoted."""
    expected = "image_name| comment_number| comment"
    header, *rows = lines(file)
    if [column.strip() for column in header.split("|")] != expected.split("| "):
        raise DataError(f"'{file}': expected the header '{expected}', got {header!r:.80}")
    for number, line in enumerate(rows, 2):
        if line:
            caption = _numbered(line.split("|", 2))
            if caption is None:
                _bad_line(problems, file, number, expected, line)
            else:
                yield line.partition("|")[0].strip(), caption


def _comma_file(file: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """``image,caption`` or ``image_name,comment_number,comment`` rows, quoted as CSV has it."""
    # Strict: a quotation mark that is never closed would swallow the lines after it.
    rows = csv.reader((line + "\n" for line in lines(file)), strict=True, skipinitialspace=True)
    forms = (["image", "caption"], ["image_name", "comment_number", "comment"])
    try:
        header = [column.strip() for column in next(rows, [])]
        if header not in forms:
            raise DataError(
                f"'{file}': expected the header 'image,caption', got {','.join(header)!r:.80}"
            )
        for row in filter(None, rows):
            numbered = len(header) == 3
            caption = _numbered(row) if numbered else row[-1] if len(row) == 2 else None
            if caption is None:
                _bad_line(problems, file, rows.line_num, ",".join(header), row)
            else:
                yield row[0], caption
    except csv.Error as error:
        raise DataError(
            f"'{file}' line {rows.line_num}: expected 'image,caption', quoted as CSV has it: {error}"
        ) from error


def _numbered(row: list[str]) -> str | None:
    """The caption of a name, a number and a caption; None if it has none."""
    if len(row) == 3 and row[2].strip():
        return row[2]
    merged = _MERGED.fullmatch(row[1]) if len(row) > 1 else None
    return merged[1] if merged else None


def _bad_line(problems: Problems, file: Path, number: int, expected: str, line: object) -> None:
    problems.add("line", [f"'{file}' line {number}: expected '{expected}', got {line!r:.80}"])
