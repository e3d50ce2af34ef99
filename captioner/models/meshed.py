"""The meshed-memory Transformer: learned memory slots, and attention to every encoder layer."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.annotations import Annotations
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
from captioner.models.registry import require
from captioner.models.scores import PreparedKeys, Queries, Vectors
from captioner.models.tensors import map_tensors
from captioner.models.transformer import TransformerDecoder


class MemorySlots(nn.Module):
    """Self-attention to the vectors and to m learned keys and values (arXiv 1912.08226, eq. 2)::

    K = [W_k X; M_k]     V = [W_v X; M_v]
    """

    def __init__(self, attention: SelfAttention, slots: int) -> None:
        super().__init__()
        self.attention, dim = attention, attention.query.in_features
        self.slots = nn.Parameter(torch.randn(slots, 2 * dim) / dim**0.5)  # [M_k, M_v]

    def forward(self, vectors: Float[Tensor, "N T d"], mask: Mask = None) -> Tensor:
        attention, slots = self.attention, self.slots.expand(len(vectors), -1, -1)
        key_value = torch.cat([attention.key_value(vectors), slots.to(vectors.dtype)], 1)
        mask = None if mask is None else F.pad(mask, (0, slots.shape[1]), value=True)
        context, _ = attention.attend(attention.query(vectors), key_value, mask)
        return attention.output(context)


class MemoryNeck(TransformerNeck):
    """The encoder of the meshed-memory Transformer (Cornia et al. 2020, arXiv 1912.08226, §3.1).

    A ``TransformerNeck`` with ``MemorySlots`` in every layer. Its vectors are the outputs of all
    layers, concatenated, for ``MeshedDecoder``.

    Args:
        layers: N; 3 in the paper.
        slots: m, the number of memory slots of a layer; 40 in the paper.
        options: as for ``TransformerNeck``.
    """

    def __init__(self, in_dim: int, layers: int = 3, slots: int = 40, **options: Any) -> None:
        super().__init__(in_dim, layers=layers, **options)
        self.out_dim *= layers
        for layer in self.stack:
            layer.attention = MemorySlots(layer.attention, slots)

    def forward(self, annotations: Annotations) -> Annotations:
        refined = super().forward(annotations)
        if refined.keys is None:
            return refined
        # The keys of a second stream are those of every layer.
        keys = refined.keys.map(lambda vectors: vectors.repeat(1, 1, len(self.stack)))
        return replace(refined, keys=keys)

    def read_out(self, outputs: list[Float[Tensor, "B L d"]]) -> Float[Tensor, "B L Nd"]:
        return torch.cat([self.norm(output) for output in outputs], -1)


class MeshedAttention(WrappedAttention, abstract=True):
    """Attention to the output x̃ⁱ of every encoder layer (Cornia et al. 2020, eq. 5 and 6)::

        ẑ = Σ_i α_i ⊙ C(x̃ⁱ, q)     α_i = σ(W_i [q; C(x̃ⁱ, q)] + b_i)

    C is one attention for all layers. The weights shown are the mean over the layers.

    Args:
        key_dim: the width of one x̃ⁱ; the annotations hold all N of them.
        attention: makes C.
        levels: N.
    """

    def __init__(
        self, query_dim: int, key_dim: int, attention: AttentionFactory, levels: int
    ) -> None:
        super().__init__()
        self.attention = attention(query_dim, key_dim)
        self.gates = nn.ModuleList(nn.Linear(query_dim + key_dim, key_dim) for _ in range(levels))

    @property
    def mechanism(self) -> str:
        return f"meshed {self.attention.mechanism}"

    def project(self, keys: Vectors, values: Vectors) -> tuple[PreparedKeys, Vectors]:
        levels = zip(self._split(keys), self._split(values), strict=True)
        projected = [self.attention.project(*level) for level in levels]
        prepared, averaged = (torch.cat(parts, -1) for parts in zip(*projected, strict=True))
        return prepared, averaged

    def attend(
        self, queries: Queries, keys: Keys, step: Step, sentinels: Sentinels = None
    ) -> AttentionOutput:
        outputs = []
        levels = zip(self.gates, self._split(keys.prepared), self._split(keys.values), strict=True)
        for gate, prepared, values in levels:
            level = replace(keys, prepared=prepared, values=values)
            output = self.attention.attend(queries, level, step, sentinels)  # C(x̃ⁱ, q)
            alpha = torch.sigmoid(gate(torch.cat([queries, output.context], -1)))
            outputs.append(replace(output, context=alpha * output.context))
        stacked = map_tensors(lambda *parts: torch.stack(parts), *outputs)
        mean = map_tensors(lambda parts: parts.mean(0), stacked)
        choice = None if stacked.choice is None else stacked.choice.joint(0)
        return replace(mean, context=stacked.context.sum(0), choice=choice)

    def _split(self, vectors: Vectors) -> tuple[Vectors, ...]:
        return vectors.chunk(len(self.gates), -1)


class MeshedDecoder(TransformerDecoder):
    """A ``TransformerDecoder`` with ``MeshedAttention`` to the layers of ``MemoryNeck``.

    Args:
        attention: makes the cross-attention C of every decoder layer.
        levels: N, the number of layers of the neck.
        options: as for ``TransformerDecoder``.
    """

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        attention: AttentionFactory = MultiHead,
        levels: int = 3,
        **options: Any,
    ) -> None:
        require(
            annotation_dim % levels == 0,
            f"{levels} levels do not divide annotations of width {annotation_dim}; MemoryNeck has as "
            "many layers as the decoder has levels",
        )
        meshed = partial(MeshedAttention, attention=attention, levels=levels)
        super().__init__(vocab_size, annotation_dim // levels, meshed, **options)
        self.project_annotations = Levels(self.project_annotations, levels)


class Levels(nn.Module):
    """Apply a module to each of N concatenated parts of every vector."""

    def __init__(self, module: nn.Module, levels: int) -> None:
        super().__init__()
        self.module, self.levels = module, levels

    def forward(self, vectors: Float[Tensor, "B L Nw"]) -> Float[Tensor, "B L Nd"]:
        parts = torch.unflatten(vectors, -1, (self.levels, -1))
        return self.module(parts).flatten(-2)
