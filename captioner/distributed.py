"""Sums and means over the processes of a training run; all processes must call them.

Each process computes its part of every batch, and the gradients are averaged. Losses divide the sum
over the words of a process by ``share`` of their number. The average over processes is then the mean
over the words of the whole batch, as in a single process.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor


def count() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if _initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if _initialized() else 0


def mean(values: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the mean over all processes, without gradient."""
    return total(values) / count() if _initialized() else values


def total(values: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
    """Return the sum over all processes, without gradient."""
    if not _initialized():
        return values
    values = values.detach().clone()
    dist.all_reduce(values)
    return values


def share(number: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
    """Return the sum over all processes, at least 1, divided by their number."""
    if not _initialized():
        return number.clamp(min=1)
    return total(number).clamp(min=1).to(torch.float32) / count()


def merged(items: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the union of the mappings of all processes."""
    if not _initialized():
        return dict(items)
    parts: list[Mapping[Any, Any]] = [{}] * count()
    dist.all_gather_object(parts, dict(items))
    return {key: value for part in parts for key, value in part.items()}


def leave() -> None:
    """Destroy the process group, if there is one.

    Lightning destroys only NCCL's groups, and Gloo's threads abort a process that exits while they hold
    a tensor (https://github.com/pytorch/pytorch/pull/179291).
    """
    if _initialized():
        dist.destroy_process_group()


def _initialized() -> bool:
    return dist.is_available() and dist.is_initialized()
