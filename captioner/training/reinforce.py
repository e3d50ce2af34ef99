"""Hard attention: the lower bound on log p(y | a), and estimators of its gradient."""

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from captioner import distributed, limits
from captioner.errors import UsageError
from captioner.language.vocabulary import PAD
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.training.objective import (
    Loss,
    Masks,
    Objective,
    Rewards,
    Rollout,
    Tokens,
    token_log_probs,
)

MOMENTUM = 0.9  # of the running mean rewards
MAX_STEPS = 256  # more words than any caption has


class Reinforce(Objective):
    """Maximise Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a) by sampling s (Xu et al. 2015, §4.1).

    N locations are sampled for every word of a caption, and the gradient is estimated by::

        1/N Σ_n [∂ log p(y | s̃ⁿ, a) + λ_r (log p(y | s̃ⁿ, a) − b) ∂ log p(s̃ⁿ | a) + λ_e ∂H[s̃ⁿ]]

    The reward and the baseline b are constants. All terms are divided by the number of words, as in
    ``Likelihood``. With λ_r = 1 and λ_e = 0, the estimate is unbiased for every baseline, except in
    the first batch of ``moving_average`` and ``per_step``, which initialises their running means.

    ``baseline: vimco`` maximises a tighter bound, E log 1/N Σ_n p(y | s̃ⁿ, a) (Mnih, Rezende 2016, arXiv
    1602.06725). With L̂ the logarithm for the drawn samples and L̂₋ₙ the same with the geometric mean of
    the others in place of p(y | s̃ⁿ, a), the gradient is estimated by (eq. 7 to 10)::

        Σ_n [wₙ ∂ log p(y | s̃ⁿ, a) + λ_r (L̂ − L̂₋ₙ) ∂ log p(s̃ⁿ | a)]
        wₙ = p(y | s̃ⁿ, a) / Σ_m p(y | s̃ᵐ, a)

    Args:
        samples: N.
        baseline: b. ``none``: 0. ``moving_average``, as in the paper: a single number, updated to 0.9 b
            + 0.1 times the mean reward of each batch. ``per_step``: a running mean of the reward per
            remaining word, one for each step. ``leave_one_out``: the mean reward of a caption's other
            samples. ``vimco``: see above; only with ``credit: caption``.
        credit: the reward of a location. ``caption``, as in the paper: the log-probability of the whole
            caption. ``to_go``: the log-probability of the current and later words, the only ones that
            depend on the location. The expectation is the same; ``to_go`` has less variance, except
            with ``moving_average``.
        reward_weight: λ_r.
        entropy_weight: λ_e.
        doubly_stochastic: as in ``Objective``, but computed from the probabilities.
        initial_temperature: factor of the attention's temperature at the start; it falls to 1
            geometrically over the first half of the training.
        options: those of ``Objective``; rewards are not smoothed.
    """

    trains_locations = True
    means: Tensor
    seeded: Tensor

    def __init__(
        self,
        samples: int = 1,
        baseline: Literal[
            "none", "moving_average", "per_step", "leave_one_out", "vimco"
        ] = "moving_average",
        credit: Literal["caption", "to_go"] = "caption",
        reward_weight: float = 1.0,
        entropy_weight: float = 0.01,
        doubly_stochastic: float = 0.5,
        initial_temperature: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(doubly_stochastic, **options)
        limits.check("samples", samples, limits.Number(1))
        if baseline in ("leave_one_out", "vimco") and samples < 2:
            raise UsageError(f"the baseline {baseline} needs 2 samples or more: give samples: 2")
        if (baseline, credit) == ("vimco", "to_go"):
            raise UsageError(
                "vimco averages the probabilities of whole captions: give credit: caption"
            )
        limits.check("initial_temperature", initial_temperature, limits.TEMPERATURE)
        self.samples, self.baseline, self.credit = samples, baseline, credit
        self.reward_weight, self.entropy_weight = reward_weight, entropy_weight
        self.initial_temperature = initial_temperature
        self.register_buffer("means", torch.zeros(MAX_STEPS))
        self.register_buffer("seeded", torch.zeros(MAX_STEPS, dtype=torch.bool))

    def temperature(self, progress: float) -> float:
        """Fall from ``initial_temperature`` to 1 in the first half of the training."""
        return self.initial_temperature ** max(0.0, 1 - 2 * progress)

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
        count = self.count(valid)

        def mean(values: Float[Tensor, "B R T"]) -> Float[Tensor, ""]:
            return values.where(valid, 0.0).sum() / count

        exact, smoothed = token_log_probs(decoded, words, self.label_smoothing)
        reward, sums = self._reward(exact).detach(), self.baseline == "vimco" and self.training
        weights = self.samples * _shares(reward, self.samples) if sums else 1.0  # N wₙ
        terms = {"likelihood": -mean(weights * smoothed)}
        measures = {"nll": -mean(exact.detach())}
        choice = decoded.choice
        if choice is not None and choice.log_prob is not None:
            # A surrogate whose gradient is −λ_r (log p(y | s̃) − b) ∂ log p(s̃ | a).
            if sums:
                reward, baseline = _bounds(reward, self.samples)
            else:
                baseline = self._baseline(reward, valid)
            advantage = (reward - baseline) * (self.samples if sums else 1)
            terms["reinforce"] = -self.reward_weight * mean(advantage * choice.log_prob)
            measures |= {
                "reward": mean(reward),
                "baseline": mean(baseline),
                "advantage_variance": mean((advantage - self.mean(advantage, valid)) ** 2),
            }
        if choice is not None:
            entropy = mean(choice.entropy)
            terms["entropy"] = -self.entropy_weight * entropy
            measures["location_entropy"] = entropy.detach()
        terms |= self.attention_terms(decoded, valid, masks)
        return Loss(terms, measures)

    def _reward(self, log_probs: Float[Tensor, "B R T"]) -> Float[Tensor, "B R T"]:
        """Return the reward of every location: a sum of log-probabilities."""
        to_go = log_probs.flip(-1).cumsum(-1).flip(-1)
        return to_go if self.credit == "to_go" else to_go[..., :1].expand_as(to_go)

    def _baseline(
        self, reward: Float[Tensor, "B R T"], valid: Bool[Tensor, "B R T"]
    ) -> Float[Tensor, "B R T"]:
        """Return b for each reward, and update the running means in training."""
        if self.baseline == "none":
            return torch.zeros_like(reward)
        if self.baseline in ("leave_one_out", "vimco") and not self.training:
            return reward  # captions are not repeated in validation
        if self.baseline == "leave_one_out":
            samples = reward.view(len(reward), -1, self.samples, reward.shape[-1])
            others = (samples.sum(2, keepdim=True) - samples) / (self.samples - 1)
            return others.view_as(reward)
        if self.baseline == "moving_average":
            return self._running_mean(reward, valid, 1).expand_as(reward)
        words = self._reward(valid.to(reward.dtype))  # the number of words in each reward
        return self._running_mean(reward / words.clamp(min=1), valid, reward.shape[-1]) * words

    def _running_mean(
        self, values: Float[Tensor, "B R T"], valid: Bool[Tensor, "B R T"], steps: int
    ) -> Float[Tensor, " #T"]:
        """Return the running means without this batch, then update them.

        The first batch gets its own means. ``steps`` is T for one mean per step, 1 for a single mean.
        """
        means = self.means.to(values.dtype)
        if not self.training:
            return means[:steps]

        def total(part: Tensor) -> Tensor:  # over all processes
            sums = part.sum((0, 1)).view(steps, -1).sum(-1)
            return distributed.total(F.pad(sums, (0, MAX_STEPS - steps)))

        counts = total(valid)
        batch = total(values.where(valid, 0.0)) / counts.clamp(min=1)
        before = torch.where(self.seeded, means, batch)
        updated = MOMENTUM * before + (1 - MOMENTUM) * batch
        self.means.copy_(torch.where(counts > 0, updated, means))
        self.seeded |= counts > 0
        return before[:steps]


def _shares(log_probs: Float[Tensor, "B R T"], samples: int) -> Float[Tensor, "B R T"]:
    """Return wₙ of ``vimco``; ``log_probs`` are log p(y | s̃ⁿ, a), the same at every step."""
    groups = torch.unflatten(log_probs, 1, (-1, samples))  # (B, S, N, T)
    return groups.softmax(2).flatten(1, 2)


def _bounds(
    log_probs: Float[Tensor, "B R T"], samples: int
) -> tuple[Float[Tensor, "B R T"], Float[Tensor, "B R T"]]:
    """Return L̂ and L̂₋ₙ of ``vimco`` for every sample, from log p(y | s̃ⁿ, a)."""
    groups = torch.unflatten(log_probs, 1, (-1, samples))
    others = (groups.sum(2, keepdim=True) - groups) / (samples - 1)  # of their geometric mean
    own = torch.eye(samples, dtype=torch.bool, device=groups.device).unsqueeze(-1)
    replaced = torch.where(own, others.unsqueeze(3), groups.unsqueeze(2))  # (B, S, N, N, T)
    bounds = groups.logsumexp(2, keepdim=True).expand_as(groups), replaced.logsumexp(3)
    drawn, left_out = (bound.flatten(1, 2) - math.log(samples) for bound in bounds)
    return drawn, left_out
