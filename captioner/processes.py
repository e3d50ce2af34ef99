"""What the processes of one training tell each other; a single process talks to nobody.

Each process sees its part of every batch, and their gradients are averaged. A loss that is a mean over
words is therefore the sum over a process's own words, divided by ``share`` of them: averaged over
processes, that is the mean over the words of the whole batch, as one process computes it.
"""

from collections.abc import Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor

Key = TypeVar("Key")
Value = TypeVar("Value")


def count() -> int:
    """How many processes train together."""
    return dist.get_world_size() if _together() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if _together() else 0


def mean(values: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The mean over all processes; no gradient goes through it. All must call it."""
    return total(values) / count() if _together() else values


def total(values: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
    """The sum over all processes; no gradient goes through it. All must call it."""
    if not _together():
        return values
    values = values.detach().clone()
    dist.all_reduce(values)
    return values


def share(number: Shaped[Tensor, "*n"]) -> Shaped[Tensor, "*n"]:
    """An equal share of what all processes have together, which is taken to be 1 at least.

    All must call it.
    """
    if not _together():
        return number.clamp(min=1)
    return total(number).clamp(min=1).to(torch.float32) / count()


def merged(own: Mapping[Key, Value]) -> dict[Key, Value]:
    """What any process has, by its key. All must call it."""
    if not _together():
        return dict(own)
    parts: list[Mapping[Key, Value]] = [{}] * count()
    dist.all_gather_object(parts, dict(own))
    return {key: value for part in parts for key, value in part.items()}


def leave() -> None:
    """Nothing more to say: ends the talk, if there is one.

    Gloo's threads abort a process that ends while they hold a tensor, and Lightning ends those of NCCL
    only (https://github.com/pytorch/pytorch/pull/179291).
    """
    if _together():
        dist.destroy_process_group()


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()
