"""Hard attention that samples, averaged over many paths of locations."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.errors import UsageError
from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import Hard
from captioner.models.decoder import Decoder, State, gather_rows


@dataclass(frozen=True)
class Paths:
    """N sampled paths of every row, as if every picture were N pictures that follow one another.

    Attributes:
        inner: the decoder's state.
        so_far: log p(words so far | sⁿ, a) of every path.
        coming: log-probabilities of the word to come; None before the first step.
    """

    inner: State
    so_far: Float[Tensor, "BN *R"]
    coming: Float[Tensor, "BN *R V"] | None = None

    def select(self, rows: Int[Tensor, "B K"]) -> "Paths":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        rows = rows.repeat_interleave(len(self.so_far) // len(rows), 0)
        coming = None if self.coming is None else gather_rows(self.coming, rows)
        return Paths(self.inner.select(rows), gather_rows(self.so_far, rows, 0), coming)


class MonteCarlo(Decoder, abstract=True):
    """The mean of N sampled paths: p(y | a) ≈ 1/N Σ_n p(y | sⁿ, a), word by word.

    At every step each path draws its own location, and the next word's probability is the paths'
    mean, each weighted by how well it explains the words so far; so that a caption's probability, the
    product over its words, is 1/N Σ_n p(y | sⁿ, a), an unbiased estimate of p(y | a) for every N. The
    weights of a step are the same mean of where the paths look.

    Args:
        decoder: in eval mode.
        samples: N; every step costs as much as N.

    Raises:
        UsageError: the decoder does not sample.
    """

    def __init__(self, decoder: Decoder, samples: int) -> None:
        super().__init__()
        laws = [module for module in decoder.modules() if isinstance(module, Hard)]
        if not any(law.test_time == "sample" for law in laws):
            raise UsageError(
                f"samples: {samples} averages over sampled locations, and {decoder.mechanism} samples "
                "none: give the distribution Hard test_time: sample, or leave samples at 1"
            )
        self.decoder = decoder
        self.samples = samples

    @property
    def mechanism(self) -> str:
        """The decoder's."""
        return f"{self.decoder.mechanism}, mean of {self.samples} paths"

    def start(self, annotations: Annotations) -> Paths:
        """No word, of which every path is certain."""
        mask = annotations.mask
        pictures = replace(
            annotations,
            vectors=annotations.vectors.repeat_interleave(self.samples, 0),
            mask=None if mask is None else mask.repeat_interleave(self.samples, 0),
        )
        certain = annotations.vectors.new_zeros(len(pictures), dtype=torch.float32)
        return Paths(self.decoder.start(pictures), certain)

    def step(
        self, tokens: Int[Tensor, "B *R"], state: Paths
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], Any]:
        """One word in, the log-probabilities of the next out."""
        tokens = tokens.repeat_interleave(self.samples, 0)
        so_far = state.so_far
        if state.coming is not None:
            so_far = so_far + state.coming.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        logits, weights, inner = self.decoder.step(tokens, state.inner)
        coming = logits.float().log_softmax(-1)
        trust = self._apart(so_far).log_softmax(1).unsqueeze(-1)  # (B, N, *R, 1)
        mean = (trust + self._apart(coming)).logsumexp(1)
        looked = (trust.exp() * self._apart(weights)).sum(1)
        return mean, looked, Paths(inner, so_far, coming)

    def _apart(self, values: Float[Tensor, "BN *more"]) -> Float[Tensor, "B N *more"]:
        return values.view(-1, self.samples, *values.shape[1:])
