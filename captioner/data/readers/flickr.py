"""Flickr8k (Hodosh, Young, Hockenmaier 2013) and Flickr30k (Young et al. 2014) as distributed.

docs/data.md shows the files of both.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from captioner import paths
from captioner.data.readers.files import (
    find_file,
    find_image_folder,
    hash_split,
    read_csv_rows,
    read_lines,
)
from captioner.data.readers.problems import Problems
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record
from captioner.errors import DataError

Captions = dict[str, list[str]]  # by image name

# The rest of a row without a separator between number and caption; results.csv has one such row.
_MERGED = re.compile(r"\s*\d+\s+(\S.*)")


def read_flickr8k(root: Path, problems: Problems) -> Iterator[Record]:
    """An image folder beside Flickr8k.token.txt with Flickr_8k.*Images.txt, or beside captions.txt.

    The first is the original archive, the second the repackaged one. Without split lists, images are
    split by a hash of their names.
    """
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
    captions: Captions = defaultdict(list)
    file = find_file(root, *texts)
    if file is None:
        *others, last = (f"'{name}'" for name in texts)
        raise DataError(f"neither {', '.join(others)} nor {last} found under '{root}'")
    problems.sources.append(file)
    read = _read_tokens if "token" in file.name else _read_table
    with problems.collect_file_errors():
        for name, caption in read(file, problems):
            captions[name].append(caption)
    if not captions:
        return
    list_files = {split: f for split, name in lists.items() if (f := find_file(root, name))}
    if list_files:
        split_of = _read_lists(list_files, captions, problems)
    else:
        # Flickr8k has captions of "….jpg.1", a file that does not exist.
        names = [name for name in captions if PurePath(name).suffix.lower() in paths.SUFFIXES]
        split_of = {name: hash_split(name) for name in names}
    folder = find_image_folder(root, next(iter(split_of), ""))
    kind = "not-captioned" if list_files else "no-captions"
    for name, split in split_of.items():
        yield problems.record(name, folder / name, name, captions.get(name, ()), split, kind)


def _read_lists(
    files: Mapping[str, Path], captions: Captions, problems: Problems
) -> dict[str, str]:
    """The split of every listed image."""
    split_of: dict[str, str] = {}
    twice: dict[str, None] = {}
    for split, file in files.items():
        with problems.collect_file_errors():
            names = [name for name in read_lines(file) if name]
            if not names:
                raise DataError(f"'{file}' is empty; expected one image name per line")
            for name in names:
                if name not in captions and not PurePath(name).suffix:
                    name += ".jpg"
                if name in split_of:
                    twice[name] = None
                split_of.setdefault(name, split)
    problems.add("duplicate-split", *twice)
    return split_of


def _read_tokens(file: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """The name and the caption of ``name.jpg#0<TAB>caption`` lines."""
    for number, line in enumerate(read_lines(file), 1):
        key, tab, caption = line.partition("\t")
        name, hash_sign, _ = key.rpartition("#")
        if tab and hash_sign:
            yield name, caption
        elif line:
            problems.bad_line(file, number, "name.jpg#0<TAB>caption", line)


def _read_table(file: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """The name and the caption of rows with the columns image and caption, or also their number.

    captions.txt is CSV; results.csv separates the columns by bars and has no quotes.
    """
    separator, headers = ",", [["image", "caption"], ["image_name", "comment_number", "comment"]]
    rows = read_csv_rows(file)
    if file.suffix == ".csv":
        separator, headers = "| ", headers[1:]
        lines = enumerate(read_lines(file), 1)
        rows = ((number, line.split("|", 2)) for number, line in lines if line)
    header = [column.strip() for column in next(rows, (0, []))[1]]
    if header not in headers:
        expected, found = separator.join(headers[0]), separator.join(header)
        raise DataError(f"'{file}': expected the header '{expected}', got {found!r:.80}")
    for number, row in rows:
        caption = _caption(row, len(header))
        if caption is None:
            problems.bad_line(file, number, separator.join(header), row)
        else:
            yield row[0].strip(), caption


def _caption(row: list[str], columns: int) -> str | None:
    """The caption of a row of name, number and caption, or of name and caption; None without one."""
    if len(row) == columns and (columns == 2 or row[2].strip()):
        return row[-1]
    merged = _MERGED.fullmatch(row[1]) if columns == 3 and len(row) > 1 else None
    return merged[1] if merged else None
