"""Hard attention: the lower bound on log p(y | a), and the estimators of its gradient."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner import processes
from captioner.errors import UsageError
from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import hard_attention
from captioner.models.decoder import Decoded, Decoder
from captioner.text import PAD
from captioner.training.objectives import (
    Lesson,
    Loss,
    Objective,
    check_supervision,
)
from captioner.training.said import said_words

BaselineName = Literal["none", "moving_average", "per_step", "leave_one_out"]
Credit = Literal["caption", "to_go"]
KEPT = 0.9  # of a running mean, at every batch
STEPS = 256  # more words than any caption has


class LowerBound(Objective):
    """Maximise Σ_s p(s | a) log p(y | s, a) ≤ log p(y | a) by sampling s (Xu et al. 2015, §4.1).

    For every caption N locations are drawn for every word, and the gradient estimated by::

        1/N Σ_n [∂ log p(y | s̃ⁿ, a) + λ_r (log p(y | s̃ⁿ, a) − b) ∂ log p(s̃ⁿ | a) + λ_e ∂H[s̃ⁿ]]

    Reward and baseline b are constants. All is summed over captions and divided by their words, so
    that it is on the scale of ``Likelihood``. With λ_r = 1 and λ_e = 0 it is an unbiased estimate of
    the bound's gradient for every baseline; only the first batch of ``moving_average`` and
    ``per_step``, from which they take their start, is not.

    Args:
        samples: N.
        baseline: b. ``none``; ``moving_average``, one number for all captions, 0.9 b + 0.1 of each
            batch's mean reward, as in the paper; ``per_step``, one number a step, learned the same
            way: the reward per word still to come; ``leave_one_out``, the mean of a caption's other
            samples (Mnih, Rezende 2016, arXiv 1602.06725).
        credit: ``caption`` gives every location the whole caption's log-probability, as in the paper;
            ``to_go`` that of its own word and the later ones, which alone depend on it: the same
            expectation, and with ``per_step`` or ``leave_one_out`` less variance.
        reward_weight: λ_r.
        entropy_weight: λ_e.
        doubly_stochastic: λ of ``Likelihood``'s term, on the probabilities, not on the samples.
        label_smoothing: as ``Likelihood``; the reward is never smoothed.
        heat: how much hotter than its own the temperature of the distribution is at first; it falls
            to 1 geometrically over the first half of the training.
        supervision: λ of ``looked_away``, as ``Likelihood``, on the probabilities.

    Raises:
        UsageError: less than one sample, one sample to leave out, or a heat of 0 or below.
    """

    means: Tensor
    seeded: Tensor

    def __init__(
        self,
        samples: int = 1,
        baseline: BaselineName = "moving_average",
        credit: Credit = "caption",
        reward_weight: float = 1.0,
        entropy_weight: float = 0.01,
        doubly_stochastic: float = 0.5,
        label_smoothing: float = 0.0,
        heat: float = 1.0,
        supervision: float = 0.0,
    ) -> None:
        super().__init__()
        if samples < 1:
            raise UsageError(f"LowerBound needs 1 sample or more, got {samples}")
        if baseline == "leave_one_out" and samples < 2:
            raise UsageError("the baseline leave_one_out needs 2 samples or more: give samples: 2")
        if heat <= 0:
            raise UsageError(f"the heat must be above 0, got {heat}")
        self.samples = samples
        self.baseline = baseline
        self.credit = credit
        self.reward_weight = reward_weight
        self.entropy_weight = entropy_weight
        self.doubly_stochastic = doubly_stochastic
        self.label_smoothing = label_smoothing
        self.hot = heat
        self.supervision = supervision
        self.register_buffer("means", torch.zeros(STEPS))
        self.register_buffer("seeded", torch.zeros(STEPS, dtype=torch.bool))

    def check(self, decoder: Decoder) -> None:
        """Only samples can be scored."""
        check_supervision(self.supervision, decoder)
        if not any(m.gradient == "score_function" for m in hard_attention(decoder)):
            raise UsageError(
                f"LowerBound trains hard attention, and {decoder.mechanism} draws no locations to "
                "score: choose the distribution Hard with gradient: score_function, or the objective "
                "Likelihood"
            )

    def heat(self, progress: float) -> float:
        """From hot to 1 in the first half."""
        return self.hot ** max(0.0, 1 - 2 * progress)

    def lesson(
        self,
        decoder: Decoder,  # noqa: ARG002
        annotations: Annotations,  # noqa: ARG002
        tokens: Int[Tensor, "B R T"],
    ) -> Lesson:
        """Every caption ``samples`` times, its copies following one another."""
        return Lesson(tokens.repeat_interleave(self.samples, 1))

    def forward(
        self,
        decoded: Decoded,
        targets: Int[Tensor, "B RN T"],
        rewards: Float[Tensor, "B RN"] | None = None,  # noqa: ARG002
        masks: Float[Tensor, "B S T L"] | None = None,
    ) -> Loss:
        """Terms ``likelihood``, ``reinforce``, ``entropy``, ``doubly_stochastic`` and ``supervision``.

        Measures: ``nll`` in nats per word given the samples; ``reward`` and ``baseline``, means over
        samples and steps; ``advantage_variance``; ``location_entropy`` in nats per word; and the
        share of each term in the sum of their magnitudes.
        """
        there = targets != PAD  # (B, R·N, T)
        words = self.number(there)

        def mean(values: Float[Tensor, "B RN T"]) -> Float[Tensor, ""]:
            return values.where(there, 0.0).sum() / words

        said = said_words(decoded, targets, self.label_smoothing)
        terms = {"likelihood": -mean(said.smoothed)}
        measures = {"nll": -mean(said.exact.detach())}
        if decoded.log_prob is not None:
            reward = self._reward(said.exact.detach())
            baseline = self._baseline(reward, there)
            advantage = reward - baseline
            terms["reinforce"] = -self.reward_weight * mean(advantage * decoded.log_prob)
            measures |= {
                "reward": mean(reward),
                "baseline": mean(baseline),
                "advantage_variance": mean((advantage - self.average(advantage, there)) ** 2),
            }
        if decoded.entropy is not None:
            entropy = mean(decoded.entropy)
            measures["location_entropy"] = entropy.detach()
            terms["entropy"] = -self.entropy_weight * entropy
        terms |= self.looking(decoded, there, masks)
        magnitudes = torch.stack([term.detach() for term in terms.values()])
        if self.training:
            magnitudes = processes.mean(magnitudes)
        shares = magnitudes.abs() / magnitudes.abs().sum()
        measures |= {f"share_{name}": part for name, part in zip(terms, shares, strict=True)}
        return Loss(torch.stack(list(terms.values())).sum(), terms, measures)

    def _reward(self, log_probs: Float[Tensor, "B RN T"]) -> Float[Tensor, "B RN T"]:
        """For every location the log-probability of what it is given the credit for."""
        to_go = log_probs.flip(-1).cumsum(-1).flip(-1)
        return to_go if self.credit == "to_go" else to_go[..., :1].expand_as(to_go)

    def _baseline(
        self, reward: Float[Tensor, "B RN T"], there: Bool[Tensor, "B RN T"]
    ) -> Float[Tensor, "B RN T"]:
        """What is subtracted from each reward; while training it learns from them, afterwards."""
        if self.baseline == "none":
            return torch.zeros_like(reward)
        if self.baseline == "leave_one_out":
            if not self.training:  # every caption is there but once
                return reward
            each = reward.view(len(reward), -1, self.samples, reward.shape[-1])
            others = (each.sum(2, keepdim=True) - each) / (self.samples - 1)
            return others.view_as(reward)
        if self.baseline == "moving_average":
            rate, unit, steps = reward, torch.ones_like(reward), 1  # one number
        else:
            unit = self._reward(there.to(reward.dtype))  # the words that the credit is for
            rate, steps = reward / unit.clamp(min=1), reward.shape[-1]
        return self._running(rate, there, steps) * unit

    def _running(
        self, rate: Float[Tensor, "B RN T"], there: Bool[Tensor, "B RN T"], steps: int
    ) -> Float[Tensor, " #T"]:
        """Running means of earlier batches, one or one a step; this one's where it is the first."""
        known = self.means.to(rate.dtype)
        if not self.training:
            return known[:steps]
        # Of the batch of all processes, whose captions may be longer: all keep the same means.
        sums, counts = (
            processes.total(F.pad(part, (0, STEPS - steps)))
            for part in (
                rate.where(there, 0.0).sum((0, 1)).view(steps, -1).sum(-1),
                there.sum((0, 1)).view(steps, -1).sum(-1),
            )
        )
        now = sums / counts.clamp(min=1)
        before = torch.where(self.seeded, known, now)
        met = counts > 0
        self.means.copy_(torch.where(met, KEPT * before + (1 - KEPT) * now, known))
        self.seeded |= met
        return before[:steps]
