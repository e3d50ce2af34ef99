"""Alignment scores e = a(k, q): how well each annotation answers the query."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.errors import ModelError
from captioner.models.attention.energies import energies, exponential
from captioner.models.linear import Linear, linear
from captioner.models.registry import Component

ScaleName = Literal["none", "sqrt", "learned"]


class Score(Component, kind="score"):
    """Base of all scores.

    What depends on the keys alone is computed in ``prepare``, once per picture; ``forward`` is
    called for every word.
    """

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """The part of the score that no query changes."""
        raise NotImplementedError

    def forward(
        self, query: Float[Tensor, "B T n"], prepared: Float[Tensor, "B L A"]
    ) -> Float[Tensor, "B T L"]:
        """The scores of every query for every key; any real number."""
        raise NotImplementedError


class Additive(Score):
    """``vᵀ tanh(W q + U k + b)`` (Bahdanau, Cho, Bengio 2015, A.1.2; Xu et al. 2015, eq. 4).

    Args:
        query_dim: n, the width of a query.
        key_dim: D, the width of a key.
        dim: A, the width in which the two are compared.
        project: False leaves W, U and b out, so that n must equal D and ``dim`` is not used:
            ``vᵀ tanh(q + k)``, the ``AdditiveAttention`` of Keras with its learned scale.
    """

    def __init__(self, query_dim: int, key_dim: int, dim: int = 512, project: bool = True) -> None:
        super().__init__()
        if not project:
            dim = _common(self, query_dim, key_dim)
        self.query = Linear(query_dim, dim, bias=False) if project else nn.Identity()
        self.key = Linear(key_dim, dim) if project else nn.Identity()
        self.energy = Linear(dim, 1, bias=False)

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """The exponential of ``U k + b``, which ``energies`` asks for."""
        return exponential(self.key(keys))

    def forward(
        self, query: Float[Tensor, "B T n"], prepared: Float[Tensor, "B L A"]
    ) -> Float[Tensor, "B T L"]:
        """The sum is inside the tanh: outside, softmax would cancel the query."""
        return energies(self.query(query), prepared, self.energy.weight[0])


class Concat(Score):
    """``vᵀ tanh(W_a [q; k])`` (Luong, Pham, Manning 2015, §3.1): ``Additive`` with one matrix, no bias.

    Args:
        query_dim: n, the width of a query.
        key_dim: D, the width of a key.
        dim: A, the width in which the two are compared.
    """

    def __init__(self, query_dim: int, key_dim: int, dim: int = 512) -> None:
        super().__init__()
        self.query_dim = query_dim
        self.joint = Linear(query_dim + key_dim, dim, bias=False)
        self.energy = Linear(dim, 1, bias=False)

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """With the key's columns of W_a: the product with [q; k] is the sum of two."""
        return exponential(linear(keys, self.joint.weight[:, self.query_dim :]))

    def forward(
        self, query: Float[Tensor, "B T n"], prepared: Float[Tensor, "B L A"]
    ) -> Float[Tensor, "B T L"]:
        """The query's columns of W_a, and the energy of the sum."""
        query = linear(query, self.joint.weight[:, : self.query_dim])
        return energies(query, prepared, self.energy.weight[0])


class Product(Score, abstract=True):
    """What the scores that are one matrix product share: ``query(q)ᵀ key(k)``, times a scale."""

    query: nn.Module
    key: nn.Module
    scale: "Scale"

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """The keys projected and scaled."""
        return self.scale(self.key(keys))

    def forward(
        self, query: Float[Tensor, "B T n"], prepared: Float[Tensor, "B L A"]
    ) -> Float[Tensor, "B T L"]:
        """One matrix product."""
        return self.query(query) @ prepared.mT


class Dot(Product):
    """``qᵀ k``, times a scale (Luong et al. 2015, §3.1; the ``Attention`` of Keras).

    Args:
        query_dim: n, the width of a query.
        key_dim: D, the width of a key; must equal n.
        scale: ``none``; ``sqrt`` divides by √D (Vaswani et al. 2017); ``learned`` multiplies by a
            learned number that starts at 1 (Keras' ``use_scale``).
    """

    def __init__(self, query_dim: int, key_dim: int, scale: ScaleName = "none") -> None:
        super().__init__()
        self.query, self.key = nn.Identity(), nn.Identity()
        self.scale = Scale(scale, _common(self, query_dim, key_dim))


class General(Product):
    """``qᵀ W_a k``, times a scale (Luong et al. 2015, §3.1; multiplicative or bilinear attention).

    Args:
        query_dim: n, the width of a query.
        key_dim: D, the width of a key.
        scale: as for ``Dot``; ``sqrt`` divides by √n.
    """

    def __init__(self, query_dim: int, key_dim: int, scale: ScaleName = "none") -> None:
        super().__init__()
        self.query, self.key = nn.Identity(), Linear(key_dim, query_dim, bias=False)
        self.scale = Scale(scale, query_dim)


class ScaledDot(Product):
    """``(W_q q)ᵀ (W_k k) / √d`` (Vaswani et al. 2017, eq. 1).

    Args:
        query_dim: n, the width of a query.
        key_dim: D, the width of a key.
        dim: d, the width in which the two are compared.
        project: False leaves W_q and W_k out, so that n must equal D and ``dim`` is not used.
        scale: as for ``Dot``.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        dim: int = 512,
        project: bool = True,
        scale: ScaleName = "sqrt",
    ) -> None:
        super().__init__()
        if not project:
            dim = _common(self, query_dim, key_dim)
        self.query = Linear(query_dim, dim, bias=False) if project else nn.Identity()
        self.key = Linear(key_dim, dim, bias=False) if project else nn.Identity()
        self.scale = Scale(scale, dim)


class Location(Score):
    """``W_a q``: from the query alone, one row of W_a per position (Luong et al. 2015, eq. 8).

    Args:
        query_dim: n, the width of a query.
        key_dim: not used; positions are scored whatever is there.
        positions: L, how many there are: 49 for a grid of 7 × 7.
    """

    def __init__(self, query_dim: int, key_dim: int, positions: int = 49) -> None:  # noqa: ARG002
        super().__init__()
        self.positions = Linear(query_dim, positions, bias=False)

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """The keys as they are, which ``forward`` does not read.

        Raises:
            ModelError: another number of positions than this score was made for.
        """
        if keys.shape[1] != self.positions.out_features:
            raise ModelError(
                f"the Location score was made for {self.positions.out_features} positions and got "
                f"{keys.shape[1]}: set its option positions to rows × columns of the encoder's grid"
            )
        return keys

    def forward(
        self,
        query: Float[Tensor, "B T n"],
        prepared: Float[Tensor, "B L A"],  # noqa: ARG002
    ) -> Float[Tensor, "B T L"]:
        """One score per position."""
        return self.positions(query)


class Distance(Score):
    """``1 / (1 + ‖W q − U k‖)`` (the match score of ABCNN: Yin et al. 2016, §3).

    Scores lie in (0, 1], so that a softmax over many positions is nearly flat; a learned scale lets
    it become sharp.

    Args:
        query_dim: n, the width of a query.
        key_dim: D, the width of a key.
        dim: A, the width in which the two are compared.
        scale: ``none`` is the paper's; ``learned`` multiplies by a learned number that starts at 1.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        dim: int = 512,
        scale: Literal["none", "learned"] = "none",
    ) -> None:
        super().__init__()
        self.query = Linear(query_dim, dim, bias=False)
        self.key = Linear(key_dim, dim, bias=False)
        self.scale = Scale(scale, dim)

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """``U k``."""
        return self.key(keys)

    def forward(
        self, query: Float[Tensor, "B T n"], prepared: Float[Tensor, "B L A"]
    ) -> Float[Tensor, "B T L"]:
        """By differences, in at least float32: ‖q‖² + ‖k‖² − 2 qᵀk cancels where they are near."""
        wide = torch.promote_types(prepared.dtype, torch.float32)
        distances = torch.cdist(
            self.query(query).to(wide),
            prepared.to(wide),
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        return self.scale(1 / (1 + distances))


class Scale(nn.Module):
    """A factor of scores: 1, 1/√d, or learned from 1."""

    def __init__(self, name: ScaleName, dim: int) -> None:
        super().__init__()
        if name not in ("none", "sqrt", "learned"):
            raise ModelError(f"scale must be none, sqrt or learned, got {name!r}")
        self.factor: float | nn.Parameter = 1 / math.sqrt(dim) if name == "sqrt" else 1.0
        if name == "learned":
            self.factor = nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor) -> Tensor:
        """The values times the factor."""
        return values * self.factor


def _common(score: Score, query_dim: int, key_dim: int) -> int:
    """The width of query and key where it must be one."""
    if query_dim != key_dim:
        raise ModelError(
            f"the {type(score).__name__} score compares queries and keys as they are and needs them "
            f"equally wide, got {query_dim} and {key_dim}: make the decoder's hidden and the refiner's "
            "dim equal, or take a score with projections (General, ScaledDot, Additive)"
        )
    return key_dim
