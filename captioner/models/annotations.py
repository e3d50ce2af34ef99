"""What an encoder says about a picture: one vector per region."""

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Annotations:
    """The annotation vectors a_1 … a_L of B pictures (Xu et al. 2015 §3.1.1).

    Attributes:
        vectors: one vector of width D per region, regions in raster order.
        grid: (rows, columns) of the feature map; L = rows · columns.
        mask: True where a region may be attended; None when all may.
    """

    vectors: Float[Tensor, "B L D"]
    grid: tuple[int, int]
    mask: Bool[Tensor, "B L"] | None = None

    def __post_init__(self) -> None:
        rows, columns = self.grid
        if rows * columns != self.vectors.shape[1]:
            raise ValueError(
                f"{self.vectors.shape[1]} annotation vectors do not fill a {rows}×{columns} grid"
            )
        if self.mask is not None and self.mask.shape != self.vectors.shape[:2]:
            raise ValueError(
                f"a mask of shape {tuple(self.mask.shape)} does not fit annotations of shape "
                f"{tuple(self.vectors.shape)}: expected {tuple(self.vectors.shape[:2])}"
            )

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def mean(self) -> Float[Tensor, "B D"]:
        """The mean over the regions that may be attended; zero where there are none."""
        if self.mask is None:
            return self.vectors.mean(1)
        weights = self.mask.to(self.vectors.dtype).unsqueeze(-1)  # (B, L, 1)
        return (self.vectors * weights).sum(1) / weights.sum(1).clamp(min=1)

    def of(self, row: int) -> "Annotations":
        """Those of one picture alone."""
        mask = None if self.mask is None else self.mask[row : row + 1]
        return Annotations(self.vectors[row : row + 1], self.grid, mask)

    def with_vectors(self, vectors: Float[Tensor, "B L E"]) -> "Annotations":
        """The same regions with other vectors."""
        return replace(self, vectors=vectors)
