"""Attention on attention: the query decides which part of a context vector it uses (AoANet)."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.attention import (
    AttentionFactory,
    AttentionOutput,
    Keys,
    Sentinels,
    Step,
    WrappedAttention,
)
from captioner.models.multihead import Mask, MultiHead, SelfAttention
from captioner.models.neck import TransformerNeck
from captioner.models.scores import Queries


class InformationGate(nn.Module):
    """``σ(W_g [q; ẑ] + b_g) ⊙ (W_i [q; ẑ] + b_i)`` (Huang et al. 2019, arXiv 1908.06954, eq. 3 to 5)."""

    def __init__(self, query_dim: int, context_dim: int) -> None:
        super().__init__()
        self.both = nn.Linear(query_dim + context_dim, 2 * context_dim)  # information, then gate

    def forward(
        self, query: Float[Tensor, "B T n"], context: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        return F.glu(self.both(torch.cat([query, context], -1)))


class AttentionOnAttention(WrappedAttention):
    """Any attention, followed by ``InformationGate`` (Huang et al. 2019, §3.1).

    The decoder of AoANet (§3.2.2) is a ``LuongDecoder`` with this attention and ``global_feature``. Its
    h̃ takes the place of the paper's context vector.

    Args:
        attention: makes the attention whose result is gated.
    """

    def __init__(
        self, query_dim: int, key_dim: int, attention: AttentionFactory = MultiHead
    ) -> None:
        super().__init__()
        self.attention = attention(query_dim, key_dim)
        self.gate = InformationGate(query_dim, key_dim)

    @property
    def mechanism(self) -> str:
        return f"{type(self).__name__}: {self.attention.mechanism}"

    def attend(
        self, queries: Queries, keys: Keys, step: Step, sentinels: Sentinels = None
    ) -> AttentionOutput:
        output = self.attention.attend(queries, keys, step, sentinels)
        return replace(output, context=self.gate(queries, output.context))


class GatedSelfAttention(nn.Module):
    """``InformationGate`` after self-attention: the queries are the vectors themselves."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        dim = attention.query.in_features
        self.attention, self.gate = attention, InformationGate(dim, dim)

    def forward(self, vectors: Float[Tensor, "N T d"], mask: Mask = None) -> Tensor:
        return self.gate(vectors, self.attention(vectors, mask))


class AoARefiner(TransformerNeck):
    """``x = x + AoA(MultiHead(norm x))`` in every layer (Huang et al. 2019, §3.2.1).

    As in the paper, the gate replaces the feed-forward network of ``TransformerNeck``.

    Args:
        layers: number of layers; 6 in the paper.
        options: as for ``TransformerNeck``; ``feed_forward`` above 0 adds a feed-forward network.
    """

    def __init__(self, in_dim: int, layers: int = 6, feed_forward: int = 0, **options: Any) -> None:
        super().__init__(in_dim, layers=layers, feed_forward=feed_forward, **options)
        for layer in self.stack:
            layer.attention = GatedSelfAttention(layer.attention)
