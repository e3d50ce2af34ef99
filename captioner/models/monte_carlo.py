"""Sampled hard attention, averaged over several sequences ("paths") of locations."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.errors import UsageError
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder, StepResult
from captioner.models.distributions import Sampling, samples_locations
from captioner.models.tensors import gather_rows


class StratifiedSampler:
    """Draw the locations of N paths from N equal strata of the cumulative probabilities.

    A random permutation assigns strata to paths at every step (Latin hypercube sampling, McKay et
    al. 1979). Each path alone is an ordinary sample, and the mean over the paths has less variance.
    All images and rows use the same random numbers, so that results depend on the image alone.
    """

    def __init__(self, paths: int) -> None:
        self.paths = paths
        self._generator = torch.Generator().manual_seed(0)  # on the CPU: equal on every device

    def __call__(self, probs: Float[Tensor, "B *h RN L"]) -> Int[Tensor, "B *h RN 1"]:
        shape = (2, *probs.shape[1:-2], self.paths)
        order, offset = torch.rand(shape, generator=self._generator)
        # Clamped, since rounding up to 1 would draw positions of probability 0.
        uniform = ((order.argsort(-1) + offset) / self.paths).clamp(max=1 - 1e-6)
        rows = probs.shape[-2] // self.paths
        uniform = torch.cat([uniform] * rows, -1).unsqueeze(-1)  # (*h, RN, 1)
        cumulated = probs.cumsum(-1)
        index = (cumulated <= uniform.to(probs) * cumulated[..., -1:]).sum(-1, keepdim=True)
        return index.clamp(max=probs.shape[-1] - 1)  # if all positions are masked


@dataclass(frozen=True)
class MonteCarloState:
    """The state of N sampled paths for each of R rows."""

    inner: Any  # the decoder's state of R · N rows
    log_probs: Float[Tensor, "B R N"]  # log p(words so far | sⁿ, a)
    next_log_probs: Float[Tensor, "B R N V"] | None = None  # of the next word, after the first step

    def reorder(self, rows: Int[Tensor, "B K"]) -> "MonteCarloState":
        """Return the state whose row k of image b continues row ``rows[b, k]``."""
        samples = self.log_probs.shape[-1]
        paths = torch.arange(samples, device=rows.device)
        inner_rows = rows.unsqueeze(-1) * samples + paths  # (B, K, N)
        log_probs = gather_rows((self.log_probs, self.next_log_probs), rows)
        return MonteCarloState(self.inner.reorder(inner_rows.flatten(1)), *log_probs)


class MonteCarlo(Decoder, abstract=True):
    """The mean of N = ``samples`` paths: p(y | a) ≈ 1/N Σ_n p(y | sⁿ, a), word by word.

    At every step each path draws a location. The probability of the next word, and the attention
    weights, are means over the paths, weighted by p(words so far | sⁿ, a). The product over the words
    of a caption is then 1/N Σ_n p(y | sⁿ, a), an unbiased estimate of p(y | a) for every N.
    """

    def __init__(self, decoder: Decoder, samples: int) -> None:
        super().__init__()
        check_samples(samples, decoder)
        self.decoder = decoder
        self.samples = samples

    @property
    def mechanism(self) -> str:
        return over_paths(self.decoder.mechanism, self.samples)

    def init_state(
        self, annotations: Annotations, rows: int = 1, sampling: Sampling | None = None
    ) -> MonteCarloState:
        """Return the state before the first word, which all paths share."""
        sampling = replace(sampling or Sampling(), sampler=StratifiedSampler(self.samples))
        inner = self.decoder.init_state(annotations, self.samples * rows, sampling)
        log_probs = annotations.vectors.new_zeros(len(annotations), rows, self.samples).float()
        return MonteCarloState(inner, log_probs)

    def read(self, tokens: Int[Tensor, "B R"], state: MonteCarloState) -> StepResult:
        """Read one token of every row; the logits are log-probabilities."""
        words = tokens.unsqueeze(-1).expand(-1, -1, self.samples)  # (B, R, N)
        log_probs = state.log_probs
        if state.next_log_probs is not None:
            last_word = state.next_log_probs.gather(-1, words.unsqueeze(-1))
            log_probs = log_probs + last_word.squeeze(-1)
        logits, weights, inner = self.decoder.step(words.flatten(1), state.inner)
        next_log_probs = logits.float().log_softmax(-1).view(*words.shape, -1)
        log_share = log_probs.log_softmax(-1).unsqueeze(-1)  # (B, R, N, 1)
        mean = (log_share + next_log_probs).logsumexp(2)
        mean_weights = (log_share.exp() * weights.view(*words.shape, -1)).sum(2)
        return mean, mean_weights, MonteCarloState(inner, log_probs, next_log_probs)


def check_samples(samples: int, decoder: Decoder) -> None:
    """Raise UsageError if several samples are requested of a decoder that does not sample."""
    if samples > 1 and not samples_locations(decoder):
        raise UsageError(
            f"samples: {samples} averages over sampled locations, but {decoder.mechanism} samples "
            "none: set samples to 1, or test_time: sample in Hard"
        )


def over_paths(mechanism: str, samples: int) -> str:
    """Return the name of a mechanism that is averaged over ``samples`` paths."""
    return mechanism if samples == 1 else f"{mechanism}, mean of {samples} paths"
