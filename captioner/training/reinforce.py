"""Hard attention: lower bounds on log p(y | a), and estimators of their gradients."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from captioner import limits
from captioner.language.vocabulary import PAD
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.training.objective import Loss, Masks, Objective, Rewards, Rollout, Tokens

MOMENTUM = 0.9  # of the moving average of the rewards

PerWord = Float[Tensor, "B R T"]


@dataclass(frozen=True)
class Estimate:
    """Factors of the gradients of ``SampledLocations``; constants, without a gradient of their own."""

    likelihood: PerWord  # of ∂ log p(y | s̃, a)
    locations: PerWord  # of ∂ log p(s̃ | a), except for λ_r
    reward: PerWord  # to log, and the next
    baseline: PerWord


class SampledLocations(Objective, abstract=True):
    """Base of the objectives that train hard attention by sampling paths of locations.

    N paths are sampled for every caption. The gradient is the mean, over the words of all samples, of::

        l ∂ log p(y | s̃, a) + λ_r r ∂ log p(s̃ | a) + λ_e ∂H[s̃]

    A subclass gives the factors l and r.

    Args:
        samples: N.
        reward_weight: λ_r.
        entropy_weight: λ_e.
        doubly_stochastic: as in ``Objective``, but computed from the probabilities.
    """

    trains_locations = True

    def __init__(
        self,
        samples: int = 1,
        reward_weight: float = 1.0,
        entropy_weight: float = 0.01,
        doubly_stochastic: float = 0.5,
        **options: Any,
    ) -> None:
        super().__init__(doubly_stochastic, **options)
        self.samples = samples
        self.reward_weight, self.entropy_weight = reward_weight, entropy_weight

    def estimate(self, log_probs: PerWord, valid: Bool[Tensor, "B R T"]) -> Estimate:
        """Return the factors, given log p(y_t | s̃, a) of every word, 0 where it is not ``valid``."""
        raise NotImplementedError

    def rollout(self, decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Rollout:
        """Return every caption ``samples`` times in succession."""
        return Rollout(tokens.repeat_interleave(self.samples, 1))

    def forward(
        self, decoded: Decoded, words: Tokens, rewards: Rewards = None, masks: Masks = None
    ) -> Loss:
        """Return the terms ``likelihood``, ``reinforce``, ``entropy`` and those of the attention.

        Measures: ``nll`` in nats per word given the samples; the means ``reward`` and ``baseline``;
        ``advantage_variance``; and ``location_entropy`` in nats.
        """
        valid = words != PAD  # (B, R, T), with N rows for each caption
        count = self.normaliser(valid)

        def mean(values: PerWord) -> Float[Tensor, ""]:
            return values.where(valid, 0.0).sum() / count

        exact, smoothed = self.token_log_probs(decoded, words)
        estimate = self.estimate(exact.detach(), valid)
        terms = {"likelihood": -mean(estimate.likelihood * smoothed)}
        measures = {"nll": -mean(exact.detach())}
        choice = decoded.choice
        if choice is not None and choice.log_prob is not None:
            advantage = estimate.locations
            terms["reinforce"] = -self.reward_weight * mean(advantage * choice.log_prob)
            measures |= {
                "reward": mean(estimate.reward),
                "baseline": mean(estimate.baseline),
                "advantage_variance": mean((advantage - self.mean(advantage, valid)) ** 2),
            }
        if choice is not None:
            entropy = mean(choice.entropy)
            terms["entropy"] = -self.entropy_weight * entropy
            measures["location_entropy"] = entropy.detach()
        terms |= self.attention_terms(decoded, valid, masks)
        return Loss(terms, measures)


class Reinforce(SampledLocations):
    """Maximise Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a) by sampling s (Xu et al. 2015, §4.1).

    The gradient is estimated by::

        1/N Σ_n [∂ log p(y | s̃ⁿ, a) + λ_r (log p(y | s̃ⁿ, a) − b) ∂ log p(s̃ⁿ | a) + λ_e ∂H[s̃ⁿ]]

    The reward and the baseline b are constants. All terms are divided by the number of words, as in
    ``Likelihood``. With λ_r = 1 and λ_e = 0, the estimate is unbiased for every baseline, except in
    the first batch of ``moving_average``, which initialises it.

    Args:
        samples: N.
        baseline: b. ``none``: 0. ``moving_average``, as in the paper: a single number, updated to 0.9 b
            + 0.1 times the mean reward of each batch. ``leave_one_out``: the mean reward of a caption's
            other samples.
        credit: the reward of a location. ``caption``, as in the paper: the log-probability of the whole
            caption. ``to_go``: the log-probability of the current and later words, the only ones that
            depend on the location. The expectation is the same; ``to_go`` has less variance, except
            with ``moving_average``.
    """

    average: Tensor

    def __init__(
        self,
        samples: int = 1,
        baseline: Literal["none", "moving_average", "leave_one_out"] = "moving_average",
        credit: Literal["caption", "to_go"] = "caption",
        **options: Any,
    ) -> None:
        super().__init__(samples, **options)
        limits.check("samples", samples, limits.Number(2 if baseline == "leave_one_out" else 1))
        self.baseline, self.credit = baseline, credit
        self.register_buffer("average", torch.tensor(torch.nan))  # until the first batch

    def estimate(self, log_probs: PerWord, valid: Bool[Tensor, "B R T"]) -> Estimate:
        """Return 1 for the likelihood, and the reward less the baseline for the locations."""
        reward = log_probs.flip(-1).cumsum(-1).flip(-1)  # of this word and those to come
        if self.credit == "caption":
            reward = reward[..., :1].expand_as(reward)
        baseline = self._baseline(reward, valid)
        return Estimate(torch.ones_like(reward), reward - baseline, reward, baseline)

    def _baseline(self, reward: PerWord, valid: Bool[Tensor, "B R T"]) -> PerWord:
        """Return b for each reward, and update the moving average."""
        if self.baseline == "none":
            return torch.zeros_like(reward)
        if self.baseline == "leave_one_out":
            samples = reward.view(len(reward), -1, self.samples, reward.shape[-1])
            others = (samples.sum(2, keepdim=True) - samples) / (self.samples - 1)
            return others.view_as(reward)
        mean = self.mean(reward, valid)
        before = torch.where(self.average.isnan(), mean, self.average.to(mean))
        self.average.copy_(MOMENTUM * before + (1 - MOMENTUM) * mean)
        return before.expand_as(reward)


class VIMCO(SampledLocations):
    """Maximise E log 1/N Σ_n p(y | s̃ⁿ, a), a tighter bound on log p(y | a) than that of ``Reinforce``.

    With L̂ the logarithm for the drawn samples and L̂₋ₙ the same with the geometric mean of the others in
    place of p(y | s̃ⁿ, a), the gradient is estimated by (Mnih, Rezende 2016, arXiv 1602.06725, eq. 7 to
    10)::

        Σ_n [wₙ ∂ log p(y | s̃ⁿ, a) + λ_r (L̂ − L̂₋ₙ) ∂ log p(s̃ⁿ | a)]
        wₙ = p(y | s̃ⁿ, a) / Σ_m p(y | s̃ᵐ, a)

    Args:
        samples: N, at least 2.
    """

    def __init__(self, samples: int = 4, **options: Any) -> None:
        super().__init__(samples, **options)
        limits.check("samples", samples, limits.Number(2))

    def estimate(self, log_probs: PerWord, valid: Bool[Tensor, "B R T"]) -> Estimate:
        """Return N wₙ for the likelihood, and N (L̂ − L̂₋ₙ) for the locations."""
        captions = log_probs.sum(-1)  # (B, R), log p(y | s̃ⁿ, a)
        samples = torch.unflatten(captions, 1, (-1, self.samples))  # (B, S, N)
        shares = samples.softmax(-1)  # wₙ
        bound = samples.logsumexp(-1, keepdim=True) - math.log(self.samples)  # L̂
        others = (samples.sum(-1, keepdim=True) - samples) / (self.samples - 1)
        own = torch.eye(self.samples, dtype=torch.bool, device=samples.device)
        replaced = torch.where(own, others.unsqueeze(-1), samples.unsqueeze(-2))  # (B, S, N, N)
        left_out = replaced.logsumexp(-1) - math.log(self.samples)  # L̂₋ₙ

        def per_word(values: Float[Tensor, "B S N"]) -> PerWord:
            return values.flatten(1).unsqueeze(-1).expand_as(log_probs)

        return Estimate(
            likelihood=per_word(self.samples * shares),
            locations=per_word(self.samples * (bound - left_out)),
            reward=per_word(bound.expand_as(samples)),
            baseline=per_word(left_out),
        )
