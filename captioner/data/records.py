"""The common format of all data sets: records, and tokenized captions.

Reading a Python object changes its reference count, so each forked worker of a ``DataLoader`` soon
holds its own copy of a long list. Therefore, the items lie pickled in one object. With 120,000
records of five captions of 12 words, 8 workers and their parent hold 0.5 GB (PSS, with PyTorch itself),
with plain lists 1.8 GB. See
https://ppwwyyxx.com/blog/2022/Demystify-RAM-Usage-in-Multiprocess-DataLoader/
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from captioner.language.vocabulary import END, START, Tokenizer, Vocabulary

Item = TypeVar("Item")

TRAIN, VAL, TEST = "train", "val", "test"
SPLITS = (TRAIN, VAL, TEST)


class PackedList(Sequence[Item]):
    """An immutable list of picklable items, each of which is unpickled when it is read."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        pickled = [pickle.dumps(item, pickle.HIGHEST_PROTOCOL) for item in items]
        self._data = b"".join(pickled)
        self._ends = np.cumsum([0, *map(len, pickled)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        index = range(len(self))[index]  # supports negative indices and raises IndexError
        start, end = self._ends[index : index + 2].tolist()
        item: Item = pickle.loads(self._data[start:end])
        return item


@dataclass(frozen=True, slots=True)
class Record:
    """One image with its reference captions.

    The id joins results and references: it is the number in COCO's and Karpathy's files, otherwise the
    file's name, or its path as the data set writes it.
    """

    image_id: int | str
    path: str
    captions: tuple[str, ...]  # one or more, as written in the data set
    split: str  # train, val or test


class Records(Sequence[Record]):
    """An immutable sequence of records, sorted by split and image id; numeric ids by value.

    A slice or a split shares the memory of the whole.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        ordered = sorted(records, key=lambda r: (SPLITS.index(r.split), str(r.image_id).zfill(12)))
        self._items = PackedList((r.image_id, r.path, r.captions, r.split) for r in ordered)
        self._splits = np.array([SPLITS.index(r.split) for r in ordered], np.int8)
        self._rows = np.arange(len(ordered))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self._rows[index]
        return self._select(rows) if isinstance(index, slice) else Record(*self._items[int(rows)])

    def of_split(self, split: str) -> "Records":
        """The records of ``train``, ``val`` or ``test``; may be empty."""
        return self._select(self._rows[self._splits[self._rows] == SPLITS.index(split)])

    def take(self, indices: Sequence[int]) -> "Records":
        """The records at these indices, in the given order."""
        return self._select(self._rows[np.asarray(indices, np.int64)])

    def _select(self, rows: np.ndarray) -> "Records":
        part = object.__new__(Records)
        part._items, part._splits, part._rows = self._items, self._splits, rows
        return part


class TokenizedCaptions:
    """The captions of some images, split into words once."""

    def __init__(self, records: Iterable[Record]) -> None:
        tokenizer = Tokenizer()
        self.sentences: PackedList[list[list[str]]] = PackedList(
            [tokenizer(caption) for caption in record.captions] for record in records
        )

    def __iter__(self) -> Iterator[list[str]]:
        """The words of every caption."""
        for sentences in self.sentences:
            yield from sentences

    def encoded(self, vocabulary: Vocabulary, max_words: int) -> PackedList[list[list[int]]]:
        """The captions as token ids, from ``<start>`` to ``<end>``.

        Captions of more than ``max_words`` words are cut to this length and get no ``<end>``.
        """

        def encode(words: list[str]) -> list[int]:
            end = [END] if len(words) <= max_words else []
            return [START, *vocabulary.encode(words[:max_words]), *end]

        return PackedList(list(map(encode, sentences)) for sentences in self.sentences)
