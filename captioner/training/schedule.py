"""How fast what learns: the optimiser's groups, and the one cycle that all of them follow."""

from typing import Any

import torch
from torch import nn

from captioner.models.captioner import Captioner

BETAS = (0.95, 0.98)


def optimiser(
    captioner: Captioner,
    others: nn.Module,
    *,
    learning_rate: float,
    encoder_learning_rate: float,
    weight_decay: float,
) -> torch.optim.AdamW:
    """AdamW over what learns; weight decay on matrices only, and none on a CNN.

    Decay would pull the CNN towards zero, away from the weights that it was trained to.

    Args:
        captioner: whose parts learn.
        others: what learns besides, e.g. an objective with weights of its own.
        learning_rate: its peak.
        encoder_learning_rate: that of an encoder that learns.
        weight_decay: of AdamW.
    """
    encoder = [p for p in captioner.encoder.parameters() if p.requires_grad]
    known = set(captioner.encoder.parameters())
    learning = [
        parameter
        for parameter in (*captioner.parameters(), *others.parameters())
        if parameter.requires_grad and parameter not in known
    ]
    groups: list[dict[str, Any]] = [
        {
            "name": "matrices",
            "params": [p for p in learning if p.ndim > 1],
            "lr": learning_rate,
            "weight_decay": weight_decay,
        },
        {
            "name": "vectors",
            "params": [p for p in learning if p.ndim <= 1],
            "lr": learning_rate,
            "weight_decay": 0.0,
        },
        {"name": "encoder", "params": encoder, "lr": encoder_learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], betas=BETAS)


def cycle(
    optimizer: torch.optim.Optimizer, steps: int, warmup: float
) -> torch.optim.lr_scheduler.OneCycleLR:
    """The learning rate of every group rises from and falls to almost nothing along half cosines.

    And β₁ falls from 0.95 to 0.85 and rises again meanwhile (Smith 2018, arXiv 1803.09820).

    Args:
        optimizer: its groups' learning rates are the peaks.
        steps: of the whole cycle.
        warmup: part of all steps in which the learning rate rises.
    """
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        total_steps=steps,
        pct_start=max(warmup, 2 / steps),  # a rise of less than two steps divides by zero
    )
