"""What training minimises. Objectives see targets; models do not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from captioner import processes
from captioner.errors import UsageError
from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import Sparsemax, hard_attention
from captioner.models.attention.local import Local
from captioner.models.decoder import Decoded, Decoder
from captioner.models.registry import Component
from captioner.text import PAD
from captioner.training.said import said_words


@dataclass(frozen=True)
class Loss:
    """A loss and what it is made of.

    Attributes:
        total: what is minimised.
        terms: the weighted terms that add up to it.
        measures: other numbers worth logging, e.g. the unsmoothed negative log-likelihood.
    """

    total: Float[Tensor, ""]
    terms: dict[str, Float[Tensor, ""]]
    measures: dict[str, Float[Tensor, ""]]


@dataclass(frozen=True)
class Lesson:
    """What is to be said in a training step.

    Attributes:
        tokens: ``<start> words <end> <pad> …``, for every row of every picture.
        rewards: what each caption is worth, where that is not the same for all.
        measures: numbers worth logging.
    """

    tokens: Int[Tensor, "B R T"]
    rewards: Float[Tensor, "B R"] | None = None
    measures: Mapping[str, Float[Tensor, ""]] = field(default_factory=dict)


class Objective(Component, kind="objective"):
    """Base of all objectives.

    ``needs_weights`` says whether it reads where the decoder looked; ``dropout`` whether the model is
    trained with dropout; ``supervision`` is the weight of masks
    that tell the decoder where to look, 0 where there are none.
    """

    needs_weights = True
    dropout = True
    doubly_stochastic = 0.0
    supervision = 0.0

    @property
    def needs_masks(self) -> bool:
        """Whether training pictures must come with the masks of what their captions name."""
        return self.supervision > 0

    def check(self, decoder: Decoder) -> None:
        """Refuses a decoder that this objective cannot train.

        Raises:
            UsageError: with what to choose instead.
        """

    def begin(self, captions: Sequence[Sequence[Sequence[int]]]) -> None:
        """Before training: all captions of every training picture, as ids."""

    def lesson(
        self,
        decoder: Decoder,  # noqa: ARG002
        annotations: Annotations,  # noqa: ARG002
        tokens: Int[Tensor, "B R T"],
    ) -> "Lesson":
        """What the decoder is to say in a training step: the captions of the pictures, by default.

        Args:
            decoder: as it is now, for objectives that learn from what it says.
            annotations: of the pictures, refined.
            tokens: their captions, ``<start> words <end> <pad> …``.
        """
        return Lesson(tokens)

    def heat(self, progress: float) -> float:  # noqa: ARG002
        """The factor of the temperature of hard attention after this part of the training, 0 to 1."""
        return 1.0

    def number(self, there: Bool[Tensor, "*n"]) -> Shaped[Tensor, ""]:
        """How many are there, 1 at least: what a sum over them is divided by.

        While training, an equal share of those of all processes, which must all ask.
        """
        return processes.share(there.sum()) if self.training else there.sum().clamp(min=1)

    def looking(
        self,
        decoded: Decoded,
        there: Bool[Tensor, "B RN T"],
        masks: Float[Tensor, "B S T L"] | None,
    ) -> dict[str, Tensor]:
        """The terms about where it looked, as far as they are wanted."""
        terms = {}
        if self.doubly_stochastic:
            uncovered = doubly_stochastic(looked_at(decoded), there)
            captions = self.number(there.any(-1))
            terms["doubly_stochastic"] = self.doubly_stochastic * uncovered / captions
        if masks is not None:
            missed = looked_away(looked_at(decoded), masks)
            terms["supervision"] = self.supervision * missed / self.number(masks.any(-1))
        return terms

    def average(self, values: Float[Tensor, "*n"], there: Bool[Tensor, "*n"]) -> Float[Tensor, ""]:
        """The mean of those that are there, of all processes while training; without gradient."""
        own = values.detach().where(there, 0.0).sum() / self.number(there)
        return processes.mean(own) if self.training else own

    def forward(
        self,
        decoded: Decoded,
        targets: Int[Tensor, "B R T"],
        rewards: Float[Tensor, "B R"] | None = None,
        masks: Float[Tensor, "B S T L"] | None = None,
    ) -> Loss:
        """The loss of teacher-forced captions; a target of ``<pad>`` counts nowhere.

        Every term is a sum over what there is here divided by its ``number``: of several processes, the
        mean is the loss of the whole batch.

        Args:
            decoded: what the decoder said, given all words before each.
            targets: what it was to say.
            rewards: of the lesson; None outside training.
            masks: where it was to look for each word of the batch's captions, as ``Batch.masks``; None
                outside training and where ``supervision`` is 0.
        """
        raise NotImplementedError


class Likelihood(Objective):
    """Maximum likelihood with doubly stochastic attention (Xu et al. 2015, eq. 14).

    ``-log p(y | a)``, the mean over all words, plus ``λ`` times the mean over captions and cells of
    ``(1 - Σ_t α_t,i)²``. The paper does not say over what its terms are summed and implementations
    differ by two orders of magnitude; these are means, so that λ means the same for every caption
    length, batch size and grid.

    Args:
        doubly_stochastic: λ; 0 leaves the term out.
        label_smoothing: probability mass spread over all words instead of the target.
        supervision: λ of ``looked_away``, for data with object masks: a training aid, whose models are a
            track of their own; 0 leaves the term out.
    """

    def __init__(
        self,
        doubly_stochastic: float = 0.5,
        label_smoothing: float = 0.1,
        supervision: float = 0.0,
    ) -> None:
        super().__init__()
        self.doubly_stochastic = doubly_stochastic
        self.supervision = supervision
        self.needs_weights = bool(doubly_stochastic or supervision)
        self.label_smoothing = label_smoothing

    def check(self, decoder: Decoder) -> None:
        """Supervision needs weights to supervise, and where to look must be learned."""
        check_supervision(self.supervision, decoder)
        check_gradient(decoder, "Likelihood", "choose the objective LowerBound, or give")

    def forward(
        self,
        decoded: Decoded,
        targets: Int[Tensor, "B R T"],
        rewards: Float[Tensor, "B R"] | None = None,  # noqa: ARG002
        masks: Float[Tensor, "B S T L"] | None = None,
    ) -> Loss:
        """Loss terms ``likelihood``, ``doubly_stochastic`` and ``supervision``; measure ``nll`` in nats
        per word."""
        there = targets != PAD  # (B, R, T)
        words = self.number(there)
        said = said_words(decoded, targets, self.label_smoothing)
        terms = {"likelihood": -said.smoothed.sum() / words}
        terms |= self.looking(decoded, there, masks)
        total = torch.stack(list(terms.values())).sum()
        return Loss(total, terms, {"nll": -said.exact.detach().sum() / words})


def looked_at(decoded: Decoded) -> Float[Tensor, "B R T L"]:
    """The weights; where locations are drawn, the probabilities they are drawn from."""
    looked = decoded.weights if decoded.expected is None else decoded.expected
    assert looked is not None
    return looked


def doubly_stochastic(weights: Float[Tensor, "B R T L"], there: Tensor) -> Float[Tensor, ""]:
    """The sum over captions of the mean over cells of ``(1 - Σ_t α_t,i)²``: look at every region.

    Args:
        weights: α at every step.
        there: (B, R, T), True where a step has a target; captions without any do not count.
    """
    looked = (weights * there.unsqueeze(-1)).sum(-2)  # (B, R, L)
    return (((1 - looked) ** 2).mean(-1) * there.any(-1)).sum()


def looked_away(
    weights: Float[Tensor, "B RN T L"], masks: Float[Tensor, "B R T L"]
) -> Float[Tensor, ""]:
    """The sum over words that name an object of ``-Σ_i m_i log α_i``, m its mask (Liu et al. 2017).

    Of attention that draws its places, α are the probabilities; of several heads or layers, what is
    shown: the mean over the heads of the last layer.

    Args:
        weights: α at every step; N rows for each caption where captions are decoded N times, whose
            mean counts.
        masks: that sum to 1, or are all 0 where a word has none.
    """
    copies = weights.shape[1] // masks.shape[1]
    tiny = torch.finfo(weights.dtype).tiny
    missed = -(masks.repeat_interleave(copies, 1) * weights.clamp(min=tiny).log()).sum(-1)
    return missed.sum() / copies


def check_gradient(decoder: Decoder, objective: str, instead: str) -> None:
    """Refuses hard attention that no gradient of a word reaches: it would never learn where to look.

    Args:
        decoder: to be trained.
        objective: which cannot train it.
        instead: what to do; "Hard the option gradient: …" follows.

    Raises:
        UsageError: with what to choose instead.
    """
    if any(law.gradient == "score_function" for law in hard_attention(decoder)):
        raise UsageError(
            f"{objective} does not train the scores of hard attention: {instead} Hard the option "
            "gradient: straight_through, or marginal"
        )


def check_supervision(supervision: float, decoder: Decoder) -> None:
    """Refuses what masks cannot teach.

    Raises:
        UsageError: a negative weight, or attention that gives regions no weight at all.
    """
    if supervision < 0:
        raise UsageError(f"supervision must be 0 or more, got {supervision}")
    for law in decoder.modules():
        if supervision and isinstance(law, Sparsemax | Local):
            raise UsageError(
                f"supervision needs the logarithm of every weight, and {law.name} gives regions none at "
                "all, which no gradient would change: choose the distribution Soft or Hard, or leave "
                "supervision at 0"
            )
