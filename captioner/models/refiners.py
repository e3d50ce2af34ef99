"""Between encoder and decoder: annotations → better annotations."""

import torch
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


class Blind(Projection):
    """Every annotation replaced by the mean over the training set: a captioner that sees nothing.

    What it scores is what the language alone is worth; a captioner must beat it clearly. The mean
    over pictures and cells is a running one, over the training batches so far.
    """

    mean: Tensor
    batches: Tensor

    def __init__(self, in_dim: int, dim: int = 512, dropout: float = 0.0) -> None:
        super().__init__(in_dim, dim, dropout)
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, annotations: Annotations) -> Annotations:
        """The same vectors whatever the picture."""
        if self.training:
            self.batches += 1
            self.mean += (annotations.mean().mean(0).detach() - self.mean) / self.batches
        blank = self.mean.expand_as(annotations.vectors)
        return super().forward(annotations.with_vectors(blank))
