"""The common format of all data sets: records and tokenized captions in shared memory.

Reading a Python object changes its reference count, so each forked worker of a ``DataLoader`` soon
holds its own copy of a long list. Here every item is pickled into one tensor of bytes. PyTorch passes
tensors to forked and spawned workers as shared memory. Detectron2 stores its data sets in this way:
https://ppwwyyxx.com/blog/2022/Demystify-RAM-Usage-in-Multiprocess-DataLoader/
"""

import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from captioner.language.vocabulary import END, START, Tokenizer, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")

TRAIN, VAL, TEST = "train", "val", "test"
SPLITS = (TRAIN, VAL, TEST)


class SharedList(Sequence[Item]):
    """An immutable list of picklable items, each of which is unpickled when it is read."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        import torch  # importing torch takes seconds; errors in a data set are reported before

        data, ends = bytearray(), array("q", [0])
        for item in items:
            data += pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
            ends.append(len(data))
        # A growing bytearray reserves up to an eighth more than it holds; the copy does not.
        tensor = torch.frombuffer(data or bytearray(1), dtype=torch.uint8).clone()
        self.__setstate__((tensor, torch.frombuffer(ends, dtype=torch.int64).clone()))

    def __getstate__(self) -> "tuple[Tensor, Tensor]":
        return self._tensors

    def __setstate__(self, tensors: "tuple[Tensor, Tensor]") -> None:
        self._tensors = tensors
        # Indexing a memoryview is ten times as fast as indexing a tensor.
        self._data, self._ends = (tensor.numpy().data for tensor in tensors)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        index = range(len(self))[index]  # supports negative indices and raises IndexError
        item: Item = pickle.loads(self._data[self._ends[index] : self._ends[index + 1]])
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
    """An immutable sequence of records, sorted by split and image id, in shared memory.

    COCO's 123,000 images with five captions each take 60 MB, for all processes together. A slice or a
    split shares the memory of the whole. Numeric ids are sorted by value.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        ordered = sorted(records, key=lambda r: (SPLITS.index(r.split), str(r.image_id).zfill(12)))
        self._items = SharedList((r.image_id, r.path, r.captions, r.split) for r in ordered)
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
        self.words: dict[str, int] = {}  # the number of every distinct word
        tokenizer = Tokenizer()
        # For each image, its captions as lists of such numbers.
        self.sentences: SharedList[list[list[int]]] = SharedList(
            [
                [self.words.setdefault(word, len(self.words)) for word in tokenizer(caption)]
                for caption in record.captions
            ]
            for record in records
        )

    def __iter__(self) -> Iterator[list[str]]:
        """The words of every caption."""
        words = list(self.words)
        for sentences in self.sentences:
            for sentence in sentences:
                yield [words[number] for number in sentence]

    def encoded(self, vocabulary: Vocabulary, max_words: int) -> SharedList[list[list[int]]]:
        """The captions as token ids, from ``<start>`` to ``<end>``.

        Captions of more than ``max_words`` words are cut to this length and get no ``<end>``.
        """
        ids = vocabulary.encode(self.words)

        def encode(sentence: list[int]) -> list[int]:
            end = [END] if len(sentence) <= max_words else []
            return [START, *(ids[number] for number in sentence[:max_words]), *end]

        return SharedList(list(map(encode, sentences)) for sentences in self.sentences)
