"""Distributions α = p(e): from scores to weights over the annotations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from captioner.errors import ModelError
from captioner.models.registry import Component

TestTime = Literal["argmax", "sample", "expectation"]
GradientName = Literal["score_function", "straight_through", "marginal"]


@dataclass(frozen=True)
class Weights:
    """What a distribution makes of the scores.

    Attributes:
        weights: how much each position counts, in [0, 1]; exactly 0 where masked.
        log_prob: log-probability of the choice made; None where nothing is drawn.
        entropy: entropy in nats of what the choice was drawn from; None where nothing is drawn.
        centre: the (row, column) of a local window's centre, in cells; None for any other.
        expected: the probabilities that a choice was drawn from; None where nothing is drawn.
        places: the k most probable positions, for a distribution that wants each of them tried; and
        chances: their probabilities, which sum to 1. None for any other.
    """

    weights: Float[Tensor, "B T L"]
    log_prob: Float[Tensor, "B T"] | None = None
    entropy: Float[Tensor, "B T"] | None = None
    centre: Float[Tensor, "B T 2"] | None = None
    expected: Float[Tensor, "B T L"] | None = None
    places: Int[Tensor, "B T k"] | None = None
    chances: Float[Tensor, "B T k"] | None = None


@dataclass(frozen=True)
class Asked:
    """What a positional distribution reads beside the scores.

    Attributes:
        query: the queries that the scores answer.
        grid: (rows, columns) in which the positions lie, raster order; (1, L) for a sequence.
        step: which word each query asks for, counted from 0: one for all, (T,) where all pictures
            have the same, or (B, T); None where nobody counts.
        coins: what ``Distribution.coins`` drew for each picture.
    """

    query: Float[Tensor, "B T n"]
    grid: tuple[int, int]
    step: int | Int[Tensor, "*pictures T"] | None
    coins: Bool[Tensor, " B"] | None = None


class Distribution(Component, kind="distribution"):
    """Base of all distributions.

    Args:
        query_dim: n, the width of a query, for those that look at it.
    """

    # Whether the order of the positions means something: permuting them does more than permute.
    positional = False
    # Whether a decoder is to try several positions, while training, and mix what they say.
    branches = False

    def __init__(self, query_dim: int) -> None:  # noqa: ARG002
        super().__init__()

    @property
    def name(self) -> str:
        """What it is called, for people."""
        return type(self).__name__

    def coins(self, vectors: Float[Tensor, "B L D"]) -> Bool[Tensor, " B"] | None:  # noqa: ARG002
        """What is drawn once per picture, for all words of all its captions; None for nothing."""
        return None

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,
    ) -> Weights:
        """Weights for scores.

        Args:
            scores: any real numbers.
            mask: True where a position may be attended.
            asked: the queries, for positional distributions.
        """
        raise NotImplementedError


class Soft(Distribution):
    """Softmax over all unmasked positions: deterministic, differentiable (Xu et al. 2015 §4.2)."""

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,  # noqa: ARG002
    ) -> Weights:
        """Weights sum to 1, or are all 0 where everything is masked."""
        return Weights(masked_softmax(scores, mask))


class Sparsemax(Distribution):
    """The point of the simplex nearest to the scores: exact zeros (Martins, Astudillo 2016)."""

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,  # noqa: ARG002
    ) -> Weights:
        """Weights sum to 1, or are all 0 where everything is masked. Algorithm 1 of the paper."""
        scores = _wide(scores)
        if mask is not None:
            scores = _blocked(scores, mask)
        # Only differences count; a score 1 or more below the largest has no part, however far it is,
        # nor has a masked one.
        scores = (scores - scores.amax(-1, keepdim=True)).clamp(min=-2.0)
        if mask is not None:
            scores = scores.masked_fill(~mask, -2.0)
        ordered = scores.sort(-1, descending=True).values
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        excess = ordered.cumsum(-1) - 1
        support = (count * ordered > excess).sum(-1, keepdim=True).clamp(min=1)  # k(z)
        threshold = excess.gather(-1, support - 1) / support  # τ(z)
        weights = (scores - threshold).clamp(min=0.0)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)
        return Weights(weights)


class Hard(Distribution):
    """One position, drawn: s ~ Multinoulli(softmax(e)) (Xu et al. 2015 §4.1).

    How it is trained is named by ``gradient``; with the first two, a position is sampled:

    - ``score_function``: the one-hot weights carry none; an objective (``LowerBound``) reaches the
      scores through ``log_prob`` and ``entropy``.
    - ``straight_through``: that of a softmax of scores plus Gumbel noise stands in for it (Jang et al.
      2017, arXiv 1611.01144; Maddison et al. 2017, arXiv 1611.00712). Biased, and less noisy.
    - ``marginal``: nothing is drawn. The decoder tries each of the ``top`` most probable positions, the
      word's probability is Σ p(s) p(y | s) over them, and the state it goes on with their mean
      (Shankar, Garg, Sarawagi 2018, "Surprisingly Easy Hard-Attention"). No noise at all; ``top``
      times the work of a step.

    Args:
        query_dim: not used.
        test_time: what counts outside training: ``argmax``, the most probable position; ``sample``;
            or ``expectation``, the probabilities themselves, as if the attention were soft.
        gradient: as above.
        temperature: the scores are divided by it, above 0.
        expectation: probability that a picture's samples are replaced, while training, by their
            expectation: 0.5 in the paper, whose authors drew one coin for a whole minibatch.
        top: k, how many positions ``marginal`` tries.

    Attributes:
        heat: another factor of the temperature while training, for an objective that cools it down.
        dice: from probabilities to the places drawn, (B, T, 1), outside training.
    """

    def __init__(
        self,
        query_dim: int,
        test_time: TestTime = "argmax",
        gradient: GradientName = "score_function",
        temperature: float = 1.0,
        expectation: float = 0.0,
        top: int = 6,
    ) -> None:
        super().__init__(query_dim)
        if test_time not in ("argmax", "sample", "expectation"):
            raise ModelError(f"test_time must be argmax, sample or expectation, got {test_time!r}")
        if gradient not in get_args(GradientName):
            raise ModelError(
                f"gradient must be score_function, straight_through or marginal, got {gradient!r}"
            )
        if top < 1:
            raise ModelError(f"top counts the positions to try, 1 or more, got {top}")
        if gradient == "marginal" and expectation:
            raise ModelError("gradient: marginal draws nothing that an expectation could replace")
        if temperature <= 0:
            raise ModelError(f"the temperature must be above 0, got {temperature}")
        if not 0 <= expectation <= 1:
            raise ModelError(f"expectation is a probability, from 0 to 1, got {expectation}")
        self.test_time = test_time
        self.gradient = gradient
        self.temperature = temperature
        self.expectation = expectation
        self.top = top
        self.branches = gradient == "marginal"
        self.heat = 1.0
        self.dice: Callable[[Tensor], Tensor] = _drawn

    @property
    def name(self) -> str:
        """With what it does at test time."""
        return f"Hard ({self.test_time})"

    def coins(self, vectors: Float[Tensor, "B L D"]) -> Bool[Tensor, " B"] | None:
        """For which pictures the expectation stands in for samples."""
        if not (self.training and self.expectation):
            return None
        return torch.rand(len(vectors), device=vectors.device) < self.expectation

    def forward(
        self,
        scores: Float[Tensor, "B T L"],
        mask: Bool[Tensor, "B 1 L"] | None,
        asked: Asked,
    ) -> Weights:
        """One-hot weights, all 0 where everything is masked; for an expectation, no ``log_prob``."""
        heat = self.temperature * (self.heat if self.training else 1.0)
        probabilities = masked_softmax(scores / heat, mask)
        log_probs = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()
        entropy = -(probabilities * log_probs).sum(-1)
        how = "sample" if self.training else self.test_time
        if how == "expectation":
            return Weights(probabilities, None, entropy, expected=probabilities)
        if self.training and self.branches:
            chances, places = probabilities.topk(min(self.top, probabilities.shape[-1]), -1)
            tiny = torch.finfo(chances.dtype).tiny  # where everything is masked
            chances = chances / chances.sum(-1, keepdim=True).clamp(min=tiny)
            weights = torch.zeros_like(probabilities).scatter(-1, places, chances)
            return Weights(
                weights, None, entropy, expected=probabilities, places=places, chances=chances
            )
        race = None
        if self.training:
            race, place = _race(probabilities.detach())
        elif how == "sample":
            place = self.dice(probabilities)
        else:
            place = probabilities.argmax(-1, keepdim=True)
        drawn = torch.zeros_like(probabilities).scatter(-1, place, 1.0)
        if mask is not None:
            drawn = drawn * mask.any(-1, keepdim=True)
        log_prob: Tensor | None = log_probs.gather(-1, place).squeeze(-1)
        if race is not None and self.gradient == "straight_through":
            relaxed = masked_softmax((log_probs - race.log()) / heat, mask)
            drawn = drawn + relaxed - relaxed.detach()
            log_prob = None
        if asked.coins is not None:
            expected = asked.coins[:, None]  # (B, 1)
            drawn = torch.where(expected.unsqueeze(-1), probabilities, drawn)
            if log_prob is not None:
                log_prob = log_prob.masked_fill(expected, 0.0)  # nothing was drawn
        return Weights(drawn, log_prob, entropy, expected=probabilities)


def hard_attention(decoder: nn.Module) -> list[Hard]:
    """The hard distributions of a decoder."""
    return [part for part in decoder.modules() if isinstance(part, Hard)]


def samples_locations(decoder: nn.Module) -> bool:
    """Whether it looks, at test time, where it draws: another place in each call."""
    return any(law.test_time == "sample" for law in hard_attention(decoder))


def _race(probabilities: Float[Tensor, "B T L"]) -> tuple[Tensor, Int[Tensor, "B T 1"]]:
    """The exponential race: the noise, and who wins.

    The position whose Exp(1) / p is smallest is drawn with probability p. Unlike torch.multinomial it
    takes rows of zeros and any number of rows. -log of an Exp(1) is Gumbel noise: the same race, seen
    from the scores.
    """
    race = torch.empty_like(probabilities).exponential_()
    return race, (probabilities / race).argmax(-1, keepdim=True)


def _drawn(probabilities: Float[Tensor, "B T L"]) -> Int[Tensor, "B T 1"]:
    """A place for every row, anew in every call."""
    return _race(probabilities)[1]


def masked_softmax(
    scores: Float[Tensor, "B T L"], mask: Bool[Tensor, " B #T L"] | None
) -> Float[Tensor, "B T L"]:
    """Softmax over the last axis in at least float32; a fully masked row gives zeros, not NaN.

    Args:
        scores: any real numbers.
        mask: True where a position may be attended: (B, 1, L), or (B, T, L) for windows.
    """
    scores = _wide(scores)
    if mask is None:
        return scores.softmax(-1)
    return _blocked(scores, mask).softmax(-1).masked_fill(~mask, 0.0)


def _wide(scores: Float[Tensor, "B T L"]) -> Float[Tensor, "B T L"]:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _blocked(
    scores: Float[Tensor, "B T L"], mask: Bool[Tensor, " B #T L"]
) -> Float[Tensor, "B T L"]:
    """The smallest finite number instead of -inf where masked: a row of -inf would be 0/0."""
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
