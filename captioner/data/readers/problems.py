"""The problems of a data set, collected by kind and reported together."""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from captioner.data.records import Record
from captioner.errors import DataError, printable
from captioner.language.vocabulary import CONTROL

FATAL = {
    "file": "files that cannot be used",
    "line": "lines that cannot be used",
    "missing": "images that do not exist",
    "duplicate-id": "images with an id used twice",
    "duplicate-path": "images whose file is listed twice",
    "duplicate-split": "images in two splits",
    "no-split": "images with a missing or unknown split",
}
"""The kinds of problems that prevent training: the identifier in JSON, and the description."""

LEFT_OUT = {
    "no-captions": "images without captions",
    "no-image": "captions whose image is missing",
    "shared-text": "texts that belong to two images",
    "text": "texts that cannot be read",
    "no-words": "captions without words",
    "numbers": "captions of numbers only",
}
"""The kinds of problems that cost only the image or the caption, which training leaves out."""

KINDS = {
    **FATAL,
    **LEFT_OUT,
    "unreadable": "images that cannot be decoded",
    "duplicate-content": "files with the same contents in one split",
    "leaked-content": "files with the same contents in two splits",
    "long": "captions that training cuts",
    "no-spaces": "captions without spaces between words, which need --data.tokenizer characters",
}

_NUMBER = re.compile(r"\d[\d.,:/]*(e[-+]?\d+)?", re.IGNORECASE)


class Problems:
    """Collects problems while a data set is read."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}  # by kind; no list is empty
        self.sources: list[Path] = []  # the files that define the data set
        self._listed: dict[Path, dict[str, str]] = {}  # the names in a folder, by their NFC

    def add(self, kind: str, *items: object) -> None:
        """Add problems of one of the `KINDS`."""
        if items:
            self.found.setdefault(kind, []).extend(map(str, items))

    def bad_line(self, file: Path, number: int, expected: str, line: object) -> None:
        """Add a line that cannot be used."""
        self.add("line", f"'{file}' line {number}: expected '{expected}', got {line!r:.80}")

    @contextmanager
    def collect_file_errors(self, kind: str = "file") -> Iterator[None]:
        """Turn a DataError inside the block into a problem."""
        try:
            yield
        except DataError as error:
            self.add(kind, error)

    def record(
        self, image_id: int | str, folder: Path, name: str, captions: Iterable[str], split: str
    ) -> Iterator[Record]:
        """Yield the record of the image ``name`` in ``folder``, unless no caption can be used.

        A caption without words, such as "...", would train a model to generate empty captions. One of
        numbers only is a label of an object detector.
        """
        usable = []
        for caption in captions:
            caption = CONTROL.sub(" ", caption).strip()
            if any(map(str.isalpha, _NUMBER.sub("", caption))):
                usable.append(caption)
            else:
                kind = "numbers" if any(map(str.isalnum, caption)) else "no-words"
                self.add(kind, f"{name}: {caption!r:.80}")
        if not usable:
            self.add("no-captions", name)
            return
        path = self._locate(folder, name)
        if not os.path.exists(path):  # noqa: PTH110 - never raises
            self.add("missing", path)
        yield Record(image_id, str(path), tuple(usable), split)

    def _locate(self, folder: Path, name: str) -> Path:
        """Find the file that a data set names, although other systems write some names differently.

        Windows separates folders by backslashes, and macOS decomposes accented letters.
        """
        for spelling in (name, name.replace("\\", "/")):
            # If the name is an absolute path, / ignores the folder.
            if os.path.exists(path := folder / spelling):  # noqa: PTH110
                return path
            path = folder
            for part in PurePath(spelling).parts:
                path /= self._names(path).get(unicodedata.normalize("NFC", part), part)
            if os.path.exists(path):  # noqa: PTH110
                return path
        return folder / name

    def _names(self, folder: Path) -> dict[str, str]:
        if folder not in self._listed:
            names = os.listdir(folder) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208
            self._listed[folder] = {unicodedata.normalize("NFC", name): name for name in names}
        return self._listed[folder]

    def as_list(self) -> list[dict[str, Any]]:
        """The problems for JSON, in the order of `KINDS`."""
        return [
            {"kind": kind, "what": what, "count": len(self.found[kind]), "items": self.found[kind]}
            for kind, what in KINDS.items()
            if kind in self.found
        ]

    def check(self) -> None:
        """Raise one DataError for all problems that prevent training, with three items of each kind."""
        if fatal := self.summary(FATAL):
            sources = ", ".join(f"'{source}'" for source in self.sources)
            raise DataError(f"{sources}: {fatal} (captioner data check lists all)")

    def summary(self, kinds: Iterable[str]) -> str:
        """The problems of some kinds in one line, with three items of each; empty without problems."""
        return "; ".join(
            f"{KINDS[kind]}: {len(items):,} "
            f"({', '.join(printable(item, limit=500) for item in items[:3])}"
            f"{', …' if len(items) > 3 else ''})"
            for kind in kinds
            if (items := self.found.get(kind))
        )
