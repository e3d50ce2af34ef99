"""Two encoders for one image: one says where things are, the other what they are."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.encoder import CNNEncoder, Encoder, ViTEncoder
from captioner.models.registry import require


class TwoStreamEncoder(Encoder):
    """The keys of one encoder and the values of another: A(q, K, V) with K ≠ V.

    A Vision Transformer's patches separate objects sharply, a fine-tuned CNN knows better what they
    are. The streams keep their own grids; the neck brings the values to the grid of the keys.

    Args:
        keys: the encoder whose vectors are compared with the query.
        values: the encoder whose vectors are averaged.

    Raises:
        ModelError: one of the encoders has two streams itself.
    """

    parts: ClassVar[dict[str, str]] = {"keys": "encoder", "values": "encoder"}

    def __init__(
        self,
        keys: Callable[[], Encoder] = ViTEncoder,
        values: Callable[[], Encoder] = CNNEncoder,
    ) -> None:
        super().__init__()
        self.keys, self.values = keys(), values()
        require(
            self.keys.key_dim is None and self.values.key_dim is None,
            "each stream of a TwoStreamEncoder is an encoder of one stream, got another two",
        )
        self.out_dim, self.key_dim = self.values.out_dim, self.keys.out_dim
        self.trainable = self.keys.trainable or self.values.trainable
        larger = max(self._streams, key=lambda encoder: encoder.preprocessing.height)
        self.preprocessing = larger.preprocessing

    @property
    def external(self) -> bool:
        """Whether the weights of a stream come from an installed package."""
        return any(encoder.external for encoder in self._streams)

    def load_pretrained(self) -> None:
        """Fetch the pretrained weights of both streams, once."""
        for encoder in self._streams:
            encoder.load_pretrained()

    def fingerprint(self) -> str:
        """Return a SHA-256 over the fingerprints of both streams."""
        digest = hashlib.sha256()
        for encoder in self._streams:
            digest.update(encoder.fingerprint().encode())
        return digest.hexdigest()

    def forward(self, images: UInt8[Tensor, "B 3 H W"]) -> Annotations:
        """Encode images of the larger of the two sizes."""
        keys, values = (encoder(_resized(images, encoder)) for encoder in self._streams)
        return replace(values, keys=keys)

    @property
    def _streams(self) -> tuple[Encoder, Encoder]:
        return self.keys, self.values


def _resized(images: UInt8[Tensor, "B 3 H W"], encoder: Encoder) -> UInt8[Tensor, "B 3 h w"]:
    """Shrink images to the size of an encoder."""
    size = (encoder.preprocessing.height, encoder.preprocessing.width)
    if images.shape[2:] == size:
        return images
    shrunk = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
    return shrunk.round().to(torch.uint8)
