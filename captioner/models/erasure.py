"""Erase regions of an image for a decoder's next step, without changing the decoder's memory."""

from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.attention import Keys
from captioner.models.decoder import Decoder
from captioner.models.tensors import index_batch


class Erasure:
    """Replace erased regions of B images by the mean annotation of their image.

    The keys and values of a region depend on no other region, so those of an erased region are copied
    from an image whose regions all equal the mean. The decoder's memory of earlier steps stays. Its
    state must have the result of ``attention.prepare`` as ``keys``.
    """

    def __init__(self, decoder: Decoder, annotations: Annotations) -> None:
        self._blank = _per_layer(decoder.init_state(annotations.flat()).keys)

    def erase(self, state: Any, images: Int[Tensor, " P"], regions: Bool[Tensor, "P L"]) -> Any:
        """Return a copy of the state of P images, possibly repeated, without some regions of each."""
        erased = index_batch(state, images)  # copies, so that writing to them is safe
        image, region = regions.nonzero(as_tuple=True)
        for keys, blank in zip(_per_layer(erased.keys), self._blank, strict=True):
            for target, mean in ((keys.prepared, blank.prepared), (keys.values, blank.values)):
                target[image, region] = mean[images[image], region]
        return erased


def _per_layer(keys: Keys | tuple[Keys, ...]) -> tuple[Keys, ...]:
    return keys if isinstance(keys, tuple) else (keys,)
