"""The one form in which every data set arrives, one picture at a time or all of them."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from captioner.data.columns import Numbers, Strings

TRAIN, VAL, TEST = "train", "val", "test"
SPLITS = (TRAIN, VAL, TEST)


@dataclass(frozen=True, slots=True)
class Record:
    """One picture with its reference captions.

    Attributes:
        image_id: what results and references are joined on: the number that COCO's and Karpathy's
            files give it, else the file's name, or its path as the data set writes it.
        path: the picture's file.
        captions: one or more sentences, as written by people.
        split: ``train``, ``val`` or ``test``.
    """

    image_id: int | str
    path: str
    captions: tuple[str, ...]
    split: str


@dataclass(frozen=True)
class _Columns:
    """Records attribute by attribute."""

    ids: Strings  # as JSON, which tells 7 from "7"
    paths: Strings
    captions: Strings  # of all pictures, behind each other
    ends: Numbers  # where a picture's captions end, those of the next begin
    splits: Numbers  # places in SPLITS


class Records(Sequence[Record]):
    """Many records in a few pieces of memory: each is built when it is asked for.

    COCO's 123,000 images with five captions each take 60 MB, in all processes together (`columns` says
    why). A slice or a split shares the memory of the whole.

    Args:
        records: in any order; they are kept sorted by split and image id, numbers by their size.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        # Lists of references to strings that are there anyway, for as long as this lasts.
        ids: list[int | str] = []
        paths: list[str] = []
        captions: list[str] = []
        ends, splits = [0], []
        for record in records:
            ids.append(record.image_id)
            paths.append(record.path)
            captions += record.captions
            ends.append(len(captions))
            splits.append(SPLITS.index(record.split))
        self._columns = _Columns(
            Strings(map(json.dumps, ids)),
            Strings(paths),
            Strings(captions),
            Numbers(ends),
            Numbers(splits),
        )
        self._rows = Numbers(
            sorted(range(len(ids)), key=lambda row: (splits[row], str(ids[row]).zfill(12)))
        )

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> "Records": ...

    def __getitem__(self, place: "int | slice") -> "Record | Records":
        if isinstance(place, slice):
            return self._part(self._rows[place])
        columns, row = self._columns, self._rows[place]
        return Record(
            json.loads(columns.ids[row]),
            columns.paths[row],
            tuple(columns.captions[columns.ends[row] : columns.ends[row + 1]]),
            SPLITS[columns.splits[row]],
        )

    def __iter__(self) -> Iterator[Record]:
        return map(self.__getitem__, range(len(self)))

    def __eq__(self, other: object) -> bool:
        """Whether ``other`` is a sequence of the same records."""
        if not isinstance(other, Sequence) or len(self) != len(other):
            return NotImplemented if not isinstance(other, Sequence) else False
        return all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def ids(self) -> Iterator[int | str]:
        """Every picture's id, in the same order."""
        return (json.loads(self._columns.ids[row]) for row in self._rows)

    @property
    def paths(self) -> Iterator[str]:
        """Every picture's file, in the same order."""
        return (self._columns.paths[row] for row in self._rows)

    @property
    def splits(self) -> Iterator[str]:
        """Every picture's split, in the same order."""
        return (SPLITS[self._columns.splits[row]] for row in self._rows)

    def of_split(self, split: str) -> "Records":
        """Those of ``train``, ``val`` or ``test``; none if it has none."""
        wanted = SPLITS.index(split)
        return self._part(row for row in self._rows if self._columns.splits[row] == wanted)

    def take(self, places: Iterable[int]) -> "Records":
        """Those at these places, in their order."""
        return self._part(self._rows[place] for place in places)

    def _part(self, rows: Iterable[int]) -> "Records":
        part = object.__new__(Records)
        part._columns, part._rows = self._columns, Numbers(rows)
        return part
