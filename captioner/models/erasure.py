"""A decoder's next step as if some regions of the picture were erased, its memory untouched."""

from typing import Any

from jaxtyping import Bool, Int
from torch import Tensor

from captioner.errors import ModelError
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Keys
from captioner.models.decoder import Decoder, of_pictures


class Erasure:
    """Erases regions of B pictures: the picture's mean annotation stands in their place.

    The mean tells what the picture shows as a whole and nothing of where; it is what the LSTM
    decoders start from, so no vector is put before a decoder that it has never met.

    Regions are erased in what attention computes once per picture, keys and values, which every
    part of this package computes region by region: the new ones are put together from those of
    the picture and those of a picture that is its mean everywhere. What the decoder remembers of
    the steps before is that of the whole picture.

    Args:
        decoder: in eval mode, with a state that has ``keys``, as all of this package have.
        annotations: of B pictures, refined, as the decoder attends to them.

    Raises:
        ModelError: the decoder keeps no keys.
    """

    def __init__(self, decoder: Decoder, annotations: Annotations) -> None:
        mean = annotations.mean().unsqueeze(1).expand_as(annotations.vectors)
        blank = decoder.start(annotations.with_vectors(mean))
        if not hasattr(blank, "keys"):
            raise ModelError(
                f"the state of {type(decoder).__name__} has no keys, which erasing regions of a "
                "picture needs: keep what attention.prepare gives as the state's 'keys'"
            )
        self._blank: tuple[Keys, ...] = _several(blank.keys)

    def erase(self, state: Any, pictures: Int[Tensor, " P"], regions: Bool[Tensor, "P L"]) -> Any:
        """The state of P pictures, each with regions of its own erased.

        Args:
            state: of the B pictures, before the step in question.
            pictures: which of the B each of the P is; any of them any number of times.
            regions: True where a region is to be erased.
        """
        taken = of_pictures(state, pictures)
        where, which = regions.nonzero(as_tuple=True)
        for keys, blank in zip(_several(taken.keys), self._blank, strict=True):
            # Copies, so that nobody else sees them change.
            for own, mean in ((keys.prepared, blank.prepared), (keys.values, blank.values)):
                own[where, which] = mean[pictures[where], which]
        return taken


def _several(keys: Keys | tuple[Keys, ...]) -> tuple[Keys, ...]:
    """One for each layer."""
    return keys if isinstance(keys, tuple) else (keys,)
