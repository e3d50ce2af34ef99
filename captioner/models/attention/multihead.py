"""Attention of several heads, each with its own projections (Vaswani et al. 2017, §3.2.2)."""

import math

from jaxtyping import Float, Int
from torch import Tensor, nn

from captioner.errors import ModelError
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import (
    Attended,
    AttentionBase,
    DistributionFactory,
    Keys,
)
from captioner.models.attention.distributions import Asked, Soft


class MultiHead(AttentionBase):
    """``W_O [head_1; …; head_h]``, head i = p((W_q q)ᵢᵀ (W_k k)ᵢ / √(d/h)) · (W_v v)ᵢ.

    Args:
        query_dim: n, the width of a query.
        memory_dim: D, the width of an annotation vector.
        heads: h.
        dim: d, of all heads together; a multiple of h.
        distribution: makes the distribution, which every head draws from for itself.
        dropout: probability of dropping a weight while training, as ``torch.nn.MultiheadAttention``.

    Raises:
        ModelError: the heads do not divide the width.
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        heads: int = 8,
        dim: int = 512,
        distribution: DistributionFactory = Soft,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ModelError(
                f"{heads} heads do not divide a width of {dim}: choose heads that do, or another dim"
            )
        self.heads = heads
        self.out_dim = memory_dim
        self.query = nn.Linear(query_dim, dim, bias=False)
        self.key = nn.Linear(memory_dim, dim, bias=False)
        self.value = nn.Linear(memory_dim, dim, bias=False)
        self.output = nn.Linear(dim, memory_dim, bias=False)
        self.distribution = distribution(query_dim=dim // heads)
        self.dropout = nn.Dropout(dropout)

    def prepare(
        self, annotations: Annotations, values: Float[Tensor, "B L D"] | None = None
    ) -> Keys:
        """Keys and values projected, the heads side by side."""
        vectors = annotations.vectors
        return Keys(
            self.key(vectors),
            self.value(vectors if values is None else values),
            annotations.mask,
            annotations.grid,
        )

    def answer(
        self,
        queries: Float[Tensor, "B T n"],
        keys: Keys,
        step: int | Int[Tensor, " T"] | None,
    ) -> Attended:
        """Every head for itself; then all together."""
        pictures, words, _ = queries.shape
        query, key, value = map(self._split, (self.query(queries), keys.prepared, keys.values))
        scores = query @ key.mT / math.sqrt(query.shape[-1])  # (B·h, T, L)
        mask = keys.mask
        if mask is not None:
            mask = mask.unsqueeze(1).repeat_interleave(self.heads, 0)
        drawn = self.distribution(scores, mask, Asked(query, keys.grid, step))
        found = self.dropout(drawn.weights).to(value.dtype) @ value  # (B·h, T, d/h)
        context = self.output(
            found.view(pictures, self.heads, words, -1).transpose(1, 2).flatten(2)
        )
        weights = drawn.weights.view(pictures, self.heads, words, -1).transpose(1, 2)

        def together(values: Tensor | None) -> Tensor | None:
            """Heads draw independently: log-probabilities and entropies add up."""
            return None if values is None else values.view(pictures, self.heads, words).sum(1)

        return Attended(
            context, weights.mean(2), together(drawn.log_prob), together(drawn.entropy), weights
        )

    def _split(self, vectors: Float[Tensor, "B N d"]) -> Float[Tensor, "Bh N e"]:
        """Heads become pictures of their own."""
        pictures, positions, _ = vectors.shape
        return (
            vectors.view(pictures, positions, self.heads, -1)
            .transpose(1, 2)
            .reshape(pictures * self.heads, positions, -1)
        )
