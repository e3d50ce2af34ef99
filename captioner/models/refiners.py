"""Between encoder and decoder: annotations → better annotations."""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner import processes
from captioner.errors import ModelError
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attention
from captioner.models.attention.scores import ScaledDot
from captioner.models.attention.self_attention import SelfAttention
from captioner.models.linear import Linear
from captioner.models.positions import grid_cosines, grid_sinusoids
from captioner.models.registry import Component


class Refiner(Component, kind="refiner"):
    """Base of all refiners. ``out_dim`` is the width of the vectors it gives."""

    out_dim: int

    def forward(self, annotations: Annotations) -> Annotations:
        """The same regions, described differently."""
        raise NotImplementedError


class Identity(Refiner):
    """Annotations as the encoder gives them (Xu et al. 2015)."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.out_dim = in_dim

    def forward(self, annotations: Annotations) -> Annotations:
        """Unchanged."""
        return annotations


class Projection(Refiner):
    """Layer norm, a linear map to ``dim`` and ReLU, the same for every annotation vector.

    CNN features are wide and of uneven scale; a narrow projection learns faster and overfits less
    than attention over them directly.

    Args:
        in_dim: D, the width the encoder gives.
        dim: the width of the result.
        dropout: probability of dropping a component of the result.
        positions: how many cosines of its row, and as many of its column, every vector is given
            beside what the CNN saw: things that look alike are then told apart by where they are.

    Raises:
        ModelError: a negative number of positions.
    """

    def __init__(
        self, in_dim: int, dim: int = 512, dropout: float = 0.0, positions: int = 0
    ) -> None:
        super().__init__()
        if positions < 0:
            raise ModelError(f"Projection needs 0 positions or more, got {positions}")
        self.out_dim = dim
        self.positions = positions
        self.layers = nn.Sequential(
            nn.LayerNorm(in_dim),
            Linear(in_dim + 2 * positions, dim),
            nn.ReLU(),
            nn.Dropout(dropout),
        )

    def forward(self, annotations: Annotations) -> Annotations:
        """Every vector projected on its own."""
        vectors = self.layers[0](annotations.vectors)
        if self.positions:
            where = grid_cosines(annotations.grid, self.positions, vectors)
            vectors = torch.cat([vectors, where.expand(*vectors.shape[:-1], -1)], -1)
        projected: Float[Tensor, "B L dim"] = self.layers[1:](vectors)
        return annotations.with_vectors(projected)


class Blind(Projection):
    """Every annotation replaced by the mean over the training set: a captioner that sees nothing.

    What it scores is what the language alone is worth; a captioner must beat it clearly. The mean
    over pictures and cells is a running one, over the training batches so far.
    """

    mean: Tensor
    batches: Tensor

    def __init__(self, in_dim: int, dim: int = 512, dropout: float = 0.0) -> None:
        super().__init__(in_dim, dim, dropout)
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, annotations: Annotations) -> Annotations:
        """The same vectors whatever the picture."""
        if self.training:
            self.batches += 1
            # A process without pictures has zeros in their place, which count nothing.
            seen = annotations.vectors.detach().ne(0).flatten(1).any(1)
            own = annotations.mean().detach()[seen].sum(0) / processes.share(seen.sum())
            self.mean += (processes.mean(own) - self.mean) / self.batches
        blank = self.mean.expand_as(annotations.vectors)
        return super().forward(annotations.with_vectors(blank))


class SAGAN(Projection):
    """``y = γ W_v Σ_i β_i W_h x_i + x``, γ from 0, after the projection (Zhang et al. 2019).

    The self-attention of arXiv 1805.08318, §3: ``β_i = softmax_i((W_f x_i)ᵀ W_g x)``, with W_f, W_g
    and W_h to an eighth of the width. At first nothing is added: what the regions know alone is
    learned before what they know of each other.

    Args:
        in_dim: D, the width the encoder gives.
        dim: the width of the result, 8 or more.
        dropout: probability of dropping a component of the projection.

    Raises:
        ModelError: a width below 8.
    """

    def __init__(self, in_dim: int, dim: int = 512, dropout: float = 0.0) -> None:
        super().__init__(in_dim, dim, dropout)
        if dim < 8:
            raise ModelError(
                f"SAGAN compares an eighth of the width and needs 8 or more, got {dim}"
            )
        narrow = dim // 8
        self.attention = Attention(dim, dim, partial(ScaledDot, dim=narrow, scale="none"))
        self.value = Linear(dim, narrow, bias=False)
        self.output = Linear(narrow, dim, bias=False)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, annotations: Annotations) -> Annotations:
        """Every region looks at all; what it finds is added, times γ."""
        projected = super().forward(annotations)
        vectors = projected.vectors
        keys = self.attention.prepare(projected, self.value(vectors))
        found = self.output(self.attention(vectors, keys).context)
        return projected.with_vectors(vectors + self.gamma * found)


class TransformerRefiner(Projection):
    """N layers of a Transformer's encoder over the projected vectors (Vaswani et al. 2017).

    Two-dimensional sinusoidal positions are added first. Pre-norm: each part reads the norm of its
    input and is added to it; a norm ends the stack.

    Args:
        in_dim: D, the width the encoder gives.
        dim: the width of the result; a multiple of ``heads`` and of 4.
        dropout: probability of dropping a component of the projection and of what is added.
        layers: N.
        heads: of the self-attention.
        feed_forward: the width of the feed-forward networks' hidden layer.
        head_window: how many heads to either side a head also attends to.

    Raises:
        ModelError: the heads do not divide the width, or 4 does not, or there are no layers.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int = 512,
        dropout: float = 0.0,
        layers: int = 2,
        heads: int = 8,
        feed_forward: int = 1024,
        head_window: int = 0,
    ) -> None:
        super().__init__(in_dim, dim, dropout)
        if dim % 4 or layers < 1:
            raise ModelError(
                f"{type(self).__name__} needs a width that 4 divides and 1 layer or more, "
                f"got {dim} and {layers}"
            )
        self.stack = nn.ModuleList(
            EncoderLayer(
                SelfAttention(dim, heads, head_window=head_window), dim, feed_forward, dropout
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, annotations: Annotations) -> Annotations:
        """Every region attends to those within its reach, in every layer."""
        projected = super().forward(annotations)
        vectors = projected.vectors
        mask = self.reach(projected.grid, vectors.device)
        if projected.mask is not None:
            exists = projected.mask.unsqueeze(1)  # (B, 1, L)
            mask = exists if mask is None else exists & mask
        vectors = vectors + grid_sinusoids(projected.grid, self.out_dim, vectors)
        for layer in self.stack:
            vectors = layer(vectors, mask)
        return projected.with_vectors(self.norm(vectors))

    def reach(
        self,
        grid: tuple[int, int],  # noqa: ARG002
        device: torch.device,  # noqa: ARG002
    ) -> Bool[Tensor, "1 L L"] | None:
        """True where a region (second axis) may attend to a region (third); None for everywhere."""
        return None


class Convolutional(TransformerRefiner):
    """Each region attends to a window of its neighbours, in neighbouring heads too (Yang et al. 2019).

    The convolutional self-attention of arXiv 1904.03107, §3, its window over the two axes of the
    grid. A CNN's grid is small, so that all scores are computed and those outside are masked.

    Args:
        in_dim: D, the width the encoder gives.
        dim: the width of the result; a multiple of ``heads`` and of 4.
        dropout: probability of dropping a component of the projection and of what is added.
        layers: N.
        heads: of the self-attention.
        feed_forward: the width of the feed-forward networks' hidden layer.
        window: how many cells to either side, along both axes, a region attends to.
        head_window: how many heads to either side a head also attends to; 0 for its own alone.

    Raises:
        ModelError: as ``TransformerRefiner``; or a window of no cells.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int = 512,
        dropout: float = 0.0,
        layers: int = 2,
        heads: int = 8,
        feed_forward: int = 1024,
        window: int = 1,
        head_window: int = 1,
    ) -> None:
        super().__init__(in_dim, dim, dropout, layers, heads, feed_forward, head_window)
        if window < 1:
            raise ModelError(f"Convolutional needs a window of 1 cell or more, got {window}")
        self.window = window

    def reach(self, grid: tuple[int, int], device: torch.device) -> Bool[Tensor, "1 L L"]:
        """True within the window."""
        row, column = _cells(grid, device)
        return (
            ((row[:, None] - row).abs() <= self.window)
            & ((column[:, None] - column).abs() <= self.window)
        ).unsqueeze(0)


class Local2D(TransformerRefiner):
    """Blocks of regions attend to a larger block around them (Parmar et al. 2018).

    Two-dimensional local attention of the Image Transformer, arXiv 1802.05751, §3.2, without its
    causality: the grid is divided into blocks of queries, and each block attends to itself and
    ``margin`` cells on every side of it. A CNN's grid is small, so that all scores are computed and
    those outside are masked.

    Args:
        in_dim: D, the width the encoder gives.
        dim: the width of the result; a multiple of ``heads`` and of 4.
        dropout: probability of dropping a component of the projection and of what is added.
        layers: N.
        heads: of the self-attention.
        feed_forward: the width of the feed-forward networks' hidden layer.
        block: the side of a block of queries, in cells.
        margin: how many cells its memory reaches beyond it.

    Raises:
        ModelError: as ``TransformerRefiner``; or a block of no cells, or a margin below 0.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int = 512,
        dropout: float = 0.0,
        layers: int = 2,
        heads: int = 8,
        feed_forward: int = 1024,
        block: int = 2,
        margin: int = 1,
    ) -> None:
        super().__init__(in_dim, dim, dropout, layers, heads, feed_forward)
        if block < 1 or margin < 0:
            raise ModelError(
                "Local2D needs a block of 1 cell or more and a margin of 0 or more, "
                f"got {block} and {margin}"
            )
        self.block, self.margin = block, margin

    def reach(self, grid: tuple[int, int], device: torch.device) -> Bool[Tensor, "1 L L"]:
        """True within the memory block of the query's block."""
        within = torch.ones((), dtype=torch.bool, device=device)
        for axis in _cells(grid, device):
            first = axis // self.block * self.block  # of the query's block
            last = first + self.block - 1
            within = (
                within
                & (axis >= (first - self.margin)[:, None])
                & (axis <= (last + self.margin)[:, None])
            )
        return within.unsqueeze(0)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each on a normed input and added to it.

    Args:
        attention: the self-attention.
        dim: the width of everything.
        feed_forward: the width of the hidden layer.
        dropout: probability of dropping a component of what is added, while training.
    """

    def __init__(
        self, attention: SelfAttention, dim: int, feed_forward: int, dropout: float
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.attention = attention
        self.feed_forward = nn.Sequential(
            Linear(dim, feed_forward),
            nn.ReLU(),
            nn.Dropout(dropout),
            Linear(feed_forward, dim),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, vectors: Float[Tensor, "B L d"], mask: Bool[Tensor, "#B #L L"] | None
    ) -> Float[Tensor, "B L d"]:
        """Every vector, knowing those that the mask lets it see."""
        found, _, _ = self.attention(self.norms[0](vectors), mask)
        vectors = vectors + self.dropout(found)
        return vectors + self.dropout(self.feed_forward(self.norms[1](vectors)))


def _cells(grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column of every cell, raster order."""
    rows, columns = grid
    cells = torch.arange(rows * columns, device=device)
    return cells // columns, cells % columns
