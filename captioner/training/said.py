"""What a decoder thought of the words it was to say."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.models.decoder import Decoded
from captioner.text import PAD


class Said(NamedTuple):
    """Log-probabilities of the words to be said; 0 where there is none.

    Attributes:
        exact: of the word.
        smoothed: part of it, and for the rest the mean log-probability of all words.
    """

    exact: Float[Tensor, "B R T"]
    smoothed: Float[Tensor, "B R T"]


def said_words(decoded: Decoded, targets: Int[Tensor, "B R T"], smoothing: float = 0.0) -> Said:
    """In nats, at least float32; ``smoothing`` is the part of the mean (Szegedy et al. 2016)."""
    wanted = decoded.at(targets)
    rows = decoded.said.flatten(0, -2)
    found = _LogProbs.apply(rows, wanted.flatten(), smoothing)
    there = wanted != PAD
    return Said(*(decoded.placed(each.view_as(wanted).where(there, 0.0)) for each in found))


class _LogProbs(torch.autograd.Function):
    """The two of ``Said``, of logits. Steps times vocabulary is much: it is written once on the way
    back, where autograd would write it for the softmax, the target and the mean."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, wanted: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        log_probs = logits.to(wide).log_softmax(-1)
        ctx.save_for_backward(log_probs, wanted)
        ctx.smoothing, ctx.kind = smoothing, logits.dtype
        exact = log_probs.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        smoothed = torch.lerp(exact, log_probs.mean(-1), smoothing) if smoothing else exact.clone()
        return exact, smoothed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_exact: Tensor, of_smoothed: Tensor) -> tuple[Tensor, None, None]:
        log_probs, wanted = ctx.saved_tensors
        of_mean = ctx.smoothing * of_smoothed
        # Of log p_w by the logit v: 1 where v is w, less p_v.
        found = log_probs.exp().mul_(-(of_exact + of_smoothed).unsqueeze(-1))
        found.add_((of_mean / log_probs.shape[-1]).unsqueeze(-1))
        found.scatter_add_(
            -1, wanted.unsqueeze(-1), (of_exact + of_smoothed - of_mean).unsqueeze(-1)
        )
        return found.to(ctx.kind), None, None
