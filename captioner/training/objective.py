"""The base class of the training objectives, and the loss terms they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from captioner import distributed, limits
from captioner.errors import UsageError
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.models.distributions import Distribution, hard_attention
from captioner.models.registry import Component
from captioner.text import PAD

Tokens = Int[Tensor, "B R T"]
Rewards = Float[Tensor, "B R"] | None
Masks = Float[Tensor, "B S T L"] | None  # R = S · N, with N samples of each of S captions
SupervisionLoss = Literal["cross_entropy", "mass"]

LEAST_MASS = 1e-4  # keeps the logarithm of a mass finite


@dataclass(frozen=True)
class Loss:
    """A loss and its parts."""

    terms: dict[str, Float[Tensor, ""]]  # the weighted terms, by name; the loss is their sum
    measures: dict[str, Float[Tensor, ""]]  # other values to log

    @property
    def total(self) -> Float[Tensor, ""]:
        """The sum of the terms."""
        return torch.stack(list(self.terms.values())).sum()


@dataclass(frozen=True)
class Rollout:
    """The captions that a training step learns from."""

    tokens: Tokens  # <start> words <end> <pad> …
    rewards: Rewards = None  # the weight of each caption; None if all captions count the same
    measures: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)  # values to log


class Objective(Component, kind="objective"):
    """Base class of all objectives."""

    needs_weights = True  # whether the loss reads the attention weights
    dropout = True  # whether the model trains with dropout
    trains_locations = False  # whether it trains hard attention with gradient: score_function
    doubly_stochastic = 0.0  # λ of ``doubly_stochastic``; 0 omits the term
    supervision = 0.0  # λ of the supervision of attention; 0 omits the term
    supervision_loss: SupervisionLoss = "cross_entropy"  # see SUPERVISION_LOSSES

    @property
    def needs_masks(self) -> bool:
        """Whether training images need masks or boxes of what their captions name."""
        return self.supervision > 0

    def check(self, decoder: Decoder) -> None:
        """Raise ``UsageError`` if this objective cannot train the attention of the decoder."""
        name = type(self).__name__
        sampled = any(hard.gradient == "score_function" for hard in hard_attention(decoder))
        if sampled and not self.trains_locations:
            raise UsageError(
                f"{name} does not train the scores of hard attention: choose the objective "
                "Reinforce, or give Hard the option gradient: straight_through, or marginal"
            )
        if self.trains_locations and not sampled:
            raise UsageError(
                f"{name} trains hard attention, and {decoder.mechanism} samples no locations: "
                "give Hard the option gradient: score_function, or choose the objective Likelihood"
            )
        limits.check("supervision", self.supervision, limits.SUPERVISION)
        for module in decoder.modules():
            if self.supervision and isinstance(module, Distribution) and module.sparse:
                raise UsageError(
                    f"supervision needs positive attention weights, and {module.name} sets some to "
                    "0: choose the distribution Soft or Hard, or leave supervision at 0"
                )

    def setup(self, captions: Sequence[Sequence[Sequence[int]]]) -> None:
        """Read all captions of every training image, as ids, before training starts."""

    def rollout(self, decoder: Decoder, annotations: Annotations, tokens: Tokens) -> Rollout:
        """Return the captions to learn from; by default ``tokens``, the reference captions.

        Objectives that generate captions use the decoder and the output of the neck.
        """
        return Rollout(tokens)

    def temperature(self, progress: float) -> float:
        """Return a factor of hard attention's temperature; ``progress`` rises from 0 to 1."""
        return 1.0

    def forward(
        self, decoded: Decoded, words: Tokens, rewards: Rewards = None, masks: Masks = None
    ) -> Loss:
        """Return the loss of the decoder's predictions.

        Each word is predicted from the words before it.

        Every term is a sum over this process's words or captions divided by ``count``, so that the mean
        over processes is the loss of the whole batch.

        Args:
            decoded: the decoder's output.
            words: the words to predict; ``<pad>`` does not count.
            rewards: those of the rollout; None outside training.
            masks: as ``Batch.masks``; None outside training and without supervision.
        """
        raise NotImplementedError

    def count(self, valid: Bool[Tensor, "*n"]) -> Shaped[Tensor, ""]:
        """Return the number of valid entries, at least 1.

        In training, return the total over all processes divided by their number; every process must
        call it.
        """
        return distributed.share(valid.sum()) if self.training else valid.sum().clamp(min=1)

    def mean(self, values: Float[Tensor, "*n"], valid: Bool[Tensor, "*n"]) -> Float[Tensor, ""]:
        """Return the mean of the valid values, without gradient; in training, over all processes."""
        share = values.detach().where(valid, 0.0).sum() / self.count(valid)
        return distributed.mean(share) if self.training else share

    def attention_terms(
        self, decoded: Decoded, valid: Bool[Tensor, "B R T"], masks: Masks
    ) -> dict[str, Tensor]:
        """Return the terms ``doubly_stochastic`` and ``supervision``, unless their λ is 0.

        They apply to the attention weights; with sampled locations, to the probabilities.
        """
        probs = decoded.weights if decoded.probs is None else decoded.probs
        terms = {}
        if self.doubly_stochastic:
            assert probs is not None
            penalty = self.doubly_stochastic * doubly_stochastic(probs, valid)
            terms["doubly_stochastic"] = penalty / self.count(valid.any(-1))
        if self.supervision and self.training:
            assert probs is not None
            # A process that could read none of its images has no masks, but must call ``count``.
            masks = torch.zeros_like(probs) if masks is None else masks
            copies = probs.shape[1] // masks.shape[1]  # rows per caption; the loss is their mean
            losses = SUPERVISION_LOSSES[self.supervision_loss](
                probs, masks.repeat_interleave(copies, 1)
            )
            loss = self.supervision * losses.sum() / copies
            terms["supervision"] = loss / self.count(masks.any(-1))
        return terms


class TokenLogProbs(NamedTuple):
    """Log-probabilities of the target words in nats; 0 where the target is ``<pad>``."""

    exact: Float[Tensor, "B R T"]  # log p(y)
    smoothed: Float[Tensor, "B R T"]  # (1 − ε) log p(y) + ε · mean of log p over the vocabulary


def token_log_probs(decoded: Decoded, targets: Tokens, smoothing: float = 0.0) -> TokenLogProbs:
    """Return the log-probabilities of the targets, in at least float32.

    ``smoothing`` is ε of label smoothing (Szegedy et al. 2016).
    """
    logits, words = decoded.packed_logits, decoded.pack(targets)  # of the steps that have a target
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_probs = logits.log_softmax(-1, dtype=dtype)
    exact = log_probs.gather(-1, words.unsqueeze(-1)).squeeze(-1)
    smoothed = exact.lerp(log_probs.mean(-1), smoothing) if smoothing else exact
    valid = words != PAD
    return TokenLogProbs(
        decoded.unpack(exact.where(valid, 0.0)), decoded.unpack(smoothed.where(valid, 0.0))
    )


def doubly_stochastic(weights: Float[Tensor, "B R T L"], valid: Tensor) -> Float[Tensor, ""]:
    """Return the sum over captions of the mean over regions i of ``(1 − Σ_t α_t,i)²``.

    ``valid`` (B, R, T) marks the steps with a target; captions without targets do not count.
    """
    total = (weights * valid.unsqueeze(-1)).sum(-2)  # (B, R, L)
    return (((1 - total) ** 2).mean(-1) * valid.any(-1)).sum()


def cross_entropy(
    weights: Float[Tensor, "B R T L"], masks: Float[Tensor, "B R T L"]
) -> Float[Tensor, "B R T"]:
    """Return ``−Σ_i m̂_i log α_i`` with ``m̂ = m / Σ_i m_i`` (Liu et al. 2017), minimal at α = m̂.

    Args:
        weights: α at every step.
        masks: m, the fraction of every cell that the mask covers; all 0 for a word without a mask.
    """
    total = masks.sum(-1, keepdim=True)
    target = masks / total.where(total > 0, 1.0)
    return -(target * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum(-1)


def negative_log_mass(
    weights: Float[Tensor, "B R T L"], masks: Float[Tensor, "B R T L"]
) -> Float[Tensor, "B R T"]:
    """Return ``−log Σ_i m_i α_i``, which is 0 wherever all attention lies inside the mask.

    The arguments are those of ``cross_entropy``. A box also contains background, which attention
    need not fill.
    """
    mass = (masks * weights).sum(-1)
    return -(mass.clamp(min=LEAST_MASS).log() * masks.any(-1))


SUPERVISION_LOSSES = {"cross_entropy": cross_entropy, "mass": negative_log_mass}
