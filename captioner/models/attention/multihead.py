"""Attention of several heads, each with its own projections (Vaswani et al. 2017, §3.2.2)."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
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
from captioner.models.linear import Linear

# Places up to which torch's fused kernel takes longer for a gradient in float32 on a CPU than its parts.
SMALL = 200


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
        ModelError: the heads do not divide the width; positions of every head would have to be tried.
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
        check_heads(heads, dim)
        self.heads = heads
        self.out_dim = memory_dim
        self.query = Linear(query_dim, dim, bias=False)
        self.key = Linear(memory_dim, dim, bias=False)
        self.value = Linear(memory_dim, dim, bias=False)
        self.output = Linear(dim, memory_dim, bias=False)
        self.distribution = distribution(query_dim=dim // heads)
        if self.distribution.branches:
            raise ModelError(
                "gradient: marginal tries the positions of one head, and MultiHead has several: "
                "choose the attention Attention, or the gradient straight_through"
            )
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
            self.distribution.coins(vectors),
        )

    def answer(
        self,
        queries: Float[Tensor, "B T n"],
        keys: Keys,
        step: int | Int[Tensor, "*pictures T"] | None,
        need_weights: bool,
    ) -> Attended:
        """Every head for itself; then all together. Soft weights nobody asks for are ``fused``."""
        query, key, value = (
            split_heads(vectors, self.heads)
            for vectors in (self.query(queries), keys.prepared, keys.values)
        )  # (B, h, T or L, d/h)
        mask = None if keys.mask is None else keys.mask[:, None, None]  # (B, 1, 1, L)
        if not need_weights and isinstance(self.distribution, Soft):
            dropout = self.dropout.p if self.training else 0.0
            found = fused(query, key, value, mask, dropout)
            return Attended(self.output(join_heads(found)), None)
        pictures, heads, words, width = query.shape
        scores = query @ key.mT / math.sqrt(width)  # (B, h, T, L)
        coins = None if keys.coins is None else keys.coins.repeat_interleave(heads)
        if isinstance(step, Tensor) and step.ndim > 1:
            step = step.repeat_interleave(heads, 0)
        drawn = self.distribution(
            scores.flatten(0, 1),
            None if mask is None else mask.expand(-1, heads, -1, -1).flatten(0, 1),
            Asked(query.flatten(0, 1), keys.grid, step, coins),
        )  # every head as if it were a picture
        weights = drawn.weights.view(pictures, heads, words, -1)
        found = self.dropout(weights).to(value.dtype) @ value

        def together(values: Tensor | None) -> Tensor | None:
            """Heads draw independently: log-probabilities and entropies add up."""
            return None if values is None else values.view(pictures, heads, words).sum(1)

        expected = drawn.expected
        return Attended(
            self.output(join_heads(found)),
            weights.mean(1),
            together(drawn.log_prob),
            together(drawn.entropy),
            weights.transpose(1, 2),
            expected=None if expected is None else expected.view_as(weights).mean(1),
        )


def check_heads(heads: int, dim: int) -> None:
    """Raises ModelError where the heads do not divide the width."""
    if heads < 1 or dim % heads:
        raise ModelError(
            f"{heads} heads do not divide a width of {dim}: choose heads that do, or another dim"
        )


def split_heads(vectors: Float[Tensor, "N T d"], heads: int) -> Float[Tensor, "N h T e"]:
    """The components of each vector dealt out to the heads, e = d / h each."""
    return vectors.view(*vectors.shape[:2], heads, -1).transpose(1, 2)


def join_heads(vectors: Float[Tensor, "N h T e"]) -> Float[Tensor, "N T d"]:
    """The heads side by side again."""
    return vectors.transpose(1, 2).flatten(2)


def fused(
    query: Float[Tensor, "N h T e"],
    key: Float[Tensor, "N h L e"],
    value: Float[Tensor, "N h L f"],
    mask: Bool[Tensor, "#N #h #T #L"] | None,
    dropout: float,
) -> Float[Tensor, "N h T f"]:
    """Softmax attention whose weights nobody asks for, in torch's own kernel where that is faster; zeros
    where all is masked."""
    small = query.dtype == torch.bfloat16 or key.shape[-2] <= SMALL
    if torch.is_grad_enabled() and query.device.type == "cpu" and small:
        found = _by_parts(query, key, value, mask, dropout)
    else:
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return found if mask is None else found.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def _by_parts(
    query: Float[Tensor, "N h T e"],
    key: Float[Tensor, "N h L e"],
    value: Float[Tensor, "N h L f"],
    mask: Bool[Tensor, "#N #h #T #L"] | None,
    dropout: float,
) -> Float[Tensor, "N h T f"]:
    """``fused`` for a gradient on a CPU (docs/speed.md); the mean of all values where all is masked."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    wide = torch.promote_types(scores.dtype, torch.float32)
    if mask is not None:
        # Added, for that takes a fraction of the time of filling in.
        penalty = torch.zeros_like(mask, dtype=wide)
        scores = scores + penalty.masked_fill_(~mask, torch.finfo(wide).min)
    weights = F.dropout(scores.softmax(-1, dtype=wide), dropout)
    return weights.to(value.dtype) @ value
