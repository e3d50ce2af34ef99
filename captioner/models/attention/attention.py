"""Attention: A(q, K, V) = Σ_i p(a(k_i, q)) · v_i, a score composed with a distribution."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import Asked, Distribution, Soft
from captioner.models.attention.scores import Additive, Score
from captioner.models.registry import Component


@dataclass(frozen=True)
class Keys:
    """What attention computes once per picture, to be asked many times.

    Attributes:
        prepared: the keys as the score wants them.
        values: what the context vector is a weighted sum of.
        mask: True where a position may be attended; None when all may.
        grid: (rows, columns) in which the positions lie.
        coins: what the distribution drew once per picture; None for nothing.
    """

    prepared: Float[Tensor, "B L A"]
    values: Float[Tensor, "B L D"]
    mask: Bool[Tensor, "B L"] | None
    grid: tuple[int, int]
    coins: Bool[Tensor, " B"] | None = None


@dataclass(frozen=True)
class Attended:
    """The answer to a query; the axis T is there when the query had it.

    Attributes:
        context: the context vector ẑ, the weighted sum of the values.
        weights: α, how much each position counts; with several heads, the mean over them; None
            where nobody asked and they were not computed.
        log_prob: log-probability of the positions drawn, of all heads together; None where nothing
            is drawn.
        entropy: entropy in nats of what they were drawn from; None for a deterministic distribution.
        heads: the weights of every head; None where there is one.
        centre: the (row, column) that local attention looks around, in cells: cell r covers
            [r, r + 1); None for any other.
        expected: the probabilities that the positions were drawn from, with several heads the mean
            over them; None where nothing is drawn.
        choices: the value at each of k positions to be tried, and
        chances: the probability of each; None where the context vector is all there is.
    """

    context: Float[Tensor, "B *T D"]
    weights: Float[Tensor, "B *T L"] | None
    log_prob: Float[Tensor, " B *T"] | None = None
    entropy: Float[Tensor, " B *T"] | None = None
    heads: Float[Tensor, "B *T h L"] | None = None
    centre: Float[Tensor, "B *T 2"] | None = None
    expected: Float[Tensor, "B *T L"] | None = None
    choices: Float[Tensor, "B *T k D"] | None = None
    chances: Float[Tensor, "B *T k"] | None = None

    def of_one_query(self) -> "Attended":
        """Without the axis T, which has length 1."""
        return self.each(lambda values: values.squeeze(1))

    def with_rows(self, rows: int) -> "Attended":
        """With so many rows of each picture: ``with_rows`` of every part."""
        return self.each(lambda values: with_rows(values, rows))

    def at(self, there: Bool[Tensor, "B R T"]) -> "Attended":
        """The answers to some queries only, in one row."""
        return self.each(lambda values: values[there])

    def without_values(self) -> "Attended":
        """Where it looked, without what it found there."""
        return replace(self, context=self.context[..., :0], choices=None, chances=None)

    @staticmethod
    def stack(steps: Sequence["Attended"]) -> "Attended":
        """Answers without an axis of time, joined along a new one behind all but their last axes."""
        return Attended(*(_join(torch.stack, steps, *part) for part in _PARTS))

    @staticmethod
    def cat(steps: Sequence["Attended"]) -> "Attended":
        """Answers joined along their axis of time, the last but their own."""
        return Attended(*(_join(torch.cat, steps, *part) for part in _PARTS))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Attended":
        """With every part that is there changed."""
        there = {name: change(values) for name, values in vars(self).items() if values is not None}
        return replace(self, **there)


# The parts of an answer in order, and where the axis of time is in each.
_PARTS = (
    *(("context", -2), ("weights", -2), ("log_prob", -1)),
    *(("entropy", -1), ("heads", -3), ("centre", -2), ("expected", -2)),
    *(("choices", -3), ("chances", -2)),
)


def _join(
    how: Callable[[list[Tensor], int], Tensor], steps: Sequence[Attended], part: str, axis: int
) -> Any:
    values = [getattr(step, part) for step in steps]
    return None if values[0] is None else how(values, axis)


def with_rows(values: Float[Tensor, "B R *more"], rows: int) -> Float[Tensor, "B K *more"]:
    """The first ``rows`` rows of each picture; rows of zeros where there are not so many."""
    missing = rows - values.shape[1]
    if missing <= 0:
        return values[:, :rows]
    return F.pad(values, (0, 0) * (values.ndim - 2) + (0, missing))


@runtime_checkable
class ScoreFactory(Protocol):
    """Makes a score once the sizes are known."""

    def __call__(self, *, query_dim: int, key_dim: int) -> Score:
        """A score for queries of width ``query_dim`` and keys of width ``key_dim``."""
        ...


@runtime_checkable
class DistributionFactory(Protocol):
    """Makes a distribution once the size of a query is known."""

    def __call__(self, *, query_dim: int) -> Distribution:
        """A distribution that may look at queries of width ``query_dim``."""
        ...


class AttentionBase(Component, kind="attention"):
    """Base of all attentions: what depends on the picture alone, and the answer to a query.

    It keeps no state: ``keys = attention.prepare(annotations)`` once per picture, then
    ``attention(query, keys)`` for every word, for several captions of the picture at once or for
    all words of one. ``out_dim`` is the width of a context vector; ``distribution`` what its weights
    come from.
    """

    out_dim: int
    distribution: Distribution

    @property
    def mechanism(self) -> str:
        """What it is called, for people: ``Additive × Soft``."""
        return f"{type(self).__name__} × {self.distribution.name}"

    def prepare(
        self, annotations: Annotations, values: Float[Tensor, "B L D"] | None = None
    ) -> Keys:
        """What no query changes, computed once per picture.

        Args:
            annotations: what is compared with the query.
            values: what the context vector is made of, if not the same vectors.
        """
        raise NotImplementedError

    def forward(
        self,
        query: Float[Tensor, "B *T n"],
        keys: Keys,
        step: int | Int[Tensor, "*pictures T"] | None = None,
        need_weights: bool = True,
    ) -> Attended:
        """The context vector for each query.

        Args:
            query: one query a picture, (B, n), or T of them, (B, T, n); both give the same numbers.
            keys: from ``prepare``.
            step: which word the queries ask for, counted from 0, for distributions that need it: one
                for all queries, (T,) for those of every picture, or (B, T).
            need_weights: False lets the weights be left out where the context is had faster without.
        """
        if query.ndim == 3:
            return self.answer(query, keys, step, need_weights)
        return self.answer(query.unsqueeze(1), keys, step, need_weights).of_one_query()

    def answer(
        self,
        queries: Float[Tensor, "B T n"],
        keys: Keys,
        step: int | Int[Tensor, "*pictures T"] | None,
        need_weights: bool,
    ) -> Attended:
        """The context vectors of T queries; what a subclass writes."""
        raise NotImplementedError


class Attention(AttentionBase):
    """A score composed with a distribution (Hu 2018; Chaudhari et al. 2019).

    Args:
        query_dim: n, the width of a query.
        memory_dim: D, the width of an annotation vector.
        score: makes the score, e.g. ``Additive``.
        distribution: makes the distribution, e.g. ``Soft``.
    """

    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        score: ScoreFactory = Additive,
        distribution: DistributionFactory = Soft,
    ) -> None:
        super().__init__()
        self.out_dim = memory_dim
        self.score = score(query_dim=query_dim, key_dim=memory_dim)
        self.distribution = distribution(query_dim=query_dim)

    @property
    def mechanism(self) -> str:
        """The score and the distribution."""
        return f"{type(self.score).__name__} × {self.distribution.name}"

    def prepare(
        self, annotations: Annotations, values: Float[Tensor, "B L D"] | None = None
    ) -> Keys:
        """The score's part of it, and the values."""
        vectors = annotations.vectors
        return Keys(
            self.score.prepare(vectors),
            vectors if values is None else values,
            annotations.mask,
            annotations.grid,
            self.distribution.coins(vectors),
        )

    def answer(
        self,
        queries: Float[Tensor, "B T n"],
        keys: Keys,
        step: int | Int[Tensor, "*pictures T"] | None,
        need_weights: bool,  # noqa: ARG002 - the context is made of them
    ) -> Attended:
        """Scores, weights, and the weighted sum of the values."""
        mask = None if keys.mask is None else keys.mask.unsqueeze(1)
        scores = self.score(queries, keys.prepared)
        drawn = self.distribution(scores, mask, Asked(queries, keys.grid, step, keys.coins))
        context = drawn.weights.to(keys.values.dtype) @ keys.values  # (B, T, D)
        choices = None
        if drawn.places is not None:
            pictures = torch.arange(len(context), device=context.device)
            choices = keys.values[pictures[:, None, None], drawn.places]  # (B, T, k, D)
        return Attended(
            *(context, drawn.weights, drawn.log_prob, drawn.entropy),
            centre=drawn.centre,
            expected=drawn.expected,
            choices=choices,
            chances=drawn.chances,
        )
