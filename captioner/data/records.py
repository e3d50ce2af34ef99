"""The one form in which every data set arrives, one picture at a time or all of them."""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from captioner.data.columns import Strings, as_tensor

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
    """N records attribute by attribute, with M captions in all."""

    ids: Strings  # as JSON, which tells 7 from "7"
    paths: Strings
    captions: Strings
    splits: UInt8[Tensor, " N"]  # places in SPLITS
    ends: Int64[Tensor, " N+1"]  # a picture's captions end where those of the next begin


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
        ends, splits = array("q", [0]), bytearray()
        for record in records:
            ids.append(record.image_id)
            paths.append(record.path)
            captions += record.captions
            ends.append(len(captions))
            splits.append(SPLITS.index(record.split))
        order = sorted(range(len(ids)), key=lambda i: (splits[i], str(ids[i]).zfill(12)))
        self._columns = _Columns(
            Strings(map(json.dumps, ids)),
            Strings(paths),
            Strings(captions),
            as_tensor(splits, torch.uint8),
            as_tensor(ends, torch.int64),
        )
        self._rows: Int64[Tensor, " N"] = torch.tensor(order, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> "Records": ...

    def __getitem__(self, place: "int | slice") -> "Record | Records":
        if isinstance(place, slice):
            return self._part(self._rows[list(range(len(self))[place])])
        columns = self._columns
        row = int(self._rows[range(len(self))[place]])
        begin, end = columns.ends[row : row + 2].tolist()
        return Record(
            json.loads(columns.ids[row]),
            columns.paths[row],
            tuple(columns.captions[begin:end]),
            SPLITS[int(columns.splits[row])],
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
    def paths(self) -> Strings:
        """Every picture's file, in the same order."""
        return Strings(self._columns.paths[row] for row in self._rows.tolist())

    def of_split(self, split: str) -> "Records":
        """Those of ``train``, ``val`` or ``test``; none if it has none."""
        return self._part(self._rows[self._columns.splits[self._rows] == SPLITS.index(split)])

    def only(self, wanted: Callable[[Record], bool]) -> "Records":
        """Those of which ``wanted`` is true."""
        kept = [
            row for row, record in zip(self._rows.tolist(), self, strict=True) if wanted(record)
        ]
        return self._part(torch.tensor(kept, dtype=torch.int64))

    def _part(self, rows: Int64[Tensor, " M"]) -> "Records":
        part = object.__new__(Records)
        part._columns, part._rows = self._columns, rows
        return part
