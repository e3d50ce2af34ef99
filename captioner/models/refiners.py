"""Between encoder and decoder: annotations → better annotations."""

from jaxtyping import Float
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.registry import Component


class Refiner(Component, kind="refiner"):
    """Base of all refiners. ``out_dim`` is the width of the vectors it gives."""

    out_dim: int

    def forward(self, annotations: Annotations) -> Annotations:
        """The same regions, described differently."""
        raise NotImplementedError


class Identity(Refiner):
    """Annotations as the encoder gives them (Xu et al. 2015)."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.out_dim = in_dim

    def forward(self, annotations: Annotations) -> Annotations:
        """Unchanged."""
        return annotations


class Projection(Refiner):
    """Layer norm, a linear map to ``dim`` and ReLU, the same for every annotation vector.

    CNN features are wide and of uneven scale; a narrow projection learns faster and overfits less
    than attention over them directly.

    Args:
        in_dim: D, the width the encoder gives.
        dim: the width of the result.
        dropout: probability of dropping a component of the result.
    """

    def __init__(self, in_dim: int, dim: int = 512, dropout: float = 0.0) -> None:
        super().__init__()
        self.out_dim = dim
        self.layers = nn.Sequential(
            nn.LayerNorm(in_dim), nn.Linear(in_dim, dim), nn.ReLU(), nn.Dropout(dropout)
        )

    def forward(self, annotations: Annotations) -> Annotations:
        """Every vector projected on its own."""
        projected: Float[Tensor, "B L dim"] = self.layers(annotations.vectors)
        return annotations.with_vectors(projected)
