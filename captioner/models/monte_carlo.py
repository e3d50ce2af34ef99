"""Hard attention that samples, averaged over many paths of locations."""

import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.errors import UsageError
from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import hard_attention, samples_locations
from captioner.models.decoder import Decoded, Decoder, Detail


@dataclass(frozen=True)
class Paths:
    """N sampled paths of every row: N · R rows of the decoder's, those of a path side by side.

    Attributes:
        inner: the decoder's state.
        so_far: log p(words so far | sⁿ, a) of every path.
        coming: log-probabilities of the word to come; None before the first step.
    """

    inner: Any
    so_far: Float[Tensor, "B N R"]
    coming: Float[Tensor, "B N R V"] | None = None

    def select(self, rows: Int[Tensor, "B K"]) -> "Paths":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        _, paths, old = self.so_far.shape
        rows = rows.unsqueeze(1).expand(-1, paths, -1)  # (B, N, K)
        first = torch.arange(0, paths * old, old, device=rows.device)
        coming = self.coming
        if coming is not None:
            coming = coming.gather(2, rows.unsqueeze(-1).expand(*rows.shape, coming.shape[-1]))
        inner = self.inner.select((rows + first.unsqueeze(-1)).flatten(1))
        return Paths(inner, self.so_far.gather(2, rows), coming)


class MonteCarlo(Decoder, abstract=True):
    """The mean of N sampled paths: p(y | a) ≈ 1/N Σ_n p(y | sⁿ, a), word by word.

    At every step each path draws its own location, and the next word's probability is the paths'
    mean, each weighted by how well it explains the words so far; so that a caption's probability, the
    product over its words, is 1/N Σ_n p(y | sⁿ, a), an unbiased estimate of p(y | a) for every N. The
    weights of a step are the same mean of where the paths look; of layers and heads it says nothing.

    The paths share a step's luck evenly: each draws from its own 1/N of the cumulated probabilities,
    which one being another at every step (Latin hypercube sampling, McKay et al. 1979). So every path
    is drawn as if it were alone, and together they miss little. The dice are the same for every
    picture, every row and whenever they are thrown: what is found depends on the picture alone, and
    captions that compete are compared under the same luck. The dice are thrown as the steps go, for one
    search at a time.

    Args:
        decoder: in eval mode; it stays as it is.
        samples: N; every step costs as much as N.

    Raises:
        UsageError: several samples of a decoder that draws none.
    """

    def __init__(self, decoder: Decoder, samples: int) -> None:
        super().__init__()
        check_samples(samples, decoder)
        # A decoder of its own, for its dice, of the same tensors.
        tensors = chain(decoder.parameters(), decoder.buffers())
        self.decoder = copy.deepcopy(decoder, {id(tensor): tensor for tensor in tensors})
        for law in hard_attention(self.decoder):
            law.dice = self._throw
        self.samples = samples
        self._pictures = 0
        self._generator = torch.Generator()

    @property
    def mechanism(self) -> str:
        """The decoder's."""
        return over_paths(self.decoder.mechanism, self.samples)

    def start(self, annotations: Annotations) -> Paths:
        """No word, of which every path is certain."""
        device = annotations.vectors.device
        self._pictures = len(annotations)
        self._generator = torch.Generator().manual_seed(0)  # a CPU's: the same on every device
        alike = torch.zeros(len(annotations), self.samples, dtype=torch.long, device=device)
        certain = torch.zeros(len(annotations), self.samples, 1, device=device)
        return Paths(self.decoder.start(annotations).select(alike), certain)

    def step(
        self, tokens: Int[Tensor, " B *R"], state: Paths
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], Paths]:
        """One word in, the log-probabilities of the next out."""
        self._pictures = len(tokens)  # a search may have left some out
        given = tokens.view(len(tokens), 1, -1).expand(-1, self.samples, -1)  # (B, N, R)
        so_far = state.so_far
        if state.coming is not None:
            so_far = so_far + state.coming.gather(-1, given.unsqueeze(-1)).squeeze(-1)
        logits, weights, inner = self.decoder.step(given.flatten(1), state.inner)
        coming = logits.float().log_softmax(-1).view(*given.shape, -1)
        trust = so_far.log_softmax(1).unsqueeze(-1)  # (B, N, R, 1)
        mean = (trust + coming).logsumexp(1)
        looked = (trust.exp() * weights.view(*given.shape, -1)).sum(1)
        shape = tokens.shape
        return mean.view(*shape, -1), looked.view(*shape, -1), Paths(inner, so_far, coming)

    def forward(
        self,
        annotations: Annotations,
        tokens: Int[Tensor, "B *R T"],
        detail: Detail = "shown",  # noqa: ARG002 - a mean over paths has no more to say
    ) -> Decoded:
        """Teacher forcing, step by step."""
        state = self.begin(annotations, tokens)
        said, looked = [], []
        for words in tokens.unbind(-1):
            logits, weights, state = self.step(words, state)
            said.append(logits)
            looked.append(weights)
        return Decoded(torch.stack(said, -2), torch.stack(looked, -2))

    def _throw(self, chances: Float[Tensor, "Bh NR L"]) -> Int[Tensor, "Bh NR 1"]:
        """The places that every path, and head, looks at in a step."""
        heads, rows = len(chances) // self._pictures, chances.shape[1] // self.samples
        luck = torch.rand((2, heads, self.samples), generator=self._generator)
        # Below 1 by more than rounding, or a place of probability 0 could be drawn.
        luck = ((luck[0].argsort(-1) + luck[1]) / self.samples).clamp(max=1 - 1e-6)
        luck = luck.repeat_interleave(rows, 1).repeat(self._pictures, 1).unsqueeze(-1)
        luck = luck.to(chances)
        cumulated = chances.cumsum(-1)
        found = (cumulated <= luck * cumulated[..., -1:]).sum(-1, keepdim=True)
        return found.clamp(max=chances.shape[-1] - 1)  # where all is masked


def check_samples(samples: int, decoder: Decoder) -> None:
    """Refuses several paths of what draws none.

    Raises:
        UsageError: with what to choose instead.
    """
    if samples > 1 and not samples_locations(decoder):
        raise UsageError(
            f"samples: {samples} averages over sampled locations, and {decoder.mechanism} samples "
            "none: give the distribution Hard test_time: sample, or leave samples at 1"
        )


def over_paths(mechanism: str, samples: int) -> str:
    """How a decoder attends, and over how many paths it is averaged where there are several."""
    return mechanism if samples == 1 else f"{mechanism}, mean of {samples} paths"
