"""Images and captions of the user: JSON lines, a CSV table with a header, or a folder.

Paths are relative to the file. The captions of an image may be in several lines.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePath

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

_CAPTION_COLUMN = re.compile(r"captions?([ _-]?\d+)?")  # caption, caption_1, caption_2, …
_FLICKR30K = [
    "image_name",
    "comment_number",
    "comment",
]  # a header that means image, number, caption


def read_jsonl(root: Path, problems: Problems) -> Iterator[Record]:
    """A .jsonl file, or a folder with one: {"image": …, "caption" or "captions": …} on each line.

    ``caption`` and ``captions`` are one text or a list of texts. If no line has a ``split``, images are
    split by a hash of their paths. Other keys are ignored.
    """
    return _read(root, "jsonl", problems)


def read_csv(root: Path, problems: Problems) -> Iterator[Record]:
    """A .csv file, or a folder that holds one, with the header ``image,caption[,split]``.

    Several captions of an image are several rows, or columns ``caption_1``, ``caption_2``, …. An image
    whose captions are all empty is left out. If every ``split`` is empty, images are split by a hash of
    their paths. Other columns are ignored.
    """
    return _read(root, "csv", problems)


def csv_rows(file: Path, problems: Problems) -> Iterator[Row]:
    """The rows of a CSV table; DataError if its header does not fit."""
    rows = read_csv_rows(file)
    names = [column.strip().lower() for column in next(rows, (0, []))[1]]
    header = ["image", "number", "caption"] if names == _FLICKR30K else names
    columns = [i for i, column in enumerate(header) if _CAPTION_COLUMN.fullmatch(column)]
    if header and ("image" not in header or not columns):
        raise DataError(
            f"'{file}': expected a header with image and caption, got {','.join(names)!r:.80}"
        )
    for number, row in rows:
        if len(row) != len(header):
            problems.bad_line(file, number, ",".join(names), row)
        else:
            split = row[header.index("split")] if "split" in header else None
            captions = [row[i] for i in columns if row[i].strip()]
            yield row[header.index("image")], captions, split or None


def check_table(file: Path) -> None:
    """Raise DataError unless a .csv or .jsonl file begins as a table of captions."""
    problems = Problems()
    rows = csv_rows if file.suffix == ".csv" else _jsonl_rows
    if next(rows(file, problems), None) is None:
        lines = problems.found.get("line", [f"'{file}': expected captions, found nothing"])
        raise DataError(lines[0])


def _jsonl_rows(file: Path, problems: Problems) -> Iterator[Row]:
    for number, line in enumerate(read_lines(file), 1):
        if not line:
            continue
        try:
            row = parse_json(line)
            found = row.get("captions", row.get("caption", []))
            captions = [found] if isinstance(found, str) else list(found)
            if not all(isinstance(text, str) for text in (row["image"], *captions)):
                raise TypeError("image and captions must be text")
            split = None if row.get("split") is None else str(row["split"])
        except MALFORMED:
            problems.bad_line(file, number, '{"image": "a.jpg", "caption": "…"}', line)
        else:
            yield row["image"], captions, split


def _read(root: Path, suffix: str, problems: Problems) -> Iterator[Record]:
    """Collect the rows of each image."""
    file = root
    if not root.is_file():
        files = sorted(root.glob(f"*.{suffix}"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files[:3]) or "none"
            raise DataError(
                f"expected one .{suffix} file in '{root}', found {names}; give the file itself with "
                "--data.root FILE"
            )
        file = files[0]
    problems.sources.append(file)
    captions: dict[str, list[str]] = defaultdict(list)
    splits: dict[str, set[str | None]] = defaultdict(set)
    rows = csv_rows if suffix == "csv" else _jsonl_rows
    with problems.collect_file_errors():
        for name, texts, split in rows(file, problems):
            name = PurePath(name.strip()).as_posix()
            captions[name] += texts
            splits[name].add(split and split.strip().lower())
    by_hash = all(given == {None} for given in splits.values())
    for name, texts in captions.items():
        if suffix == "csv" and not texts:  # a person has removed its caption
            problems.add("left-out", name)
            continue
        found = [hash_split(name)] if by_hash else list(set(map(parse_split, splits[name])))
        if len(found) > 1 or found[0] is None:
            given = sorted("none" if s is None else repr(s) for s in splits[name])
            problems.add("no-split", f"{name}: {', '.join(given)}")
        # If the name is an absolute path, / ignores the folder.
        yield problems.record(name, file.parent / name, name, texts, found[0] or TRAIN)


def read_folder(root: Path, problems: Problems) -> Iterator[Record]:
    """Images in this folder and below, each beside a .txt of the same name with one caption per line.

    If folders at the top are named after splits (``train``, ``val`` or ``dev``, ``test``), every image
    must be in one of them. Otherwise images are split by a hash of their paths. Hidden files are
    ignored.
    """
    try:
        files = {file: file.relative_to(root) for file in paths.find([root])}
    except UsageError:  # no image
        return
    problems.sources.append(root)
    if not any(file.with_suffix(".txt").is_file() for file in files):
        for table in sorted([*root.glob("*.csv"), *root.glob("*.jsonl")]):
            problems.add(
                "file",
                f"'{table}' is not read, because data.name folder reads a .txt file beside each photo: "
                f"give data.name {table.suffix[1:]}, or auto",
            )
    by_hash = not any(parse_split(name.parts[0]) for name in files.values() if len(name.parts) > 1)
    for file, name in files.items():
        split = hash_split(name.as_posix()) if by_hash else parse_split(name.parts[0])
        if split is None:
            problems.add("no-split", name)
        text = file.with_suffix(".txt")
        captions: list[str] = []
        with problems.collect_file_errors():
            captions = [line for line in read_lines(text) if line] if text.is_file() else []
        yield problems.record(name.as_posix(), file, name, captions, split or TRAIN)
    known = {name.with_suffix(".txt") for name in files.values()}
    texts = (text.relative_to(root) for text in paths.walk(root, (".txt",)))
    problems.add("no-image", *(text for text in texts if text not in known))
