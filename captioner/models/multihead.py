"""Multi-head attention and self-attention (Vaswani et al. 2017, §3.2)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.models.attention import (
    AttentionBase,
    AttentionOutput,
    DistributionFactory,
    Keys,
    Sentinels,
    Step,
)
from captioner.models.distributions import QueryContext, Soft, masked_softmax
from captioner.models.registry import require
from captioner.models.scores import PreparedKeys, Queries, Vectors
from captioner.models.sentinel import mix, sentinel_weight

Mask = Bool[Tensor, "#N #T P"] | None


def check_heads(heads: int, dim: int) -> None:
    """Raise ModelError if the heads do not divide the width."""
    require(heads >= 1 and dim % heads == 0, f"{heads} heads do not divide a width of {dim}")


def split_heads(vectors: Float[Tensor, "N T d"], heads: int) -> Float[Tensor, "N h T e"]:
    """Split every vector into the parts of the heads, e = d / h components each."""
    return torch.unflatten(vectors, -1, (heads, -1)).transpose(1, 2)


def join_heads(vectors: Float[Tensor, "N h T e"]) -> Float[Tensor, "N T d"]:
    """Undo ``split_heads``."""
    return vectors.transpose(1, 2).flatten(2)


class MultiHead(AttentionBase):
    """``W_O [head_1; …; head_h]``, head i = p((W_q q)ᵢᵀ (W_k k)ᵢ / √(d/h)) · (W_v v)ᵢ.

    Args:
        heads: h.
        dim: d, the width of all heads together; a multiple of h.
        distribution: makes the distribution p; every head applies it independently.
        dropout: probability of dropping a weight in training, as in ``torch.nn.MultiheadAttention``.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        heads: int = 8,
        dim: int = 512,
        distribution: DistributionFactory = Soft,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_heads(heads, dim)
        self.heads = heads
        self.query = nn.Linear(query_dim, dim, bias=False)
        self.key = nn.Linear(key_dim, dim, bias=False)
        self.value = nn.Linear(key_dim, dim, bias=False)
        self.output = nn.Linear(dim, key_dim, bias=False)
        self.distribution = distribution(dim // heads)
        self.distribution.set_heads(heads)
        self.dropout = nn.Dropout(dropout)

    def project(self, keys: Vectors, values: Vectors) -> tuple[PreparedKeys, Vectors]:
        return self.key(keys), self.value(values)

    def attend(
        self, queries: Queries, keys: Keys, step: Step, sentinels: Sentinels = None
    ) -> AttentionOutput:
        query, key, value = (
            split_heads(vectors, self.heads)
            for vectors in (self.query(queries), keys.prepared, keys.values)
        )  # (B, h, T or L, d/h)
        mask = None if keys.mask is None else keys.mask[:, None, None]  # (B, 1, 1, L)
        if isinstance(step, Tensor) and step.ndim > 1:
            step = step.unsqueeze(1)  # (B, 1, T)
        query_context = QueryContext(query, keys.grid, step, keys.sampling)

        scores = query @ key.mT / math.sqrt(query.shape[-1])  # (B, h, T, L)
        alpha = self.distribution(scores, mask, query_context)
        weights = alpha.weights
        heads = self.dropout(weights).to(value.dtype) @ value
        if sentinels is not None:  # every head has its own β
            sentinel_key, sentinel_value = (
                split_heads(part, self.heads) for part in self.project(sentinels, sentinels)
            )  # (B, h, T, d/h)
            score = (query * sentinel_key).sum(-1) / math.sqrt(query.shape[-1])
            beta = sentinel_weight(score, scores, mask)
            heads = mix(beta, sentinel_value, heads)
            weights = (1 - beta) * weights
        context = self.output(join_heads(heads))
        choice = None if alpha.choice is None else alpha.choice.joint(1)
        by_query = weights.transpose(1, 2)  # (B, T, h, L)
        return AttentionOutput(context, weights.mean(1), choice=choice, heads=by_query)


class SelfAttention(nn.Module):
    """``W_O [head_1; …; head_h]``, head i = softmax(Qᵢ Kᵢᵀ / √(d/h)) Vᵢ with Q, K, V from one sequence.

    Args:
        dim: d, the width of the vectors; a multiple of ``heads``.
        heads: h.
    """

    # The number of neighbouring heads on either side that a head attends to as well, under one softmax
    # (Yang et al. 2019, arXiv 1904.03107, §3).
    head_window = 0

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        check_heads(heads, dim)
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)

    def forward(self, vectors: Float[Tensor, "N T d"], mask: Mask = None) -> Tensor:
        """Attend from every vector to those where the mask is True."""
        context, _ = self.attend(self.query(vectors), self.key_value(vectors), mask)
        return self.output(context)

    def attend(
        self, query: Float[Tensor, "N T d"], key_value: Float[Tensor, "N P dd"], mask: Mask
    ) -> tuple[Float[Tensor, "N T d"], Float[Tensor, "N T h P"]]:
        """Return contexts and weights, without the input and output projections.

        With ``head_window``, the weight of a vector is summed over the heads of the window.
        """
        query = split_heads(query, self.heads)  # (N, h, T, e)
        key, value = (split_heads(part, self.heads) for part in key_value.chunk(2, -1))
        head_mask = None if mask is None else mask.unsqueeze(1)  # (N, 1, T, P)
        if self.head_window:
            head_mask = self._window_mask(mask, key)
            key, value = self._widen(key), self._widen(value)
        weights = masked_softmax(query @ key.mT / math.sqrt(query.shape[-1]), head_mask)
        context = weights.to(value.dtype) @ value
        weights = torch.unflatten(weights, -1, (-1, key_value.shape[1])).sum(-2)
        return join_heads(context), weights.transpose(1, 2)

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
