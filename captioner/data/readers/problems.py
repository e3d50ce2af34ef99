"""What is wrong with a data set, collected kind by kind, to be told all at once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.errors import DataError

KINDS = {
    "file": "files that cannot be used",
    "line": "lines that cannot be used",
    "missing": "images that do not exist",
    "duplicate-id": "images with an id used twice",
    "duplicate-path": "images whose file is listed twice",
    "duplicate-split": "images listed twice in the split files",
    "no-split": "images without a split that is known",
    "no-captions": "images without captions",
    "no-image": "images captioned but missing from the list of images",
    "not-captioned": "images listed in a split but without captions",
    "no-words": "captions without words",
    "unreadable": "images that cannot be decoded",
    "duplicate-content": "files with the same contents in one split",
    "leaked-content": "files with the same contents in two splits",
    "leaked-name": "file names in two splits",
    "long": "captions that training cuts",
}
"""Every kind of problem, as programs name it and as people read it."""

_TOLERATED = {"no-words"}  # readers leave such captions out; the image has others, or is named


@dataclass
class Problems:
    """Collects problems while a data set is read.

    Attributes:
        found: what is wrong, by kind; no kind is empty.
        sources: the files that say what is in the data set.
    """

    found: dict[str, list[str]] = field(default_factory=dict)
    sources: list[Path] = field(default_factory=list)

    def add(self, kind: str, items: Iterable[object]) -> None:
        """Adds items of one of the `KINDS`."""
        if listed := [str(item) for item in items]:
            self.found.setdefault(kind, []).extend(listed)

    def as_list(self) -> list[dict[str, Any]]:
        """For JSON, in the order of the `KINDS`."""
        return [
            {"kind": kind, "what": what, "count": len(self.found[kind]), "items": self.found[kind]}
            for kind, what in KINDS.items()
            if kind in self.found
        ]

    def check(self) -> None:
        """Raises what keeps the data set from being used, in one line, three items of a kind named.

        Raises:
            DataError: there are such problems.
        """
        kinds = []
        for kind, items in self.found.items():
            if kind not in _TOLERATED:
                named = ", ".join(items[:3]) + (", …" if len(items) > 3 else "")
                kinds.append(f"{len(items):,} {KINDS[kind]} ({named})")
        if kinds:
            sources = ", ".join(f"'{source}'" for source in self.sources)
            raise DataError(
                f"{sources}: {'; '.join(kinds)}; "
                "repair the files or remove the entries (captioner data check lists all)"
            )
