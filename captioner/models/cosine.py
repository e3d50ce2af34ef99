"""The cosine score: it depends on the angle between query and key, not on their lengths."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.scores import PreparedKeys, Queries, Score, Scores


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

    def prepare(self, keys: Float[Tensor, "B L D"]) -> PreparedKeys:
        """Compute ``U k / ‖U k‖``."""
        return _unit(self.key(keys))

    def forward(self, query: Queries, keys: PreparedKeys) -> Scores:
        """Compute ``τ · cos(W q, U k)``; ``keys`` holds ``U k / ‖U k‖``."""
        return self.temperature * (_unit(self.query(query)) @ keys.mT)


def _unit(vectors: Tensor) -> Tensor:
    """Divide vectors by their lengths in at least float32; a zero vector stays zero."""
    return F.normalize(vectors.to(torch.promote_types(vectors.dtype, torch.float32)), dim=-1)
