"""Attention: A(q, K, V) = Σ_i p(a(k_i, q)) · v_i, a score composed with a distribution."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.distributions import Choice, Distribution, QueryContext, Sampling, Soft
from captioner.models.registry import Component
from captioner.models.scores import Additive, PreparedKeys, Queries, Score, Vectors
from captioner.models.sentinel import mix, sentinel_weight
from captioner.models.tensors import map_tensors

Step = int | Int[Tensor, "*images T"] | None
ScoreFactory = Callable[[int, int], Score]  # given query_dim and key_dim
DistributionFactory = Callable[[int], Distribution]  # given query_dim
Sentinels = Float[Tensor, "B T D"] | None


@dataclass(frozen=True)
class Keys:
    """The part of attention that is computed once per image; see also ``QueryContext``."""

    prepared: PreparedKeys  # the result of ``Score.prepare``
    values: Float[Tensor, "B L D"]
    mask: Bool[Tensor, "B L"] | None  # True where a position may be attended
    grid: tuple[int, int]
    sampling: Sampling | None = None


@dataclass(frozen=True)
class AttentionOutput:
    """The context vector of each query and its ``Weights``; the axis T exists if the query had it.

    With several heads, ``weights`` are their mean.
    """

    context: Float[Tensor, "B *T D"]  # ẑ, the weighted sum of the values
    weights: Float[Tensor, "B *T L"]
    centre: Float[Tensor, "B *T 2"] | None = None
    choice: Choice | None = None
    heads: Float[Tensor, "B *T h L"] | None = None  # weights of every head; None with one head


class AttentionBase(Component, kind="attention"):
    """Base of all attentions.

    Call ``keys = attention.prepare(annotations)`` once per image, then ``attention(query, keys)`` for
    every word, or once for all words of all captions of an image. Subclasses implement ``project``
    and ``attend``.
    """

    distribution: Distribution

    @property
    def mechanism(self) -> str:
        """The name shown to users, such as ``MultiHead × Soft``."""
        return f"{type(self).__name__} × {self.distribution.name}"

    def prepare(
        self,
        annotations: Annotations,
        values: Vectors | None = None,
        sampling: Sampling | None = None,
    ) -> Keys:
        """Compute everything that does not depend on the query.

        Queries are compared with the annotations' keys if they have any, else with their vectors.
        ``values`` are averaged instead of the vectors if given. ``sampling`` is for hard attention.
        """
        compared = annotations if annotations.keys is None else annotations.keys
        averaged = annotations.vectors if values is None else values
        projected = self.project(compared.vectors, averaged)
        sampling = self.distribution.start(sampling, averaged)
        return Keys(*projected, annotations.mask, annotations.grid, sampling)

    def project(self, keys: Vectors, values: Vectors) -> tuple[PreparedKeys, Vectors]:
        """Compute ``Keys.prepared`` and ``Keys.values``."""
        raise NotImplementedError

    def forward(
        self,
        query: Float[Tensor, "B *T n"],
        keys: Keys,
        step: Step = None,
        sentinel: Float[Tensor, "B *T D"] | None = None,
    ) -> AttentionOutput:
        """Compute the context vector of one query per image, (B, n), or of T of them, (B, T, n).

        ``step`` is that of ``QueryContext``. A ``sentinel`` per query competes with the regions, see
        ``Sentinel``; the weights then sum to 1 - β.
        """
        if query.ndim == 3:
            return self.attend(query, keys, step, sentinel)
        sentinel = None if sentinel is None else sentinel.unsqueeze(1)
        output = self.attend(query.unsqueeze(1), keys, step, sentinel)
        return map_tensors(lambda part: part.squeeze(1), output)

    def attend(
        self, queries: Queries, keys: Keys, step: Step, sentinels: Sentinels = None
    ) -> AttentionOutput:
        """Compute the context vectors of T queries per image."""
        raise NotImplementedError


AttentionFactory = Callable[[int, int], AttentionBase]  # given query_dim and key_dim


class WrappedAttention(AttentionBase, abstract=True):
    """Base of attentions that change the result of another one."""

    attention: AttentionBase

    @property
    def distribution(self) -> Distribution:  # type: ignore[override]
        return self.attention.distribution

    def project(self, keys: Vectors, values: Vectors) -> tuple[PreparedKeys, Vectors]:
        return self.attention.project(keys, values)


class Attention(AttentionBase):
    """``A(q, K, V) = Σ_i α_i v_i`` with ``α = p(e)``, ``e_i = a(k_i, q)`` (Hu 2018).

    Args:
        score: makes the score a, e.g. ``Additive``.
        distribution: makes the distribution p, e.g. ``Soft``.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        score: ScoreFactory = Additive,
        distribution: DistributionFactory = Soft,
    ) -> None:
        super().__init__()
        self.score = score(query_dim, key_dim)
        self.distribution = distribution(query_dim)

    @property
    def mechanism(self) -> str:
        return f"{type(self.score).__name__} × {self.distribution.name}"

    def project(self, keys: Vectors, values: Vectors) -> tuple[PreparedKeys, Vectors]:
        return self.score.prepare(keys), values

    def attend(
        self, queries: Queries, keys: Keys, step: Step, sentinels: Sentinels = None
    ) -> AttentionOutput:
        """Compute scores, weights, and the weighted sum of the values."""
        mask = None if keys.mask is None else keys.mask.unsqueeze(1)
        query_context = QueryContext(queries, keys.grid, step, keys.sampling)

        scores = self.score(queries, keys.prepared)  # e = a(k, q)
        alpha = self.distribution(scores, mask, query_context)  # α = p(e)
        context = alpha.weights.to(keys.values.dtype) @ keys.values  # ẑ = Σ_i α_i v_i

        output = AttentionOutput(context, alpha.weights, alpha.centre, alpha.choice)
        if sentinels is None:
            return output
        beta = sentinel_weight(self.score.of_pairs(queries, sentinels), scores, mask)
        context = mix(beta, sentinels, context)  # ĉ = β s + (1 - β) ẑ
        return replace(output, context=context, weights=(1 - beta) * alpha.weights)
