"""Image-caption pairs of one's own: JSON lines, or a table with a header.

    {"image": "photos/1.jpg", "captions": ["a dog", "a brown dog"], "split": "train"}
    {"image": "photos/2.jpg", "caption": "two cats"}

    image,caption,split
    photos/1.jpg,a dog,train
    photos/1.jpg,a brown dog,train

Paths are relative to the file. All captions of an image are put together, wherever they stand.
"""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from captioner.data.readers import splits
from captioner.data.readers.files import lines, said
from captioner.data.readers.problems import Problems
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError

_CAPTION = re.compile(r"captions?([ _-]?\d+)?")  # caption, caption_1, caption_2, …


def read_jsonl(root: Path, problems: Problems) -> Iterator[Record]:
    """A .jsonl file, or a folder that holds one: {"image": …, "caption" or "captions": …} a line.

    ``caption`` and ``captions`` are one text or a list of them; ``split`` may be left out by all
    images, which are then split by a hash of their paths. Other keys are not looked at.
    """
    file = _table(root, "jsonl")
    table = _Table(file, problems)
    for number, line in enumerate(table.lines(), 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            found = row.get("captions", row.get("caption", []))
            captions = [found] if isinstance(found, str) else list(found)
            if not isinstance(row["image"], str) or not all(isinstance(c, str) for c in captions):
                raise TypeError("image and captions must be text")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            table.refuse(number, '{"image": "a.jpg", "caption": "…"}', line)
        else:
            table.add(row["image"], captions, row.get("split"))
    yield from table.records()


def read_csv(root: Path, problems: Problems) -> Iterator[Record]:
    """A .csv file, or a folder that holds one, with the header ``image,caption[,split]``.

    Several captions of an image are several rows, or columns ``caption_1``, ``caption_2``, …; other
    columns are not looked at. A ``split`` that is empty everywhere counts as none.
    """
    file = _table(root, "csv")
    table = _Table(file, problems)
    # Strict: a quotation mark that is never closed would swallow the lines after it.
    rows = csv.reader((line + "\n" for line in table.lines()), strict=True, skipinitialspace=True)
    try:
        header = [column.strip().lower() for column in next(rows, [])]
        captions = [i for i, column in enumerate(header) if _CAPTION.fullmatch(column)]
        if header and ("image" not in header or not captions):
            problem = (
                f"'{file}': expected a header with image and caption, got {','.join(header)!r:.80}"
            )
            problems.add("file", [problem])
            return
        for row in filter(None, rows):
            if len(row) != len(header):
                table.refuse(rows.line_num, ",".join(header), row)
            else:
                split = row[header.index("split")] if "split" in header else None
                given = [row[i] for i in captions if row[i].strip()]
                table.add(row[header.index("image")], given, split or None)
    except csv.Error as error:
        problem = f"'{file}' line {rows.line_num}: expected rows quoted as CSV has it: {error}"
        problems.add("file", [problem])
    yield from table.records()


@dataclass
class _Entry:
    """What a table says of one image."""

    captions: list[str] = field(default_factory=list)
    splits: set[object] = field(default_factory=set)


@dataclass
class _Table:
    """Rows of a file, put together by image."""

    file: Path
    problems: Problems
    images: dict[str, _Entry] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The file's lines; none, and a problem, if it cannot be read."""
        self.problems.sources.append(self.file)
        try:
            return lines(self.file)
        except DataError as error:
            self.problems.add("file", [error])
            return []

    def refuse(self, number: int, expected: str, line: object) -> None:
        self.problems.add(
            "line", [f"'{self.file}' line {number}: expected '{expected}', got {line!r:.80}"]
        )

    def add(self, image: str, captions: list[str], split: Any) -> None:
        entry = self.images.setdefault(PurePath(image.strip()).as_posix(), _Entry())
        entry.captions += captions
        entry.splits.add(str(split).strip().lower() if split is not None else None)

    def records(self) -> Iterator[Record]:
        """The images; split by a hash of their paths if no row names a split."""
        own = all(entry.splits == {None} for entry in self.images.values())
        for name, entry in self.images.items():
            captions = tuple(said(entry.captions, name, self.problems))
            if not captions:
                self.problems.add("no-captions", [name])
            split = splits.own(name) if own else self._split(name, entry)
            # Joined to an absolute path, a folder gives that path.
            yield Record(name, str(self.file.parent / name), captions, split)

    def _split(self, name: str, entry: _Entry) -> str:
        named = {splits.named(split) for split in entry.splits}
        if len(named) == 1 and (split := named.pop()) is not None:
            return split
        given = ", ".join(
            sorted("none" if split is None else repr(split) for split in entry.splits)
        )
        self.problems.add("no-split", [f"{name}: {given}"])
        return TRAIN


def _table(root: Path, suffix: str) -> Path:
    """The file itself, or the only one of its kind in the folder."""
    if root.is_file():
        return root
    found = sorted(root.glob(f"*.{suffix}"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:3]) or "none"
        raise DataError(
            f"expected one .{suffix} file in '{root}', found {names}; give the file itself with "
            "--data.root FILE"
        )
    return found[0]
