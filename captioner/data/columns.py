"""Many strings in one piece of memory, which processes share instead of copying.

A Python string costs 50 bytes beside its text, and a reference count: whoever reads it in a forked
process writes, and so copies the page it lies on. Two tensors cost 8 bytes a string, are never
written, and torch hands them to worker processes as shared memory, forked and spawned alike.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch
from torch import Tensor


class Strings(Sequence[str]):
    """N strings that do not change.

    Args:
        strings: any, taken one by one, also names of files that are no UTF-8.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        text, ends = bytearray(), array("q", [0])
        for string in strings:
            text += string.encode("utf-8", "surrogatepass")
            ends.append(len(text))
        self._text = as_tensor(text, torch.uint8)
        self._ends = as_tensor(ends, torch.int64)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[i] for i in range(len(self))[place]]
        place = range(len(self))[place]  # from the end, too; IndexError beyond
        begin, end = self._ends[place : place + 2].tolist()
        return self._text[begin:end].numpy().tobytes().decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))


def as_tensor(buffer: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What was collected in ``buffer``, one dimension, in its own memory and not a byte too much."""
    # frombuffer shares the memory, of which a growing buffer holds an eighth in reserve.
    return torch.frombuffer(buffer, dtype=dtype).clone() if buffer else torch.empty(0, dtype=dtype)
