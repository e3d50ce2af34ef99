"""The optimiser and its learning-rate cycle."""

from typing import Any

import torch
from torch import nn

from captioner.models.captioner import Captioner


def make_optimizer(
    captioner: Captioner,
    objective: nn.Module,
    learning_rate: float,
    encoder_learning_rate: float,
    weight_decay: float,
) -> torch.optim.AdamW:
    """Return AdamW over all trainable parameters; the learning rates are the peaks of the cycle.

    Weight decay applies only to matrices outside the CNN, because it would pull the CNN away from its
    pretrained weights.
    """
    encoder = [p for p in captioner.encoder.parameters() if p.requires_grad]
    parts = (captioner.neck, captioner.decoder, objective)
    others = [p for part in parts for p in part.parameters() if p.requires_grad]
    fixed = {"weight_decay": 0.0}
    groups: list[dict[str, Any]] = [
        {"name": "matrices", "params": [p for p in others if p.ndim > 1]},
        {"name": "vectors", "params": [p for p in others if p.ndim <= 1], **fixed},
        {"name": "encoder", "params": encoder, "lr": encoder_learning_rate, **fixed},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, learning_rate, (0.95, 0.98), weight_decay=weight_decay)


def one_cycle(
    optimizer: torch.optim.Optimizer, steps: int, warmup: float
) -> torch.optim.lr_scheduler.OneCycleLR:
    """Return a schedule in which every learning rate rises to its present value and falls again.

    The rise and the fall each follow half a cosine. Meanwhile β₁ falls from 0.95 to 0.85 and rises
    again (Smith 2018, arXiv 1803.09820). ``warmup`` is the fraction of ``steps`` for the rise.
    """
    peaks = [group["lr"] for group in optimizer.param_groups]
    rise = max(warmup, 2 / steps)  # OneCycleLR divides by the warm-up steps less one
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, peaks, steps, pct_start=rise)
