"""Many strings in one piece of memory, which processes share instead of copying.

A Python string costs 50 bytes beside its text, and a reference count: whoever reads it in a forked
process writes, and so copies the page it lies on. A column costs 8 bytes a string and is never
written; torch hands it to worker processes as shared memory, forked and spawned alike.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, overload

import torch
from torch import Tensor


class Numbers(Sequence[int]):
    """N whole numbers that do not change.

    Args:
        numbers: any, taken one by one.
        code: how they are kept: ``q`` in 64 bits, ``i`` in 32.

    Raises:
        OverflowError: one needs more bits.
    """

    def __init__(self, numbers: Iterable[int] = (), code: Literal["q", "i"] = "q") -> None:
        dtype = torch.int64 if code == "q" else torch.int32
        self._open(_tensor(array(code, numbers), dtype))

    def _open(self, values: Tensor) -> None:
        self._values = values
        self._view = values.numpy().data  # ten times as fast as the tensor

    def __getstate__(self) -> Tensor:
        return self._values

    def __setstate__(self, state: Tensor) -> None:
        self._open(state)

    def __len__(self) -> int:
        return len(self._view)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self._view[place].tolist() if isinstance(place, slice) else self._view[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._view)


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
        self._open(_tensor(text, torch.uint8), Numbers(ends))

    def _open(self, text: Tensor, ends: Numbers) -> None:
        self._text, self._ends = text, ends
        self._view = text.numpy().data

    def __getstate__(self) -> tuple[Tensor, Numbers]:
        return self._text, self._ends

    def __setstate__(self, state: tuple[Tensor, Numbers]) -> None:
        self._open(*state)

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
        return str(self._view[self._ends[place] : self._ends[place + 1]], "utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))


def _tensor(buffer: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What was collected in ``buffer``, in memory of its own and not a byte too much."""
    # frombuffer shares the memory, of which a growing buffer holds an eighth in reserve.
    return torch.frombuffer(buffer, dtype=dtype).clone() if buffer else torch.empty(0, dtype=dtype)
