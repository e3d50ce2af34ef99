"""Local attention: weights within a window around a position (Luong, Pham, Manning 2015, §3.2)."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from captioner.errors import ModelError, UsageError
from captioner.models.attention.distributions import Asked, Distribution, Weights, masked_softmax
from captioner.models.linear import Linear


class Positions(NamedTuple):
    """Where the positions lie among those that exist: a mask closes ranks.

    Attributes:
        number: s, counted from 0 in raster order; that of a masked position means nothing.
        existing: S, how many exist.
    """

    number: Float[Tensor, "B 1 L"]
    existing: Float[Tensor, "B 1 1"]


class Local(Distribution, abstract=True):
    """What local distributions share: a window.

    Args:
        query_dim: n, the width of a query.
        window: D in the paper: how many positions the window reaches to either side, 1 or more.
    """

    positional = True

    def __init__(self, query_dim: int, window: int) -> None:
        super().__init__(query_dim)
        if window < 1:
            raise ModelError(
                f"{type(self).__name__} needs a window of 1 position or more to either side, "
                f"got {window}"
            )
        self.window = window


class LocalM(Local):
    """Monotonic local attention: a softmax within [p_t − D, p_t + D], p_t = t, at most the last one.

    Args:
        query_dim: not used.
        window: D.
    """

    def __init__(self, query_dim: int, window: int = 10) -> None:
        super().__init__(query_dim, window)

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,
    ) -> Weights:
        """Weights sum to 1, or are all 0 where everything is masked.

        Raises:
            UsageError: the query does not say for which word it asks.
        """
        if asked.step is None:
            raise UsageError("LocalM needs to know the step: attention(query, keys, step=t)")
        step = torch.as_tensor(asked.step, device=scores.device).unsqueeze(-1)  # (…, T, 1) or (1,)
        where = _positions(mask, scores)
        center = torch.minimum(step.to(where.number.dtype), where.existing - 1)
        weights = masked_softmax(scores, _near(where.number - center, self.window, mask))
        centre = _cell(center, asked.grid, mask)
        return Weights(
            weights, centre=None if centre is None else centre.expand(*scores.shape[:2], 2)
        )


class Predictive(Local, abstract=True):
    """What local distributions share that predict their position: ``σ(v_pᵀ tanh(W_p q))`` per axis."""

    def __init__(self, query_dim: int, window: int, dim: int, renormalise: bool, axes: int) -> None:
        super().__init__(query_dim, window)
        self.renormalise = renormalise
        self.place = nn.Sequential(
            Linear(query_dim, dim, bias=False),
            nn.Tanh(),
            Linear(dim, axes, bias=False),
            nn.Sigmoid(),
        )

    def bell(
        self,
        weights: Float[Tensor, "B T L"],
        squared: Float[Tensor, "B T L"],
        centre: Float[Tensor, "B T 2"] | None,
    ) -> Weights:
        """The weights times a Gaussian of σ = window / 2 of the squared distance."""
        weights = weights * torch.exp(-squared / (2 * (self.window / 2) ** 2))
        if self.renormalise:
            least = torch.finfo(weights.dtype).tiny
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=least)
        return Weights(weights, centre=centre)


class LocalP(Predictive):
    """Predictive local attention: p_t = S · σ(v_pᵀ tanh(W_p q)), eq. 9 and 10.

    A softmax within [p_t − D, p_t + D], times exp(−(s − p_t)² / 2σ²) with σ = D / 2.

    Args:
        query_dim: n, the width of a query.
        window: D.
        dim: the width of the hidden layer that predicts p_t.
        renormalise: divide by the sum: the paper multiplies *after* the softmax, so that its weights
            sum to less than 1.
    """

    def __init__(
        self, query_dim: int, window: int = 10, dim: int = 128, renormalise: bool = False
    ) -> None:
        super().__init__(query_dim, window, dim, renormalise, axes=1)

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,
    ) -> Weights:
        """Weights sum to at most 1; to exactly 1 if renormalised; 0 where everything is masked."""
        where = _positions(mask, scores)
        center = where.existing * self.place(asked.query).to(where.existing.dtype)  # (B, T, 1)
        distance = where.number - center
        weights = masked_softmax(scores, _near(distance, self.window, mask))
        return self.bell(weights, distance**2, _cell(center, asked.grid, mask))


class LocalP2D(Predictive):
    """``LocalP`` on the feature grid: p_t is a (row, column), window and Gaussian are square and round.

    This project's own. A picture's regions have no order; neighbours in a column are as near as those
    in a row, which raster order does not know.

    Args:
        query_dim: n, the width of a query.
        window: D, in cells.
        dim: the width of the hidden layer that predicts p_t.
        renormalise: as for ``LocalP``.
    """

    def __init__(
        self, query_dim: int, window: int = 2, dim: int = 128, renormalise: bool = False
    ) -> None:
        super().__init__(query_dim, window, dim, renormalise, axes=2)

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,
    ) -> Weights:
        """Weights sum to at most 1; to 1 if renormalised; 0 where all of the window is masked."""
        rows, columns = asked.grid
        wide = torch.promote_types(scores.dtype, torch.float32)
        place = self.place(asked.query).to(wide)  # (B, T, 2)
        cells = torch.arange(rows * columns, device=scores.device)
        # Cell r covers [r, r + 1) of an axis of length R, so that σ reaches every cell's centre.
        down = (cells // columns + 0.5).to(wide) - rows * place[..., :1]  # (B, T, L)
        right = (cells % columns + 0.5).to(wide) - columns * place[..., 1:]
        near = _near(down, self.window, mask) & _near(right, self.window, mask)
        weights = masked_softmax(scores, near)
        centre = place.detach() * place.new_tensor(asked.grid)
        return self.bell(weights, down**2 + right**2, centre)


def _positions(mask: Bool[Tensor, "B 1 L"] | None, scores: Float[Tensor, "B T L"]) -> Positions:
    there = torch.ones_like(scores[:, :1], dtype=torch.bool) if mask is None else mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    number = (there.cumsum(-1) - 1).to(wide)
    return Positions(number, there.sum(-1, keepdim=True).to(wide))


def _near(
    distance: Float[Tensor, " B #T L"], window: int, mask: Bool[Tensor, "B 1 L"] | None
) -> Bool[Tensor, " B #T L"]:
    """True within the window, where not masked."""
    near = distance.abs() <= window
    return near if mask is None else near & mask


def _cell(
    position: Float[Tensor, "B T 1"], grid: tuple[int, int], mask: Bool[Tensor, "B 1 L"] | None
) -> Float[Tensor, "B T 2"] | None:
    """A place in raster order as (row, column) on the grid; None where a mask has closed ranks."""
    if mask is not None:
        return None
    rows, columns = grid
    place = position.detach() + 0.5  # position s is the middle of cell s
    row = place.div(columns, rounding_mode="floor").clamp(max=rows - 1)
    return torch.cat([row + 0.5, (place - row * columns).clamp(max=columns)], -1)
