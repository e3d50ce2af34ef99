"""What training minimises. Objectives see targets; models do not."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from captioner.models.decoder import Decoded
from captioner.models.registry import Component
from captioner.text import PAD


@dataclass(frozen=True)
class Loss:
    """A loss and what it is made of.

    Attributes:
        total: what is minimised.
        terms: the weighted terms that add up to it.
        measures: other numbers worth logging, e.g. the unsmoothed negative log-likelihood.
    """

    total: Float[Tensor, ""]
    terms: dict[str, Float[Tensor, ""]]
    measures: dict[str, Float[Tensor, ""]]


class Objective(Component, kind="objective"):
    """Base of all objectives. ``needs_weights`` says whether it reads where the decoder looked."""

    needs_weights = True

    def forward(self, decoded: Decoded, targets: Int[Tensor, "B R T"]) -> Loss:
        """The loss of teacher-forced captions; a target of ``<pad>`` counts nowhere."""
        raise NotImplementedError


class Likelihood(Objective):
    """Maximum likelihood with doubly stochastic attention (Xu et al. 2015, eq. 14).

    ``-log p(y | a)``, the mean over all words, plus ``λ`` times the mean over captions and cells of
    ``(1 - Σ_t α_t,i)²``. The paper does not say over what its terms are summed and implementations
    differ by two orders of magnitude; these are means, so that λ means the same for every caption
    length, batch size and grid.

    Args:
        doubly_stochastic: λ; 0 leaves the term out.
        label_smoothing: probability mass spread over all words instead of the target.
    """

    def __init__(self, doubly_stochastic: float = 0.5, label_smoothing: float = 0.1) -> None:
        super().__init__()
        self.doubly_stochastic = doubly_stochastic
        self.needs_weights = bool(doubly_stochastic)
        self.label_smoothing = label_smoothing

    def forward(self, decoded: Decoded, targets: Int[Tensor, "B R T"]) -> Loss:
        """Loss terms ``likelihood`` and ``doubly_stochastic``; measure ``nll`` in nats per word."""
        there = targets != PAD  # (B, R, T)
        words = there.sum().clamp(min=1)
        log_probs = decoded.logits.float().log_softmax(-1)
        nll = F.nll_loss(
            log_probs.flatten(0, -2), targets.flatten(), ignore_index=PAD, reduction="sum"
        )
        uniform = -(log_probs.mean(-1) * there).sum()
        smoothed = (1 - self.label_smoothing) * nll + self.label_smoothing * uniform
        terms = {"likelihood": smoothed / words}
        if self.needs_weights:
            assert decoded.weights is not None
            terms["doubly_stochastic"] = self.doubly_stochastic * doubly_stochastic(
                decoded.weights, there
            )
        total = torch.stack(list(terms.values())).sum()
        return Loss(total, terms, {"nll": nll.detach() / words})


def doubly_stochastic(weights: Float[Tensor, "B R T L"], there: Tensor) -> Float[Tensor, ""]:
    """The mean over captions and cells of ``(1 - Σ_t α_t,i)²``: every region is to be looked at.

    Args:
        weights: α at every step.
        there: (B, R, T), True where a step has a target; captions without any do not count.
    """
    looked = (weights * there.unsqueeze(-1)).sum(-2)  # (B, R, L)
    captions = there.any(-1)  # (B, R)
    return (((1 - looked) ** 2).mean(-1) * captions).sum() / captions.sum().clamp(min=1)
