"""Attention: A(q, K, V) = Σ_i p(a(k_i, q)) · v_i, a score composed with a distribution."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import Distribution, Soft
from captioner.models.attention.scores import Additive, Score
from captioner.models.registry import Component


@dataclass(frozen=True)
class Keys:
    """What attention computes once per picture, to be asked many times.

    Attributes:
        prepared: the keys as the score wants them.
        values: what the context vector is a weighted sum of.
        mask: True where a position may be attended; None when all may.
    """

    prepared: Float[Tensor, "B L A"]
    values: Float[Tensor, "B L D"]
    mask: Bool[Tensor, "B L"] | None


@dataclass(frozen=True)
class Attended:
    """The answer to a query; the axis T is there when the query had it.

    Attributes:
        context: the context vector ẑ, the weighted sum of the values.
        weights: α, how much each position counts.
        log_prob: log-probability of the positions drawn; None for a deterministic distribution.
        entropy: entropy in nats of what they were drawn from; None likewise.
    """

    context: Float[Tensor, "B *T D"]
    weights: Float[Tensor, "B *T L"]
    log_prob: Float[Tensor, "B *T"] | None = None
    entropy: Float[Tensor, "B *T"] | None = None


@runtime_checkable
class ScoreFactory(Protocol):
    """Makes a score once the sizes are known."""

    def __call__(self, *, query_dim: int, key_dim: int) -> Score:
        """A score for queries of width ``query_dim`` and keys of width ``key_dim``."""
        ...


@runtime_checkable
class DistributionFactory(Protocol):
    """Makes a distribution."""

    def __call__(self) -> Distribution:
        """A distribution."""
        ...


class Attention(Component, kind="attention", abstract=False):
    """A score composed with a distribution (Hu 2018; Chaudhari et al. 2019).

    It keeps no state: ``keys = attention.prepare(annotations)`` once per picture, then
    ``attention(query, keys)`` for every word, for several captions of the picture at once or for
    all words of one.

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
        self.score = score(query_dim=query_dim, key_dim=memory_dim)
        self.distribution = distribution()

    def prepare(self, annotations: Annotations) -> Keys:
        """What no query changes, computed once per picture."""
        return Keys(self.score.prepare(annotations.vectors), annotations.vectors, annotations.mask)

    def forward(
        self,
        query: Float[Tensor, "B *T n"],
        keys: Keys,
        step: int | Int[Tensor, " T"] | None = None,
    ) -> Attended:
        """The context vector for each query.

        Args:
            query: one query a picture, (B, n), or T of them, (B, T, n); both give the same numbers.
            keys: from ``prepare``.
            step: which word the queries ask for, counted from 0, for distributions that need it.
        """
        queries = query.unsqueeze(1) if query.ndim == 2 else query  # (B, T, n)
        drawn = self.distribution(self.score(queries, keys.prepared), keys.mask, step)
        context = drawn.weights.to(keys.values.dtype) @ keys.values  # (B, T, D)
        if query.ndim == 3:
            return Attended(context, drawn.weights, drawn.log_prob, drawn.entropy)
        return Attended(
            context.squeeze(1),
            drawn.weights.squeeze(1),
            None if drawn.log_prob is None else drawn.log_prob.squeeze(1),
            None if drawn.entropy is None else drawn.entropy.squeeze(1),
        )
