"""Flickr8k (Hodosh, Young, Hockenmaier 2013) and Flickr30k (Young et al. 2014) as distributed."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from captioner.data.readers.problems import Problems
from captioner.data.readers.tables import csv_rows
from captioner.data.readers.text_files import find_file, find_image_folder, hash_split, read_lines
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record
from captioner.errors import DataError
from captioner.photos import paths

Captions = dict[str, list[str]]  # by image name

BAR_HEADER = "image_name| comment_number| comment"
"""The header of results.csv, which has no quotes."""
_TOKEN_LINE = re.compile(r"([^\t]*)#[^\t]*\t(.*)")
# One row of results.csv lacks the second bar.
_BAR_LINE = re.compile(r"([^|]+)\|\s*\d+(?:\s*\|\s*|\s+)(\S.*)")


def read_flickr8k(root: Path, problems: Problems) -> Iterator[Record]:
    """An image folder beside Flickr8k.token.txt with Flickr_8k.*Images.txt, or beside captions.txt."""
    parts = {TRAIN: "train", VAL: "dev", TEST: "test"}
    lists = {split: f"Flickr_8k.{part}Images.txt" for split, part in parts.items()}
    return _read(root, ("Flickr8k.token.txt", "captions.txt"), lists, problems)


def read_flickr30k(root: Path, problems: Problems) -> Iterator[Record]:
    """An image folder beside results_20130124.token, results.csv or captions.txt.

    The data set has no splits. The lists ``train.txt``, ``val.txt`` and ``test.txt`` of Flickr30k
    Entities are used if they exist, otherwise a hash of the names.
    """
    texts = ("results_20130124.token", "results.csv", "captions.txt")
    return _read(root, texts, {split: f"{split}.txt" for split in SPLITS}, problems)


def _read(
    root: Path, texts: tuple[str, ...], lists: Mapping[str, str], problems: Problems
) -> Iterator[Record]:
    """Read the first of the caption files ``texts`` that exists, and the lists of the splits."""
    file = find_file(root, *texts)
    if file is None:
        *others, last = (f"'{name}'" for name in texts)
        raise DataError(f"neither {', '.join(others)} nor {last} found under '{root}'")
    problems.sources.append(file)
    captions: Captions = defaultdict(list)
    with problems.collect_file_errors():
        for name, texts_of_image in _captions(file, problems):
            captions[name] += texts_of_image
    if not captions:
        return
    list_files = {split: f for split, name in lists.items() if (f := find_file(root, name))}
    if list_files:
        split_of = _read_lists(list_files, captions, problems)
    else:
        # Flickr8k has captions of "….jpg.1", a file that does not exist.
        images = (name for name in captions if PurePath(name).suffix.lower() in paths.SUFFIXES)
        split_of = {name: hash_split(name) for name in images}
    folder = find_image_folder(root, next(iter(split_of), ""))
    for name, split in split_of.items():
        yield from problems.record(name, folder, name, captions.get(name, ()), split)


def _captions(file: Path, problems: Problems) -> Iterator[tuple[str, list[str]]]:
    """The image and the captions of every line."""
    if file.name == "captions.txt":
        yield from ((name.strip(), texts) for name, texts, _ in csv_rows(file, problems))
        return
    pattern, expected = _TOKEN_LINE, "name.jpg#0<TAB>caption"
    if file.suffix == ".csv":
        pattern, expected = _BAR_LINE, BAR_HEADER
    for number, line in enumerate(read_lines(file), 1):
        if match := pattern.fullmatch(line):
            yield match[1].strip(), [match[2]]
        elif line and line != BAR_HEADER:
            problems.bad_line(file, number, expected, line)


def _read_lists(
    files: Mapping[str, Path], captions: Captions, problems: Problems
) -> dict[str, str]:
    """The split of every listed image."""
    split_of: dict[str, str] = {}
    for split, file in files.items():
        with problems.collect_file_errors():
            for name in filter(None, read_lines(file)):
                if name not in captions and not PurePath(name).suffix:
                    name += ".jpg"
                if split_of.setdefault(name, split) != split:
                    problems.add("duplicate-split", name)
    return split_of
