"""Sinusoidal positions: where a word stands in a sentence, or a region on the grid."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoids(positions: Float[Tensor, " N"], dim: int) -> Float[Tensor, "N dim"]:
    """sin and cos of a position at geometrically spaced wavelengths (Vaswani et al. 2017, §3.5).

    Args:
        positions: any real numbers, counted from 0.
        dim: even; component 2i is ``sin(p / 10000^(2i/dim))``, component 2i + 1 its cosine.
    """
    steps = torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype)
    angles = positions.unsqueeze(-1) * torch.exp(steps * (-math.log(10_000) / dim))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def grid_sinusoids(grid: tuple[int, int], dim: int, like: Tensor) -> Float[Tensor, "L dim"]:
    """Two-dimensional positions: half of the components say the row, half the column.

    Args:
        grid: (rows, columns); L = rows · columns, raster order.
        dim: a multiple of 4.
        like: a tensor of the wanted dtype and device.
    """
    rows, columns = grid
    cells = torch.arange(rows * columns, device=like.device)
    row, column = (
        sinusoids(part.to(like.dtype), dim // 2) for part in (cells // columns, cells % columns)
    )
    return torch.cat([row, column], -1)


def grid_cosines(grid: tuple[int, int], count: int, like: Tensor) -> Float[Tensor, "L twice"]:
    """Two-dimensional positions as the first cosines of the discrete cosine transform.

    With r the row of R, component k - 1 is ``cos(π k (r + 1/2) / R)`` for k = 1 … count, and the
    columns follow: k = 1 tells one end from the other, the higher ones tell neighbours apart.

    Args:
        grid: (rows, columns); L = rows · columns, raster order.
        count: of cosines per axis.
        like: a tensor of the wanted dtype and device.
    """
    rows, columns = grid
    cells = torch.arange(rows * columns, device=like.device)
    waves = math.pi * torch.arange(1, count + 1, device=like.device)
    row, column = (
        torch.cos((part + 0.5).unsqueeze(-1) / size * waves)
        for part, size in ((cells // columns, rows), (cells % columns, columns))
    )
    return torch.cat([row, column], -1).to(like.dtype)
