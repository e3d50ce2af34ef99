"""An encoder without a network: region features that a detector computed beforehand."""

import hashlib
import os
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.encoder import Encoder
from captioner.photos.region_files import RegionFiles


class RegionFeatures(Encoder):
    """The regions of an object detector as annotations, with their boxes (Anderson et al. 2018, §3.1).

    The number of regions varies between photos; a mask marks the padding. Nothing is trained, and
    photos without features cannot be captioned.

    Args:
        features: the folder of the features, one file for each photo, see ``RegionFiles``; None if each
            file lies beside its photo. The environment variable ``CAPTIONER_FEATURES`` replaces it on a
            machine where the features lie elsewhere.
        boxes: the folder of the boxes, if they are not in the files of the features. The variable
            ``CAPTIONER_BOXES`` replaces it.
        dim: the width of a vector.
        regions: the largest number of regions of a photo; if it has more, the first are used.
    """

    trainable = False
    preprocessing: RegionFiles

    def __init__(
        self,
        features: str | None = None,
        boxes: str | None = None,
        dim: int = 2048,
        regions: int = 100,
    ) -> None:
        super().__init__()
        self.out_dim = dim
        of_vectors, of_boxes = _folder("FEATURES", features), _folder("BOXES", boxes)
        self.preprocessing = RegionFiles(of_vectors, of_boxes, regions, dim)

    def load_pretrained(self) -> None:
        """Do nothing: there are no weights."""

    @property
    def design(self) -> object:
        return self.out_dim  # the folders and the number of regions may differ

    def fingerprint(self) -> str:
        return hashlib.sha256(f"regions {self.out_dim}".encode()).hexdigest()

    def blank(self) -> Tensor:
        return torch.zeros(1, self.preprocessing.count, self.out_dim + 5)

    def forward(self, images: Float[Tensor, "B N D5"]) -> Annotations:
        """Split the rows of ``RegionFiles.read``."""
        vectors, boxes, exists = torch.split(images, [self.out_dim, 4, 1], -1)
        return Annotations(vectors, (1, images.shape[1]), exists[..., 0] > 0, boxes=boxes)


def _folder(name: str, given: str | None) -> Path | None:
    folder = os.environ.get(f"CAPTIONER_{name}") or given
    return Path(folder).expanduser() if folder else None
