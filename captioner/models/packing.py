"""The words that exist, side by side: what is done to each word alone is done to no others."""

import math

from jaxtyping import Bool, Int, Shaped
from torch import Size, Tensor

from captioner.models.linear import missing_rows


class Packing:
    """From steps of rows of pictures to words in one row, and back.

    Args:
        shape: (B, R, T).
        there: where words are; None for everywhere, which costs nothing.
    """

    def __init__(self, shape: Size, there: Bool[Tensor, "B R T"] | None = None) -> None:
        self.shape = shape
        self.places = None if there is None else there.flatten().nonzero().squeeze(1)

    def pack(self, values: Shaped[Tensor, "B R T *own"]) -> Shaped[Tensor, " N *own"]:
        """Those of the N words."""
        flat = values.flatten(0, 2)
        return flat if self.places is None else flat.index_select(0, self.places)

    def unpack(self, values: Shaped[Tensor, " N *own"]) -> Shaped[Tensor, "B R T *own"]:
        """In their places, zeros in the others."""
        found = placed(values, self.places, math.prod(self.shape))
        return found.view(*self.shape, *values.shape[1:])


def rounded(there: Bool[Tensor, "*steps"]) -> Bool[Tensor, "*steps"]:
    """With some of the first steps that are not there, that the number of all may be round.

    What is computed for those is of no use; but on a CPU a product of more rows is faster than one of a
    number that is not round (``linear``).
    """
    if there.device.type != "cpu":
        return there
    flat = there.flatten()
    spare = (~flat).nonzero().squeeze(1)[: missing_rows(int(flat.sum()))]
    return flat.index_fill(0, spare, True).view_as(there)


def placed(
    values: Shaped[Tensor, " N *own"], places: Int[Tensor, " N"] | None, count: int
) -> Shaped[Tensor, " M *own"]:
    """``count`` rows, those at ``places`` as given, the others zero; all are given for None."""
    if places is None:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_copy(0, places, values)
