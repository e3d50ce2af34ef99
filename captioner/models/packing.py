"""Packing: leave out the padding of captions, as ``torch.nn.utils.rnn.pack_sequence`` does."""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from captioner.language.vocabulary import END, PAD


class Packing:
    """Convert between padded steps, the N packed steps of ``valid_mask``, and steps grouped by image."""

    def __init__(self, valid_mask: Bool[Tensor, "B *R T"]) -> None:
        self.valid_mask = valid_mask
        counts = valid_mask.flatten(1).sum(1)
        index = torch.arange(max(1, int(counts.max())), device=counts.device)
        self._group_mask = index < counts.unsqueeze(1)  # (B, W)
        self._steps, self._places = (
            mask.flatten().nonzero().squeeze(1) for mask in (valid_mask, self._group_mask)
        )

    def pack(self, values: Shaped[Tensor, "*steps"]) -> Shaped[Tensor, " N *dims"]:
        """Select the valid steps."""
        return values.flatten(0, self.valid_mask.ndim - 1).index_select(0, self._steps)

    def unpack(self, values: Shaped[Tensor, " N *dims"]) -> Shaped[Tensor, "*steps"]:
        """Put the packed steps back; the other steps are zero."""
        return _scatter(values, self._steps, self.valid_mask)

    def group_by_image(self, values: Shaped[Tensor, " N *dims"]) -> Shaped[Tensor, "B W *dims"]:
        """Collect the steps of all captions of an image, padded with zeros to the largest number W."""
        return _scatter(values, self._places, self._group_mask)

    def ungroup(self, values: Shaped[Tensor, "B W *dims"]) -> Shaped[Tensor, " N *dims"]:
        """Invert ``group_by_image``."""
        return values.flatten(0, 1).index_select(0, self._places)


def _scatter(values: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """Put rows at ``index``, the positions where the flat mask is True; the others are zero."""
    padded = values.new_zeros(mask.numel(), *values.shape[1:]).index_copy(0, index, values)
    return padded.view(*mask.shape, *values.shape[1:])


def unfinished(tokens: Int[Tensor, "B *R T"]) -> Bool[Tensor, "B *R T"]:
    """Mark the input tokens whose caption has not ended, so that there is a next word to predict."""
    words = (tokens != PAD) & (tokens != END)
    return words.flip(-1).cummax(-1).values.flip(-1)


def missing_rows(count: int) -> int:
    """Return how many rows to add to ``count`` so that few different numbers of rows occur.

    oneDNN compiles and caches a kernel for every matrix size, which costs time and memory. The sum is
    a multiple of 16 or, from 1024 rows on, of a power of two between 1/64 and 1/32 of ``count``.
    """
    return -count % max(16, 2 ** (count.bit_length() - 6))


def pad_to_multiple(valid_mask: Bool[Tensor, "B *R T"]) -> Bool[Tensor, "B *R T"]:
    """Mark evenly spaced padding steps as valid: ``missing_rows`` of them, or all if there are fewer."""
    flat = valid_mask.flatten()
    padding = (~flat).nonzero().squeeze(1)
    missing = missing_rows(int(flat.sum()))
    added = padding[:: max(1, len(padding) // max(1, missing))][:missing]
    return flat.index_fill(0, added, True).view_as(valid_mask)


def batch_sizes(unfinished: Bool[Tensor, "B R T"]) -> list[int]:
    """Return, for every step, how many leading rows per image include all unfinished captions.

    At least 1. As in torch's ``PackedSequence``, the sizes shrink if captions are sorted longest first.
    """
    numbers = torch.arange(1, unfinished.shape[1] + 1, device=unfinished.device)
    return (unfinished.any(0) * numbers.unsqueeze(1)).amax(0).clamp(min=1).tolist()
