"""The moving average of the weights, which is what validation sees and checkpoints keep."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Exponential moving average of the weights, its decay growing from 0.1 to ``decay``.

    Lightning's own average differs in two ways that matter here: its decay is constant, so that the
    random first weights stay visible for epochs; and it rounds weights that do not change, so that a
    frozen encoder would no longer be the one its package brings.

    Args:
        decay: the final part of the old average in the new one, per step.
    """

    def __init__(self, decay: float = 0.998) -> None:
        average: Any = partial(_average, decay)
        super().__init__(use_buffers=False, multi_avg_fn=average)


def _average(
    decay: float, averages: Sequence[Tensor], weights: Sequence[Tensor], updates: Tensor
) -> None:
    """Moves the averages towards the weights; equal ones stay as they are, to the bit."""
    done = int(updates)
    fraction = 1 - min(decay, (1 + done) / (10 + done))
    torch._foreach_lerp_(list(averages), list(weights), fraction)
