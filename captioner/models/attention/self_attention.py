"""Self-attention: a sequence attends to itself (Vaswani et al. 2017, §3.2)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.errors import ModelError
from captioner.models.attention.distributions import masked_softmax
from captioner.models.attention.multihead import check_heads, fused, join_heads, split_heads
from captioner.models.linear import Linear


class SelfAttention(nn.Module):
    """``W_O [head_1; …; head_h]``, every head scaled dot products of a sequence with itself.

    Args:
        dim: d, the width of the vectors; a multiple of ``heads``.
        heads: h.
        head_window: how many heads to either side a head also attends to, all under one softmax
            (Yang et al. 2019, arXiv 1904.03107, §3).

    Raises:
        ModelError: the heads do not divide the width, or a window below 0.
    """

    def __init__(self, dim: int, heads: int, head_window: int = 0) -> None:
        super().__init__()
        check_heads(heads, dim)
        if head_window < 0:
            raise ModelError(f"a window of heads must be 0 or more, got {head_window}")
        self.heads = heads
        self.head_window = head_window
        self.query = Linear(dim, dim, bias=False)
        self.key_value = Linear(dim, 2 * dim, bias=False)
        self.output = Linear(dim, dim, bias=False)

    def forward(
        self,
        vectors: Float[Tensor, "N T d"],
        mask: Bool[Tensor, "#N #T P"] | None = None,
        past: Float[Tensor, "N Q dd"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "N T d"], Float[Tensor, "N T h P"] | None, Float[Tensor, "N P dd"]]:
        """What every vector found among all, the weights, and keys and values for the next call.

        Args:
            vectors: the sequence, or what is new of it.
            mask: True where a vector may attend, P = Q + T; None for everywhere.
            past: keys and values of the Q vectors before, as this method returned them.
            need_weights: whether weights are returned, which takes longer. A vector's weight is that
                in all heads a head attends to.
        """
        query, key_value = self.query(vectors), self.key_value(vectors)
        found, weights, past = self.attend(query, key_value, mask, past, need_weights)
        return self.output(found), weights, past

    def attend(
        self,
        query: Float[Tensor, "N T d"],
        key_value: Float[Tensor, "N T dd"],
        mask: Bool[Tensor, "#N #T P"] | None,
        past: Float[Tensor, "N Q dd"] | None,
        need_weights: bool,
    ) -> tuple[Float[Tensor, "N T d"], Float[Tensor, "N T h P"] | None, Float[Tensor, "N P dd"]]:
        """What is between the projections, which know each vector alone."""
        if past is not None:
            key_value = torch.cat([past, key_value], 1)
        query = split_heads(query, self.heads)  # (N, h, T, e)
        key, value = (split_heads(part, self.heads) for part in key_value.chunk(2, -1))
        allowed = None if mask is None else mask.unsqueeze(1)
        if self.head_window:
            allowed = self._neighbouring(mask, key)
            key, value = self._widen(key), self._widen(value)
        if not need_weights:
            found = fused(query, key, value, allowed, dropout=0.0)
            return join_heads(found), None, key_value
        weights = _weights(query, key, allowed)
        found = weights.to(value.dtype) @ value
        # Several heads of a vector are one vector.
        weights = weights.view(*weights.shape[:3], -1, key_value.shape[1]).sum(-2)
        return join_heads(found), weights.transpose(1, 2), key_value

    def _widen(self, heads: Float[Tensor, "N h P e"]) -> Float[Tensor, "N h WP e"]:
        """Behind one another what the heads in the window of each head have; zeros beyond the ends."""
        reach = self.head_window
        padded = F.pad(heads, (0, 0, 0, 0, reach, reach))
        return padded.unfold(1, 2 * reach + 1, 1).movedim(-1, 2).flatten(2, 3)

    def _neighbouring(
        self, mask: Bool[Tensor, "#N #T P"] | None, key: Float[Tensor, "N h P e"]
    ) -> Bool[Tensor, "#N h #T WP"]:
        """The mask of widened heads: no head beyond the first and the last."""
        exists = self._widen(torch.ones_like(key[:1, :, :, :1])).bool().mT  # (1, h, 1, W·P)
        if mask is None:
            return exists
        return exists & mask.repeat(1, 1, 2 * self.head_window + 1).unsqueeze(1)


def _weights(
    query: Float[Tensor, "N h T e"],
    key: Float[Tensor, "N h P e"],
    mask: Bool[Tensor, "#N #h #T P"] | None,
) -> Float[Tensor, "N h T P"]:
    """The softmax of scaled dot products, every head for itself; zeros where all is masked."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        mask = mask.expand(*scores.shape[:2], -1, -1).flatten(0, 1)
    return masked_softmax(scores.flatten(0, 1), mask).view_as(scores)


def causal(length: int, past: int = 0, device: torch.device | None = None) -> Bool[Tensor, "1 T P"]:
    """True where a vector may attend so that none sees a later one; ``past`` came before all."""
    ones = torch.ones(1, length, past + length, dtype=torch.bool, device=device)
    return ones.tril(past)
