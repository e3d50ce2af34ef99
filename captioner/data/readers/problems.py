"""The problems of a data set, collected by kind and reported together."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from captioner.data.records import Record
from captioner.errors import DataError, printable
from captioner.language.vocabulary import CONTROL

KINDS = {
    "file": "files that cannot be used",
    "line": "lines that cannot be used",
    "missing": "images that do not exist",
    "duplicate-id": "images with an id used twice",
    "duplicate-path": "images whose file is listed twice",
    "duplicate-split": "images listed twice in the split files",
    "no-split": "images with a missing or unknown split",
    "no-captions": "images without captions",
    "no-image": "images captioned but missing from the list of images",
    "no-words": "captions without words",
    "left-out": "images left out, because their caption in the table is empty",
    "unreadable": "images that cannot be decoded",
    "duplicate-content": "files with the same contents in one split",
    "leaked-content": "files with the same contents in two splits",
    "long": "captions that training cuts",
}
"""Every kind of problem: its identifier in JSON, and its description."""

# An image under "no-words" has other captions, or is also listed under "no-captions".
HARMLESS = ("no-words", "left-out")


class Problems:
    """Collects problems while a data set is read."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}  # by kind; no list is empty
        self.sources: list[Path] = []  # the files that define the data set

    def add(self, kind: str, *items: object) -> None:
        """Add problems of one of the `KINDS`."""
        if items:
            self.found.setdefault(kind, []).extend(map(str, items))

    def bad_line(self, file: Path, number: int, expected: str, line: object) -> None:
        """Add a line that cannot be used."""
        self.add("line", f"'{file}' line {number}: expected '{expected}', got {line!r:.80}")

    @contextmanager
    def collect_file_errors(self) -> Iterator[None]:
        """Turn a DataError inside the block into a problem of kind ``file``."""
        try:
            yield
        except DataError as error:
            self.add("file", error)

    def record(
        self,
        image_id: int | str,
        path: Path,
        name: object,
        captions: Iterable[str],
        split: str,
    ) -> Record:
        """Build a record; add a problem for each caption without words, or if no caption is left.

        A caption without words, such as "...", would train a model to generate empty captions.
        ``name`` is the name of the image in the problems.
        """
        captions = [CONTROL.sub(" ", caption).strip() for caption in captions]
        usable = tuple(caption for caption in captions if any(map(str.isalnum, caption)))
        self.add("no-words", *(f"{name}: {c!r:.80}" for c in captions if c not in usable))
        if not usable:
            self.add("no-captions", name)
        return Record(image_id, str(path), usable, split)

    def as_list(self) -> list[dict[str, Any]]:
        """The problems for JSON, in the order of `KINDS`."""
        return [
            {"kind": kind, "what": what, "count": len(self.found[kind]), "items": self.found[kind]}
            for kind, what in KINDS.items()
            if kind in self.found
        ]

    @property
    def fatal(self) -> dict[str, list[str]]:
        """The problems that prevent training, by kind."""
        return {kind: items for kind, items in self.found.items() if kind not in HARMLESS}

    def check(self) -> None:
        """Raise one DataError for all problems that prevent training, with three items of each kind."""
        if self.fatal:
            listed = "; ".join(
                f"{KINDS[kind]}: {len(items):,} "
                f"({', '.join(printable(item, limit=500) for item in items[:3])}"
                f"{', …' if len(items) > 3 else ''})"
                for kind, items in self.fatal.items()
            )
            sources = ", ".join(f"'{source}'" for source in self.sources)
            raise DataError(
                f"{sources}: {listed}; repair the files or remove the entries (captioner data check "
                "lists all)"
            )
