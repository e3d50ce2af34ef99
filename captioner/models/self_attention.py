"""Self-attention: a sequence attends to itself (Vaswani et al. 2017, §3.2)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.models.distributions import masked_softmax
from captioner.models.multihead import check_heads, join_heads, softmax_attention, split_heads
from captioner.models.registry import require

Mask = Bool[Tensor, "#N #T P"] | None
SelfAttentionOutput = tuple[Float[Tensor, "N T d"], Float[Tensor, "N T h P"] | None]


class SelfAttention(nn.Module):
    """``W_O [head_1; …; head_h]``, head i = softmax(Qᵢ Kᵢᵀ / √(d/h)) Vᵢ with Q, K, V from one sequence.

    Args:
        dim: d, the width of the vectors; a multiple of ``heads``.
        heads: h.
        head_window: number of neighbouring heads on either side that a head attends to as well,
            under one softmax (Yang et al. 2019, arXiv 1904.03107, §3).
    """

    def __init__(self, dim: int, heads: int, head_window: int = 0) -> None:
        super().__init__()
        check_heads(heads, dim)
        require(head_window >= 0, f"head_window must be 0 or more, got {head_window}")
        self.heads = heads
        self.head_window = head_window
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(
        self, vectors: Float[Tensor, "N T d"], mask: Mask = None, need_weights: bool = False
    ) -> SelfAttentionOutput:
        """Attend from every vector to those where the mask is True; see ``attend``."""
        query, key_value = self.query(vectors), self.key_value(vectors)
        context, weights = self.attend(query, key_value, mask, need_weights)
        return self.output(context), weights

    def attend(
        self,
        query: Float[Tensor, "N T d"],
        key_value: Float[Tensor, "N P dd"],
        mask: Mask,
        need_weights: bool,
    ) -> SelfAttentionOutput:
        """Attend without the input and output projections.

        Returns:
            The contexts and, if ``need_weights``, which takes longer, the weights. With
            ``head_window``, the weight of a vector is the sum over the heads attended to.
        """
        query = split_heads(query, self.heads)  # (N, h, T, e)
        key, value = (split_heads(part, self.heads) for part in key_value.chunk(2, -1))
        head_mask = None if mask is None else mask.unsqueeze(1)  # (N, 1, T, P)
        if self.head_window:
            head_mask = self._window_mask(mask, key)
            key, value = self._widen(key), self._widen(value)
        if not need_weights:
            return join_heads(softmax_attention(query, key, value, head_mask, 0.0)), None
        weights = masked_softmax(query @ key.mT / math.sqrt(query.shape[-1]), head_mask)
        context = weights.to(value.dtype) @ value
        weights = weights.view(*weights.shape[:3], -1, key_value.shape[1])
        return join_heads(context), weights.sum(-2).transpose(1, 2)

    def _widen(self, heads: Float[Tensor, "N h P e"]) -> Float[Tensor, "N h WP e"]:
        """Concatenate the sequences of the W heads in every head's window, zeros beyond the ends."""
        reach = self.head_window
        padded = F.pad(heads, (0, 0, 0, 0, reach, reach))
        return padded.unfold(1, 2 * reach + 1, 1).movedim(-1, 2).flatten(2, 3)

    def _window_mask(self, mask: Mask, key: Float[Tensor, "N h P e"]) -> Bool[Tensor, "#N h #T WP"]:
        """Widen the mask, excluding heads before the first and after the last."""
        exists = self._widen(torch.ones_like(key[:1, :, :, :1])).bool().mT  # (1, h, 1, W·P)
        if mask is None:
            return exists
        return exists & mask.repeat(1, 1, 2 * self.head_window + 1).unsqueeze(1)


def causal(length: int, total: int, device: torch.device) -> Bool[Tensor, "1 T P"]:
    """Return True where each of the last T of P vectors may attend: to itself and those before."""
    return torch.ones(1, length, total, dtype=torch.bool, device=device).tril(total - length)


def feed_forward_network(dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """Return ``W_2 max(0, W_1 x + b_1) + b_2`` with dropout after max (Vaswani et al. 2017, §3.3)."""
    return nn.Sequential(
        nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, dim)
    )
