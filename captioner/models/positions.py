"""Positions of words in a sentence and of regions on the grid."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Axis = Int[Tensor, " L"]
Boxes = Float[Tensor, "B L 4"] | None  # of ``Annotations``
BOX_CELLS = 14


def cells(grid: tuple[int, int], device: torch.device) -> tuple[Axis, Axis]:
    """Return row and column of every cell of a (rows, columns) grid in raster order."""
    index = torch.arange(grid[0] * grid[1], device=device)
    return index // grid[1], index % grid[1]


def centres(
    grid: tuple[int, int], boxes: Boxes, device: torch.device
) -> tuple[Float[Tensor, "*B L"], Float[Tensor, "*B L"]]:
    """Return the middle of every region, (row, column) in fractions of the image between 0 and 1."""
    if boxes is None:
        row, column = cells(grid, device)
        return (row + 0.5) / grid[0], (column + 0.5) / grid[1]
    return boxes[..., [1, 3]].mean(-1), boxes[..., [0, 2]].mean(-1)


def sinusoids(positions: Float[Tensor, "*N"], dim: int) -> Float[Tensor, "*N dim"]:
    """Compute sine and cosine at geometrically spaced wavelengths (Vaswani et al. 2017, §3.5).

    Component 2i is ``sin(p / 10000^(2i/dim))``, component 2i + 1 its cosine; ``dim`` is even.
    """
    steps = torch.arange(0, dim, 2, device=positions.device, dtype=positions.dtype)
    angles = positions.unsqueeze(-1) * torch.exp(steps * (-math.log(10_000) / dim))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def grid_sinusoids(
    grid: tuple[int, int], dim: int, like: Tensor, boxes: Boxes = None
) -> Float[Tensor, "*B L dim"]:
    """Compute ``sinusoids`` of the row in one half of the components, of the column in the other.

    ``dim`` is a multiple of 4; ``like`` gives dtype and device. A box has the row and the column of its
    centre on a grid of ``BOX_CELLS`` rows and columns.
    """
    axes: tuple[Tensor, ...] = cells(grid, like.device)
    if boxes is not None:
        axes = tuple(BOX_CELLS * axis - 0.5 for axis in centres(grid, boxes, like.device))
    return torch.cat([sinusoids(axis.to(like.dtype), dim // 2) for axis in axes], -1)


def grid_cosines(
    grid: tuple[int, int], count: int, like: Tensor, boxes: Boxes = None
) -> Float[Tensor, "*B L twice"]:
    """Compute the first cosines of the discrete cosine transform along both axes.

    With r the row of R, component k - 1 is ``cos(π k (r + 1/2) / R)`` for k = 1 … count; the cosines of
    the column follow. For boxes, (r + 1/2) / R is the centre. ``like`` gives dtype and device.
    """
    waves = math.pi * torch.arange(1, count + 1, device=like.device)
    axes = centres(grid, boxes, like.device)
    cosines = [torch.cos(axis.unsqueeze(-1) * waves) for axis in axes]
    return torch.cat(cosines, -1).to(like.dtype)
