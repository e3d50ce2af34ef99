"""Distributions α = p(e): from scores to weights over the annotations."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.models.registry import Component


@dataclass(frozen=True)
class Weights:
    """What a distribution makes of the scores.

    Attributes:
        weights: how much each position counts, in [0, 1]; exactly 0 where masked.
        log_prob: log-probability of the choice made; None where nothing is drawn.
        entropy: entropy in nats of what the choice was drawn from; None where nothing is drawn.
    """

    weights: Float[Tensor, "B T L"]
    log_prob: Float[Tensor, "B T"] | None = None
    entropy: Float[Tensor, "B T"] | None = None


class Distribution(Component, kind="distribution"):
    """Base of all distributions."""

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B L"] | None,
        step: int | Int[Tensor, " T"] | None,
    ) -> Weights:
        """Weights for scores.

        Args:
            scores: any real numbers.
            mask: True where a position may be attended.
            step: which word each query asks for, counted from 0; only positional ones need it.
        """
        raise NotImplementedError


class Soft(Distribution):
    """Softmax over all unmasked positions: deterministic, differentiable (Xu et al. 2015 §4.2)."""

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B L"] | None,
        step: int | Int[Tensor, " T"] | None,  # noqa: ARG002 - the same for every word
    ) -> Weights:
        """Weights sum to 1, or are all 0 where everything is masked."""
        return Weights(masked_softmax(scores, mask))


def masked_softmax(
    scores: Float[Tensor, "B T L"], mask: Bool[Tensor, "B L"] | None
) -> Float[Tensor, "B T L"]:
    """Softmax over the last axis in at least float32; a fully masked row gives zeros, not NaN."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.softmax(-1)
    blocked = ~mask.unsqueeze(1)  # (B, 1, L)
    # The smallest finite number instead of -inf: a row of -inf would be 0/0.
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(blocked, lowest).softmax(-1).masked_fill(blocked, 0.0)
