"""Images and captions of the user: JSON lines, a CSV table with a header, or a folder.

Paths are relative to the file. The captions of an image may be in several lines.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any
from unicodedata import normalize

from captioner.data.readers.problems import Problems
from captioner.data.readers.text_files import (
    MALFORMED,
    hash_split,
    parse_json,
    parse_split,
    read_csv_rows,
    read_lines,
)
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError, UsageError
from captioner.photos import paths

Row = tuple[str, list[str], str | None]  # image, captions, split

# The names of columns here, in Hugging Face's metadata and in Flickr30k; the first that exists counts.
_IMAGE = ("image", "file_name", "image_name")
_CAPTION = ("captions?", "text", "comment")  # also caption_1, caption_2, …


def read_jsonl(root: Path, problems: Problems) -> Iterator[Record]:
    """A .jsonl file, or a folder with one: {"image": …, "caption" or "captions": …} on each line.

    If no line has a ``split``, images are split by a hash of their paths. Other keys are ignored.
    """
    return _read(root, "jsonl", problems)


def read_csv(root: Path, problems: Problems) -> Iterator[Record]:
    """A .csv file, or a folder that holds one, with the header ``image,caption[,split]``.

    Several captions of an image are several rows, or columns ``caption_1``, ``caption_2``, …. If every
    ``split`` is empty, images are split by a hash of their paths. Other columns are ignored.
    """
    return _read(root, "csv", problems)


def csv_rows(file: Path, problems: Problems) -> Iterator[Row]:
    """The rows of a CSV table; DataError if its header does not fit."""
    rows = read_csv_rows(file)
    header = [column.strip().lower() for column in next(rows, (0, []))[1]]
    image = next((header.index(name) for name in _IMAGE if name in header), None)
    captions: list[int] = []
    for name in _CAPTION:
        column = re.compile(rf"{name}([ _-]?\d+)?")
        captions = captions or [i for i, found in enumerate(header) if column.fullmatch(found)]
    if header and (image is None or not captions):
        raise DataError(
            f"'{file}': expected a header with image and caption, got {','.join(header)!r:.80}"
        )
    for number, row in rows:
        if len(row) != len(header):
            problems.bad_line(file, number, ",".join(header), row)
        else:
            assert image is not None
            split = row[header.index("split")] if "split" in header else None
            yield row[image], [row[i] for i in captions if row[i].strip()], split or None


def check_table(file: Path) -> None:
    """Raise DataError unless a CSV or .jsonl file begins as a table of captions."""
    problems = Problems()
    rows = _jsonl_rows if file.suffix == ".jsonl" else csv_rows
    if next(rows(file, problems), None) is None:
        lines = problems.found.get("line", [f"'{file}': expected captions, found nothing"])
        raise DataError(lines[0])


def _jsonl_rows(file: Path, problems: Problems) -> Iterator[Row]:
    for number, line in enumerate(read_lines(file), 1):
        if not line:
            continue
        try:
            row = parse_json(line)
            image: Any = next((row[name] for name in _IMAGE if name in row), None)
            names = ("captions", "caption", "text")
            found: Any = next((row[name] for name in names if name in row), [])
            captions = [found] if isinstance(found, str) else list(found)
            if not all(isinstance(text, str) for text in (image, *captions)):
                raise TypeError("image and captions must be text")
            split = None if row.get("split") is None else str(row["split"])
        except MALFORMED:
            problems.bad_line(file, number, '{"image": "a.jpg", "caption": "…"}', line)
        else:
            yield image, captions, split


def _read(root: Path, suffix: str, problems: Problems) -> Iterator[Record]:
    """Collect the rows of each image."""
    files, folder = [root], root.parent
    if not root.is_file():
        # Hugging Face's data sets may have a table in the folder of each split.
        in_splits, folder = sorted(root.glob(f"*/metadata.{suffix}")), root
        files = sorted(root.glob(f"*.{suffix}")) or in_splits
        if (files != in_splits and len(files) != 1) or not files:
            names = ", ".join(file.name for file in files[:3]) or "none"
            raise DataError(
                f"expected one .{suffix} file in '{root}', found {names}; give --data.root FILE"
            )
    problems.sources += files
    captions: dict[str, list[str]] = defaultdict(list)
    splits: dict[str, set[str | None]] = defaultdict(set)
    rows = csv_rows if suffix == "csv" else _jsonl_rows
    with problems.collect_file_errors():
        for file in files:
            part = "" if file.parent == folder else file.parent.name
            for written, texts, split in rows(file, problems):
                name = PurePath(part, written.strip()).as_posix()
                captions[name] += texts
                splits[name].add(split.strip().lower() if split else parse_split(part))
    by_hash = all(given == {None} for given in splits.values())
    for name, texts in captions.items():
        found = [hash_split(name)] if by_hash else list(set(map(parse_split, splits[name])))
        if len(found) > 1 or found[0] is None:
            given = sorted("none" if s is None else repr(s) for s in splits[name])
            problems.add("no-split", f"{name}: {', '.join(given)}")
        yield from problems.record(name, folder, name, texts, found[0] or TRAIN)


def read_folder(root: Path, problems: Problems) -> Iterator[Record]:
    """Images in this folder and below, each beside a .txt of the same name with one caption per line.

    The text of photo.jpg is photo.jpg.txt or photo.txt. If folders at the top are named after splits
    (``train``, ``val`` or ``dev``, ``test``), every image must be in one of them. Otherwise images are
    split by a hash of their paths. Hidden files are ignored.
    """
    try:
        images = [file.relative_to(root) for file in paths.find([root])]
    except UsageError:  # no image
        return
    problems.sources.append(root)
    by_hash = not any(parse_split(name.parts[0]) for name in images if len(name.parts) > 1)
    # Names are compared in NFC, because macOS decomposes accented letters.
    texts = {normalize("NFC", str(f.relative_to(root))): f for f in paths.walk(root, (".txt",))}
    images_of: dict[str, list[Path]] = defaultdict(list)
    for name in images:
        long, short = (normalize("NFC", f"{part}.txt") for part in (name, name.with_suffix("")))
        images_of[long if long in texts else short].append(name)
    for text, names in images_of.items():
        if len(names) > 1 and text in texts:
            problems.add("shared-text", f"{text}: {', '.join(map(str, names))}")
            continue
        captions: list[str] = []
        with problems.collect_file_errors("text"):
            captions = read_lines(texts[text]) if text in texts else []
        for name in names:
            split = hash_split(name.as_posix()) if by_hash else parse_split(name.parts[0])
            if split is None:
                problems.add("no-split", name)
            lines = filter(None, captions)
            yield from problems.record(name.as_posix(), root, str(name), lines, split or TRAIN)
    problems.add("no-image", *(text for text in texts if text not in images_of))
