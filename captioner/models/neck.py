"""Necks, between encoder and decoder: annotations → better annotations."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner import distributed
from captioner.models.annotations import Annotations
from captioner.models.attention import Attention
from captioner.models.multihead import SelfAttention, feed_forward_network
from captioner.models.positions import Axis, cells, grid_cosines, grid_sinusoids
from captioner.models.registry import Component, require
from captioner.models.scores import ScaledDot


class Neck(Component, kind="neck"):
    """Base of all necks: vectors of width ``in_dim`` (the encoder's D) → vectors of ``out_dim``.

    ``key_dim`` is the width of the encoder's keys, or None if it has one stream. After the neck, keys
    and vectors have the same width and grid.
    """

    out_dim: int

    def forward(self, annotations: Annotations) -> Annotations:
        """Return new vectors for the same regions."""
        raise NotImplementedError


@runtime_checkable
class NeckFactory(Protocol):
    """Makes a neck for an encoder's widths."""

    def __call__(self, *, in_dim: int, key_dim: int | None) -> Neck: ...


class Identity(Neck):
    """The annotations of an encoder of one stream, unchanged (Xu et al. 2015)."""

    def __init__(self, in_dim: int, *, key_dim: int | None = None) -> None:
        super().__init__()
        require(key_dim is None, "Identity is for encoders of one stream: choose Projection")
        self.out_dim = in_dim

    def forward(self, annotations: Annotations) -> Annotations:
        return annotations


class Projection(Neck):
    """Layer norm, a linear map to ``dim`` and ReLU, applied to every annotation vector.

    Attention over a narrow projection learns faster and overfits less than over CNN features. The keys
    of a second stream get a projection of their own, and the vectors are interpolated to their grid.

    Args:
        dim: the width of the result.
        dropout: probability of dropping a component of the result.
        positions: number of cosines of the row, and as many of the column, that are appended to
            every vector before the linear map, so that similar regions differ by their position.
        add_keys: add a linear map of the normalised keys to the result, so that the decoder reads what
            both encoders of a ``TwoStreamEncoder`` see. The map starts at 0.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int = 512,
        dropout: float = 0.0,
        positions: int = 0,
        add_keys: bool = False,
        *,
        key_dim: int | None = None,
    ) -> None:
        super().__init__()
        require(
            key_dim is not None or not add_keys,
            "add_keys: true needs an encoder of two streams: choose TwoStreamEncoder",
        )
        self.out_dim = dim
        self.positions = positions
        self.layers = _projection(in_dim, dim, dropout, positions)
        self.key_layers = _projection(key_dim, dim, dropout, positions) if key_dim else None
        self.added = _map_from_zero(key_dim, dim, dropout) if add_keys and key_dim else None

    def forward(self, annotations: Annotations) -> Annotations:
        projected = self._project(self.layers, annotations)
        if annotations.keys is None or self.key_layers is None:
            return projected
        keys = self._project(self.key_layers, annotations.keys)
        vectors = projected.resampled(keys.grid).vectors
        if self.added is not None:
            vectors = vectors + self.added(annotations.keys.vectors)
        return replace(keys, vectors=vectors, keys=keys)

    def _project(self, layers: nn.Sequential, annotations: Annotations) -> Annotations:
        vectors = layers[0](annotations.vectors)
        if self.positions:
            boxes = annotations.boxes
            cosines = grid_cosines(annotations.grid, self.positions, vectors, boxes)
            vectors = torch.cat([vectors, cosines.expand(*vectors.shape[:-1], -1)], -1)
        return replace(annotations, vectors=layers[1:](vectors))


def _projection(in_dim: int, dim: int, dropout: float, positions: int) -> nn.Sequential:
    linear = nn.Linear(in_dim + 2 * positions, dim)
    return nn.Sequential(nn.LayerNorm(in_dim), linear, nn.ReLU(), nn.Dropout(dropout))


def _map_from_zero(in_dim: int, dim: int, dropout: float) -> nn.Sequential:
    linear = nn.Linear(in_dim, dim)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.LayerNorm(in_dim), linear, nn.Dropout(dropout))


class Blind(Projection):
    """Replace every annotation by a running mean over images and cells of the training batches.

    A captioner with this neck shows what the language model alone achieves. It ignores a second stream.
    """

    mean: Tensor
    batches: Tensor

    def __init__(self, in_dim: int, *, key_dim: int | None = None, **options: Any) -> None:
        super().__init__(in_dim, **options)
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, annotations: Annotations) -> Annotations:
        if self.training:
            self.batches += 1
            # A training process without readable images passes zeros, which must not count.
            real = annotations.vectors.detach().ne(0).flatten(1).any(1)
            mean = annotations.mean().detach()[real].sum(0) / distributed.share(real.sum())
            self.mean += (distributed.mean(mean) - self.mean) / self.batches
        blank = self.mean.expand_as(annotations.vectors)
        return super().forward(replace(annotations, vectors=blank, keys=None))


class SAGAN(Projection):
    """``y = x + γ W_v Σ_i β_i W_h x_i`` after the projection (Zhang et al. 2019, arXiv 1805.08318, §3).

    ``β_i = softmax_i((W_f x_i)ᵀ W_g x)``; W_f, W_g and W_h project to an eighth of the width. γ
    starts at 0, so that each region is learned on its own before the relations between regions.

    Args:
        dim: the width of the result, 8 or more.
        options: as for ``Projection``.
    """

    def __init__(self, in_dim: int, dim: int = 512, **options: Any) -> None:
        super().__init__(in_dim, dim, **options)
        self.attention = Attention(dim, dim, partial(ScaledDot, dim=dim // 8, scale="none"))
        self.value = nn.Linear(dim, dim // 8, bias=False)
        self.output = nn.Linear(dim // 8, dim, bias=False)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, annotations: Annotations) -> Annotations:
        projected = super().forward(annotations)
        vectors = projected.vectors
        keys = self.attention.prepare(replace(projected, keys=None), self.value(vectors))
        context = self.attention(vectors, keys).context
        return replace(projected, vectors=vectors + self.gamma * self.output(context))


class TransformerNeck(Projection):
    """N layers of a Transformer encoder over the projected vectors (Vaswani et al. 2017).

    Two-dimensional sinusoidal positions are added first. The layers are pre-norm, and a norm
    follows the last one.

    Args:
        dim: the width of the result; a multiple of ``heads`` and of 4.
        dropout: probability of dropping a component of the projection and of every sublayer's output.
        layers: N.
        heads: number of self-attention heads.
        feed_forward: the width of the feed-forward networks' hidden layer; 0 for no such networks.
        options: as for ``Projection``.
    """

    stack: "Sequence[EncoderLayer]"

    def __init__(
        self,
        in_dim: int,
        dim: int = 512,
        dropout: float = 0.0,
        layers: int = 2,
        heads: int = 8,
        feed_forward: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__(in_dim, dim, dropout, **options)
        require(dim % 4 == 0, f"{type(self).__name__} needs a dim divisible by 4, got {dim}")
        self.stack = nn.ModuleList(  # type: ignore[assignment]
            EncoderLayer(dim, heads, feed_forward, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, annotations: Annotations) -> Annotations:
        projected = super().forward(annotations)
        mask = self.reach(*cells(projected.grid, projected.vectors.device))
        if projected.mask is not None:
            valid = projected.mask.unsqueeze(1)  # (B, 1, L)
            mask = valid if mask is None else valid & mask
        x, boxes = projected.vectors, projected.boxes
        x = x + grid_sinusoids(projected.grid, x.shape[-1], x, boxes)
        outputs = []
        for layer in self.stack:
            x = layer(x, mask)
            outputs.append(x)
        return replace(projected, vectors=self.read_out(outputs))

    def read_out(self, outputs: list[Float[Tensor, "B L d"]]) -> Float[Tensor, "B L _"]:
        """Return the new annotation vectors from the outputs of all layers."""
        return self.norm(outputs[-1])

    def reach(self, row: Axis, column: Axis) -> Bool[Tensor, "1 L L"] | None:
        """Return True where a region (second axis) may attend to a region (third); None for all."""
        return None


class Convolutional(TransformerNeck):
    """Each region attends to its neighbours, in neighbouring heads too (Yang et al. 2019).

    Convolutional self-attention of arXiv 1904.03107, §3, with a window over both axes of the grid.
    All scores are computed, and those outside the window are masked.

    Args:
        window: cells to either side, along both axes, that a region attends to; 1 or more.
        head_window: number of neighbouring heads on either side that a head attends to as well.
        options: as for ``TransformerNeck``.
    """

    needs_grid = True

    def __init__(self, in_dim: int, window: int = 1, head_window: int = 1, **options: Any) -> None:
        super().__init__(in_dim, **options)
        self.window = window
        for layer in self.stack:
            layer.attention.head_window = head_window

    def reach(self, row: Axis, column: Axis) -> Bool[Tensor, "1 L L"]:
        near = [(axis[:, None] - axis).abs() <= self.window for axis in (row, column)]
        return (near[0] & near[1]).unsqueeze(0)


class Local2D(TransformerNeck):
    """Blocks of regions attend to a larger block around them (Parmar et al. 2018).

    Two-dimensional local attention of the Image Transformer, arXiv 1802.05751, §3.2, without
    causality. All scores are computed, and those outside the larger block are masked.

    Args:
        block: the side of a block of regions, in cells; 1 or more.
        margin: cells on every side of a block that it attends to as well; 0 or more.
        options: as for ``TransformerNeck``.
    """

    needs_grid = True

    def __init__(self, in_dim: int, block: int = 2, margin: int = 1, **options: Any) -> None:
        super().__init__(in_dim, **options)
        self.block, self.margin = block, margin

    def reach(self, row: Axis, column: Axis) -> Bool[Tensor, "1 L L"]:
        near = []
        for axis in (row, column):
            first = axis // self.block * self.block  # first cell of the query's block
            low, high = first - self.margin, first + self.block + self.margin
            near.append((axis >= low[:, None]) & (axis < high[:, None]))
        return (near[0] & near[1]).unsqueeze(0)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each ``x + dropout(f(norm(x)))`` (pre-norm).

    Without the feed-forward network if its width is 0.
    """

    def __init__(self, dim: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 if feed_forward else 1))
        self.attention: Any = SelfAttention(dim, heads)  # some necks wrap it
        self.feed_forward = (
            feed_forward_network(dim, feed_forward, dropout) if feed_forward else None
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "B L d"], mask: Bool[Tensor, "#B #L L"] | None
    ) -> Float[Tensor, "B L d"]:
        x = x + self.dropout(self.attention(self.norms[0](x), mask))
        if self.feed_forward is None:
            return x
        return x + self.dropout(self.feed_forward(self.norms[1](x)))
