"""The base class of the training objectives, and the loss terms they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from captioner import distributed, limits
from captioner.errors import UsageError
from captioner.language.vocabulary import PAD
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded, Decoder
from captioner.models.distributions import Distribution, hard_attention
from captioner.models.registry import Component

Tokens = Int[Tensor, "B R T"]
Rewards = Float[Tensor, "B R"] | None
Masks = Float[Tensor, "B S T L"] | None  # R = S · N, with N samples of each of S captions
LEAST_MASS = 1e-4  # avoids log(0)


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
    """Base class of all objectives.

    Args:
        doubly_stochastic: λ of the mean over captions and regions of ``(1 − Σ_t α_t,i)²`` (Xu et al.
            2015, eq. 14); 0 omits the term.
        label_smoothing: probability mass spread over the whole vocabulary.
        supervision: λ of the supervision of attention, which needs object masks or ``data.entities``;
            0 omits the term.
        supervision_loss: ``cross_entropy`` is minimal if attention fills the mask (Liu et al. 2017);
            ``mass``, if attention is inside the mask, which suits boxes.
    """

    dropout = True  # whether the model trains with dropout, and otherwise in eval mode
    trains_locations = False  # whether it trains hard attention with gradient: score_function

    def __init__(
        self,
        doubly_stochastic: float = 0.0,
        label_smoothing: float = 0.0,
        supervision: float = 0.0,
        supervision_loss: Literal["cross_entropy", "mass"] = "cross_entropy",
    ) -> None:
        super().__init__()
        self.doubly_stochastic, self.label_smoothing = doubly_stochastic, label_smoothing
        self.supervision, self.supervision_loss = supervision, supervision_loss
        self.needs_masks = supervision > 0  # masks or boxes of what the captions name

    def check(self, decoder: Decoder) -> None:
        """Raise ``UsageError`` if this objective cannot train the attention of the decoder."""
        name = type(self).__name__
        sampled = any(hard.gradient == "score_function" for hard in hard_attention(decoder))
        if sampled and not self.trains_locations:
            raise UsageError(
                f"{name} does not train the scores of hard attention: choose the objective Reinforce or "
                "VIMCO, or for Hard the gradient straight_through or gumbel_softmax"
            )
        if self.trains_locations and not sampled:
            raise UsageError(
                f"{name} trains hard attention, and {decoder.mechanism} samples no locations: choose "
                "for Hard the gradient score_function, or the objective Likelihood"
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
        """Return the captions to learn from; by default ``tokens``, the reference captions."""
        return Rollout(tokens)

    def forward(
        self, decoded: Decoded, words: Tokens, rewards: Rewards = None, masks: Masks = None
    ) -> Loss:
        """Return the training loss of the predictions of ``words``, of which ``<pad>`` does not count.

        Every term is a sum over this process's words or captions, divided by ``normaliser``, so that the
        mean over processes is the loss of the whole batch.
        """
        raise NotImplementedError

    def normaliser(self, valid: Bool[Tensor, "*n"]) -> Shaped[Tensor, ""]:
        """Return the number of valid entries, at least 1: the mean over all processes."""
        return distributed.share(valid.sum())

    def mean(self, values: Float[Tensor, "*n"], valid: Bool[Tensor, "*n"]) -> Float[Tensor, ""]:
        """Return the mean of the valid values over all processes, without gradient."""
        return distributed.mean(values.detach().where(valid, 0.0).sum() / self.normaliser(valid))

    def token_log_probs(
        self, decoded: Decoded, words: Tokens
    ) -> tuple[Float[Tensor, "B R T"], Float[Tensor, "B R T"]]:
        """Return the log-probabilities of the words in nats, in at least float32; 0 for ``<pad>``.

        The first tensor is log p(y). The second has label smoothing (Szegedy et al. 2016):
        (1 − ε) log p(y) + ε · mean of log p over the vocabulary, where ε is ``label_smoothing``.
        """
        logits, targets = decoded.packed_logits, decoded.pack(words)  # of the steps that count
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_probs = logits.log_softmax(-1, dtype=dtype)
        exact = smoothed = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        if self.label_smoothing:
            smoothed = exact.lerp(log_probs.mean(-1), self.label_smoothing)
        valid = targets != PAD
        return decoded.unpack(exact.where(valid, 0.0)), decoded.unpack(smoothed.where(valid, 0.0))

    def attention_terms(
        self, decoded: Decoded, valid: Bool[Tensor, "B R T"], masks: Masks
    ) -> dict[str, Tensor]:
        """Return the terms ``doubly_stochastic`` and ``supervision``, unless their λ is 0.

        They are computed from the attention weights or, with sampled locations, from the probabilities.
        Only ``valid`` steps, whose target is not ``<pad>``, count.
        """
        probs = decoded.weights if decoded.choice is None else decoded.choice.probs
        terms = {}
        if self.doubly_stochastic:
            assert probs is not None
            captions = valid.any(-1)
            attended = (probs * valid.unsqueeze(-1)).sum(-2)  # (B, R, L)
            penalty = (((1 - attended) ** 2).mean(-1) * captions).sum() / self.normaliser(captions)
            terms["doubly_stochastic"] = self.doubly_stochastic * penalty
        if self.supervision:
            assert probs is not None
            # A process that could read none of its images has no masks, but must call ``normaliser``.
            masks = torch.zeros_like(probs) if masks is None else masks
            copies = probs.shape[1] // masks.shape[1]  # rows per caption; the loss is their mean
            loss = cross_entropy if self.supervision_loss == "cross_entropy" else negative_log_mass
            losses = loss(probs, masks.repeat_interleave(copies, 1)).sum() / copies
            terms["supervision"] = self.supervision * losses / self.normaliser(masks.any(-1))
        return terms


def cross_entropy(
    weights: Float[Tensor, "B R T L"], masks: Float[Tensor, "B R T L"]
) -> Float[Tensor, "B R T"]:
    """Return ``−Σ_i m̂_i log α_i`` with ``m̂ = m / Σ_i m_i`` (Liu et al. 2017), minimal at α = m̂.

    m is the fraction of every region that the mask covers, all 0 for a word without a mask.
    """
    total = masks.sum(-1, keepdim=True)
    target = masks / total.where(total > 0, 1.0)
    return -(target * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum(-1)


def negative_log_mass(
    weights: Float[Tensor, "B R T L"], masks: Float[Tensor, "B R T L"]
) -> Float[Tensor, "B R T"]:
    """Return ``−log Σ_i m_i α_i``, which is 0 wherever all attention lies inside the mask."""
    mass = (masks * weights).sum(-1)
    return -(mass.clamp(min=LEAST_MASS).log() * masks.any(-1))
