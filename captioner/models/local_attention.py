"""Local attention: weights within a window around a position (Luong, Pham, Manning 2015, §3.2).

With a mask, positions are numbered among the unmasked ones: s = 0, 1, … S - 1 in raster order.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.errors import UsageError
from captioner.models.distributions import (
    Distribution,
    Mask,
    QueryContext,
    Scores,
    Weights,
    masked_softmax,
)
from captioner.models.positions import cells
from captioner.models.scores import at_least_float32


class Local(Distribution, abstract=True):
    """Base of the local distributions; the window reaches D ≥ 1 positions to either side."""

    sparse = True

    def __init__(self, query_dim: int, window: int) -> None:
        super().__init__(query_dim)
        self.window = window

    def within(self, distance: Scores, mask: Mask) -> Tensor:
        """Return True for unmasked positions within the window."""
        near = distance.abs() <= self.window
        return near if mask is None else near & mask


class LocalM(Local):
    """Monotonic local attention: a softmax within [p_t − D, p_t + D], p_t = min(t, S − 1)."""

    def __init__(self, query_dim: int, window: int = 10) -> None:
        super().__init__(query_dim, window)

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        """Compute the softmax; UsageError if the context has no step."""
        if context.step is None:
            raise UsageError("LocalM needs to know the step: attention(query, keys, step=t)")
        step = torch.as_tensor(context.step, device=scores.device)[..., None]  # (…, T, 1) or (1,)
        position, count = _positions(scores, mask)
        center = torch.minimum(step.to(position.dtype), count - 1)  # p_t
        center = center.expand(*scores.shape[:-1], 1)
        weights = masked_softmax(scores, self.within(position - center, mask))
        return Weights(weights, centre=_grid_centre(center, context.grid, mask))


class LocalP(Local):
    """Predictive local attention: p_t = S · σ(v_pᵀ tanh(W_p q)), eq. 9 and 10.

    A softmax within [p_t − D, p_t + D], times exp(−(s − p_t)² / 2σ²) with σ = D / 2. The paper
    multiplies after the softmax, so that weights sum to less than 1.

    Args:
        dim: the width of the hidden layer that predicts p_t.
    """

    axes = 1  # components of p_t

    def __init__(self, query_dim: int, window: int = 10, dim: int = 128) -> None:
        super().__init__(query_dim, window)
        hidden = nn.Linear(query_dim, dim, bias=False)
        output = nn.Linear(dim, self.axes, bias=False)
        self.place = nn.Sequential(hidden, nn.Tanh(), output, nn.Sigmoid())

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        position, count = _positions(scores, mask)
        center = count * self.place(context.query).to(count.dtype)  # p_t: (B, *h, T, 1)
        distance = position - center
        weights = masked_softmax(scores, self.within(distance, mask))
        return self.gaussian(weights, distance**2, _grid_centre(center, context.grid, mask))

    def gaussian(self, weights: Tensor, squared_distance: Tensor, centre: Tensor | None) -> Weights:
        """Multiply weights by ``exp(−(s − p_t)² / 2σ²)`` with σ = D / 2."""
        sigma = self.window / 2
        return Weights(weights * torch.exp(-squared_distance / (2 * sigma**2)), centre=centre)


class LocalP2D(LocalP):
    """``LocalP`` on the grid: p_t is a (row, column), the window is square and the Gaussian round.

    Designed for this project: raster order ignores that neighbours in a column are close.

    Args:
        window: D, in cells.
        dim: as for ``LocalP``.
    """

    axes = 2
    needs_grid = True

    def __init__(self, query_dim: int, window: int = 2, dim: int = 128) -> None:
        super().__init__(query_dim, window, dim)

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:
        """Compute weights that sum to at most 1, or are all 0 if the whole window is masked."""
        relative = at_least_float32(self.place(context.query))  # between 0 and 1
        centre = relative * relative.new_tensor(context.grid)  # p_t: (B, *h, T, 2)
        # Cell r covers [r, r + 1), so that a sigmoid times the size can reach every cell's middle.
        row, column = (axis.to(centre) + 0.5 for axis in cells(context.grid, scores.device))
        down, right = row - centre[..., :1], column - centre[..., 1:]  # (B, *h, T, L)
        near = self.within(down, mask) & self.within(right, mask)
        return self.gaussian(masked_softmax(scores, near), down**2 + right**2, centre.detach())


def _positions(scores: Scores, mask: Mask) -> tuple[Float[Tensor, "*rows L"], Tensor]:
    """Return the number s of every position and their count S; masked positions are undefined."""
    valid = torch.ones_like(scores[..., :1, :], dtype=torch.bool) if mask is None else mask
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return (valid.cumsum(-1) - 1).to(dtype), valid.sum(-1, keepdim=True).to(dtype)


def _grid_centre(position: Tensor, grid: tuple[int, int], mask: Mask) -> Tensor | None:
    """Convert positions (…, 1) in raster order to (row, column) in cells; None with a mask."""
    if mask is not None:
        return None
    rows, columns = grid
    middle = position.detach() + 0.5  # position s is the middle of cell s
    row = middle.div(columns, rounding_mode="floor").clamp(max=rows - 1)
    return torch.cat([row + 0.5, (middle - row * columns).clamp(max=columns)], -1)
