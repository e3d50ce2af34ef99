"""Alignment scores e = a(k, q): how well each key matches the query."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.registry import Component, check_choice, require

ScaleName = Literal["none", "sqrt", "learned"]
Vectors = Float[Tensor, "B L _"]
Queries = Float[Tensor, "B T n"]
PreparedKeys = Float[Tensor, "B L A"]
Scores = Float[Tensor, "B T L"]


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half precision to float32, in which sums over many positions are exact enough."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class Score(Component, kind="score"):
    """Base of all scores; ``query_dim`` and ``key_dim`` are the widths n and D."""

    key: nn.Module

    def prepare(self, keys: Vectors) -> PreparedKeys:
        """Compute what depends on the keys alone, once per image: by default their projection."""
        return self.key(keys)

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        """Score every prepared key for each of T queries per image; called for every word."""
        raise NotImplementedError

    def of_pairs(self, queries: Queries, keys: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        """Score every query with a key of its own."""
        prepared = self.prepare(keys.flatten(0, 1).unsqueeze(1))
        return self(queries.flatten(0, 1).unsqueeze(1), prepared).view(queries.shape[:2])


def same_width(query_dim: int, key_dim: int) -> int:
    """Return the common width of queries and keys; ModelError if there is none."""
    require(
        query_dim == key_dim,
        f"a score without projections needs queries and keys of equal width, got {query_dim} and "
        f"{key_dim}: make the decoder's hidden and the neck's dim equal, or choose General",
    )
    return key_dim


class Additive(Score):
    """``e = vᵀ tanh(W q + U k + b)`` (Bahdanau, Cho, Bengio 2015, A.1.2; Xu et al. 2015, eq. 4).

    Args:
        dim: A, the width of the projections W q and U k.
        project: False drops W, U and b, and ignores ``dim``: ``vᵀ tanh(q + k)`` with n = D, the
            ``AdditiveAttention`` of Keras with its learned scale.
    """

    def __init__(self, query_dim: int, key_dim: int, dim: int = 512, project: bool = True) -> None:
        super().__init__()
        if not project:
            dim = same_width(query_dim, key_dim)
        self.query = nn.Linear(query_dim, dim, bias=False) if project else nn.Identity()
        self.key = nn.Linear(key_dim, dim) if project else nn.Identity()
        self.energy = nn.Linear(dim, 1, bias=False)

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        """Compute ``vᵀ tanh(W q + U k + b)`` for every pair; ``keys`` holds ``U k + b``."""
        return self.energy(torch.tanh(self.query(query).unsqueeze(2) + keys.unsqueeze(1)))[..., 0]


class Concat(Score):
    """``e = vᵀ tanh(W_a [q; k])`` (Luong, Pham, Manning 2015, §3.1); no bias.

    Args:
        dim: A, the width of W_a [q; k].
    """

    def __init__(self, query_dim: int, key_dim: int, dim: int = 512) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.joint = nn.Linear(query_dim + key_dim, dim, bias=False)
        self.energy = nn.Linear(dim, 1, bias=False)

    def prepare(self, keys: Vectors) -> PreparedKeys:
        """Multiply by the key's columns of W_a: ``W_a [q; k]`` is the sum of two products."""
        return F.linear(keys, self.joint.weight[:, self.query_dim :])

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        query = F.linear(query, self.joint.weight[:, : self.query_dim])
        return self.energy(torch.tanh(query.unsqueeze(2) + keys.unsqueeze(1)))[..., 0]


class Product(Score, abstract=True):
    """Base of the scores that are one matrix product: ``e = query(q)ᵀ key(k)``, times a scale."""

    def __init__(self, query: nn.Module, key: nn.Module, scale: ScaleName, width: int) -> None:
        super().__init__()
        check_choice("scale", scale, ScaleName)
        self.query, self.key = query, key
        self.factor: float | nn.Parameter = 1 / math.sqrt(width) if scale == "sqrt" else 1.0
        if scale == "learned":
            self.factor = nn.Parameter(torch.ones(()))

    def prepare(self, keys: Vectors) -> PreparedKeys:
        return self.factor * self.key(keys)

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        return self.query(query) @ keys.mT


class Dot(Product):
    """``e = qᵀ k`` with n = D, times a scale (Luong et al. 2015, §3.1; the ``Attention`` of Keras).

    Args:
        scale: ``none``; ``sqrt`` divides by √D (Vaswani et al. 2017); ``learned`` multiplies by a
            learned number that starts at 1 (``use_scale`` in Keras).
    """

    def __init__(self, query_dim: int, key_dim: int, scale: ScaleName = "none") -> None:
        super().__init__(nn.Identity(), nn.Identity(), scale, same_width(query_dim, key_dim))


class General(Product):
    """``e = qᵀ W_a k``, times a scale (Luong et al. 2015, §3.1; multiplicative or bilinear attention).

    Args:
        scale: as for ``Dot``; ``sqrt`` divides by √n.
    """

    def __init__(self, query_dim: int, key_dim: int, scale: ScaleName = "none") -> None:
        key = nn.Linear(key_dim, query_dim, bias=False)
        super().__init__(nn.Identity(), key, scale, query_dim)


class ScaledDot(Product):
    """``e = (W_q q)ᵀ (W_k k) / √d`` (Vaswani et al. 2017, eq. 1).

    Args:
        dim: d, the width of the projections W_q q and W_k k.
        scale: as for ``Dot``.
    """

    def __init__(
        self, query_dim: int, key_dim: int, dim: int = 512, scale: ScaleName = "sqrt"
    ) -> None:
        query, key = (nn.Linear(width, dim, bias=False) for width in (query_dim, key_dim))
        super().__init__(query, key, scale, dim)


class Location(Score):
    """``e = W_a q``: one row of W_a per position, the keys are ignored (Luong et al. 2015, eq. 8).

    Args:
        positions: L, the number of positions: 49 for a grid of 7 × 7.
    """

    def __init__(self, query_dim: int, key_dim: int, positions: int = 49) -> None:
        super().__init__()
        self.positions = nn.Linear(query_dim, positions, bias=False)

    def prepare(self, keys: Vectors) -> PreparedKeys:
        """Return the keys unchanged; ModelError if their number is not ``positions``."""
        expected, given = self.positions.out_features, keys.shape[1]
        require(
            expected == given,
            f"the Location score has {expected} positions and the grid {given} cells: make them equal",
        )
        return keys

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        return self.positions(query)


class Distance(Score):
    """``e = 1 / (1 + ‖W q − U k‖)`` (the match score of ABCNN: Yin et al. 2016, §3).

    Scores lie in (0, 1], so that a softmax over many positions is nearly uniform.

    Args:
        dim: A, the width of the projections W q and U k.
    """

    def __init__(self, query_dim: int, key_dim: int, dim: int = 512) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, dim, bias=False)
        self.key = nn.Linear(key_dim, dim, bias=False)

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        """Subtract in at least float32: ‖q‖² + ‖k‖² − 2 qᵀk is inexact for vectors that are close."""
        query, keys = at_least_float32(self.query(query)), at_least_float32(keys)
        distance = torch.cdist(query, keys, compute_mode="donot_use_mm_for_euclid_dist")
        return 1 / (1 + distance)


class Cosine(Score):
    """``e = τ · cos(W q, U k)`` with a learned τ (Henry et al. 2020: query-key normalization).

    The cosine lies in [−1, 1]: without τ, a softmax over many positions would be nearly uniform.

    Args:
        dim: A, the width of the projections W q and U k.
        temperature: τ before training. The paper starts at log₂(L² − L): 11.2 for L = 49.
    """

    def __init__(
        self, query_dim: int, key_dim: int, dim: int = 512, temperature: float = 11.2
    ) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, dim, bias=False)
        self.key = nn.Linear(key_dim, dim, bias=False)
        self.temperature = nn.Parameter(torch.tensor(float(temperature)))

    def prepare(self, keys: Vectors) -> PreparedKeys:
        """Compute ``U k / ‖U k‖``; a zero vector stays zero."""
        return F.normalize(at_least_float32(self.key(keys)), dim=-1)

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        query = F.normalize(at_least_float32(self.query(query)), dim=-1)
        return self.temperature * (query @ keys.mT)
