"""Apply a function to every tensor of a result or a state: a tree of dataclasses and tuples."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

Part = TypeVar("Part")


def map_tensors(function: Callable[..., Tensor], *parts: Part) -> Part:
    """Apply a function to corresponding tensors of tuples or dataclasses with the same structure.

    Everything else is taken from the first of ``parts``.
    """
    first: Any = parts[0]
    if isinstance(first, Tensor):
        return function(*parts)  # type: ignore[return-value]
    if isinstance(first, tuple):
        return tuple(map_tensors(function, *items) for items in zip(*parts, strict=True))  # type: ignore[return-value]
    if not is_dataclass(first):
        return first
    names = [field.name for field in fields(first)]
    values = {name: map_tensors(function, *(getattr(p, name) for p in parts)) for name in names}
    return replace(first, **values)  # type: ignore[type-var, return-value]


def index_batch(part: Part, images: Int[Tensor, " P"]) -> Part:
    """Select images by index, possibly repeated, from tensors whose first axis is the images."""
    return map_tensors(lambda tensor: tensor.index_select(0, images), part)


def gather_rows(part: Part, rows: Int[Tensor, "B K"]) -> Part:
    """Return ``part`` with row ``rows[b, k]`` of image b as its row k, for tensors (B, R, …)."""
    images = torch.arange(len(rows), device=rows.device).unsqueeze(1)
    return map_tensors(lambda tensor: tensor[images, rows], part)
