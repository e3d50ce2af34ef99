"""Alignment scores e = a(k, q): how well each annotation answers the query."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.registry import Component


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
    """

    def __init__(self, query_dim: int, key_dim: int, dim: int = 512) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, dim, bias=False)
        self.key = nn.Linear(key_dim, dim)
        self.energy = nn.Linear(dim, 1, bias=False)

    def prepare(self, keys: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """``U k + b``."""
        return self.key(keys)

    def forward(
        self, query: Float[Tensor, "B T n"], prepared: Float[Tensor, "B L A"]
    ) -> Float[Tensor, "B T L"]:
        """The sum is inside the tanh: outside, softmax would cancel the query."""
        joint = torch.tanh(self.query(query).unsqueeze(2) + prepared.unsqueeze(1))  # (B, T, L, A)
        return self.energy(joint).squeeze(-1)
