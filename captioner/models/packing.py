"""The words that exist, side by side: what is done to each word alone is done to no others."""

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from captioner.models.linear import missing_rows


class Packing:
    """From steps of captions of pictures to words in one row, and back; or to the words of each picture.

    Args:
        shape: (B, *R, T).
        there: where words are; None for everywhere, which costs nothing.
    """

    def __init__(self, shape: Sequence[int], there: Bool[Tensor, "B *R T"] | None = None) -> None:
        self.shape = tuple(shape)
        self.places = None if there is None else there.flatten().nonzero().squeeze(1)

    def pack(self, values: Shaped[Tensor, "*steps"]) -> Shaped[Tensor, " N *own"]:
        """Those of the N words, of values at all steps."""
        flat = values.flatten(0, len(self.shape) - 1)
        return flat if self.places is None else flat.index_select(0, self.places)

    def unpack(self, values: Shaped[Tensor, " N *own"]) -> Shaped[Tensor, "*steps"]:
        """In their places, zeros in the others."""
        found = placed(values, self.places, math.prod(self.shape))
        return found.view(*self.shape, *values.shape[1:])

    def by_picture(self, values: Shaped[Tensor, " N *own"]) -> Shaped[Tensor, "B W *own"]:
        """The words of all captions of each picture, which are queries of one attention; zeros behind
        them, where another picture has more."""
        slots, most = self._slots
        found = placed(values, slots, self.shape[0] * most)
        return found.view(self.shape[0], most, *values.shape[1:])

    def from_pictures(self, values: Shaped[Tensor, "B W *own"]) -> Shaped[Tensor, " N *own"]:
        """The words in one row again."""
        slots, _ = self._slots
        return (
            values.flatten(0, 1) if slots is None else values.flatten(0, 1).index_select(0, slots)
        )

    @cached_property
    def _slots(self) -> tuple[Int[Tensor, " N"] | None, int]:
        """Where each word is among the words of pictures; and W, how many a picture has room for."""
        pictures, steps = self.shape[0], math.prod(self.shape[1:])
        if self.places is None:
            return None, steps
        owners = self.places // steps
        counts = owners.bincount(minlength=pictures)
        most = max(1, int(counts.max()))
        # The i-th of all words is the (i - words of earlier pictures)-th of its own picture.
        earlier = (counts.cumsum(0) - counts)[owners]
        numbers = torch.arange(len(owners), device=owners.device) - earlier
        return owners * most + numbers, most


def rounded(there: Bool[Tensor, "*steps"]) -> Bool[Tensor, "*steps"]:
    """With some of the steps that are not there, from all pictures, that the number of all may be round.

    What is computed for those is of no use; but on a CPU a product of more rows is faster than one of a
    number that is not round (``linear``).
    """
    if there.device.type != "cpu":
        return there
    flat = there.flatten()
    missing, absent = missing_rows(int(flat.sum())), (~flat).nonzero().squeeze(1)
    spare = absent[:: max(1, len(absent) // max(1, missing))][:missing]
    return flat.index_fill(0, spare, True).view_as(there)


def placed(
    values: Shaped[Tensor, " N *own"], places: Int[Tensor, " N"] | None, count: int
) -> Shaped[Tensor, " M *own"]:
    """``count`` rows, those at ``places`` as given, the others zero; all are given for None."""
    if places is None:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_copy(0, places, values)
