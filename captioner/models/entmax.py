"""Entmax: weights between softmax and sparsemax (Peters, Niculae, Martins 2019, arXiv 1905.05702)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.distributions import (
    Distribution,
    Mask,
    QueryContext,
    Weights,
    block_masked,
)
from captioner.models.registry import require
from captioner.models.scores import Scores

Rows = Float[Tensor, "*rows L"]
Thresholds = Float[Tensor, "*rows 1"]

STEPS = 16  # of Newton's method; each reduces (Σ p − 1) · |slope| to a quarter or less


class Entmax(Distribution):
    """``p = [(α − 1) e − τ]₊^(1 / (α − 1))`` with τ such that Σ p = 1 (Peters et al. 2019, §3).

    This α is the order of Tsallis' entropy and not the weights. α → 1 is the softmax, and α = 2 is
    sparsemax. A larger α gives more exact zeros.

    Args:
        alpha: α, a number above 1 and at most 2; ``learned`` starts at 1.5 and stays between 1 and 2
            (Correia, Niculae, Martins 2019, arXiv 1909.00015). All heads share one α; in that paper,
            every head has its own.
    """

    sparse = True

    def __init__(self, query_dim: int, alpha: float | Literal["learned"] = 1.5) -> None:
        super().__init__(query_dim)
        known = alpha == "learned" if isinstance(alpha, str) else 1 < alpha <= 2
        require(known, f"alpha must be above 1 and at most 2, or learned, got {alpha}")
        self.alpha = alpha
        if alpha == "learned":
            self.logit = nn.Parameter(torch.zeros(()))  # α = 1 + σ(logit)

    def forward(self, scores: Scores, mask: Mask, context: QueryContext) -> Weights:  # noqa: ARG002
        """Compute the weights of the unmasked positions."""
        scores = block_masked(scores, mask)
        if isinstance(self.alpha, str):
            curvature = self.logit.to(scores.dtype).sigmoid()
        else:
            curvature = scores.new_full((), self.alpha - 1)
        weights = entmax(scores, curvature)
        return Weights(weights if mask is None else weights.masked_fill(~mask, 0.0))


def entmax(scores: Rows, curvature: Float[Tensor, ""]) -> Rows:
    """Compute the entmax of every row; ``curvature`` is α − 1, above 0 and at most 1.

    Newton's method finds τ, without gradients; the papers use bisection, which takes more steps. Σ p
    is convex and falls as τ rises, so steps that start below the solution never pass it. One more
    step with gradients differentiates τ as an implicit function of e and α. This gives the ∂p/∂e of
    Peters et al. and the ∂p/∂α of Correia et al.
    """
    # Shifting all scores of a row changes no weight. -inf would turn the gradient of α into NaN.
    scores = scores - scores.amax(-1, keepdim=True).detach()
    scores = scores.clamp(min=torch.finfo(scores.dtype).min)
    with torch.no_grad():
        threshold = torch.zeros_like(scores[..., :1])  # the largest weight is 1, so that Σ p ≥ 1
        for _ in range(STEPS):
            threshold = _newton(scores, threshold, curvature)
    weights = _exponential(scores - _newton(scores, threshold, curvature), curvature)
    return weights / weights.sum(-1, keepdim=True)


def _newton(scores: Rows, threshold: Thresholds, curvature: Float[Tensor, ""]) -> Thresholds:
    """Take one step towards Σ p = 1; dp / dτ = −p^(2 − α), a constant in the gradient."""
    weights = _exponential(scores - threshold, curvature)
    slope = weights.detach().pow(1 - curvature.detach()).masked_fill(weights == 0, 0.0)
    return threshold + (weights.sum(-1, keepdim=True) - 1) / slope.sum(-1, keepdim=True)


def _exponential(exponent: Rows, curvature: Float[Tensor, ""]) -> Rows:
    """Compute ``[1 + (α − 1) x]₊^(1 / (α − 1))``, which is precise near its limit exp(x) at α = 1.

    It is p of ``Entmax`` with x = e − (τ + 1) / (α − 1).
    """
    change = curvature * exponent
    positive = change > -1
    change = change.where(positive, 0.0)  # log(0) has no gradient
    return (change.log1p() / curvature).exp().where(positive, 0.0)
