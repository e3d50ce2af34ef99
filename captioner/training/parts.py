"""What a training is put together from, as the command line and Python give it."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from captioner.models.decoder import Decoder
from captioner.models.encoder import Encoder
from captioner.models.refiners import Refiner
from captioner.training.lower_bound import LowerBound
from captioner.training.objectives import Likelihood, Objective
from captioner.training.self_critical import SelfCritical


@runtime_checkable
class EncoderFactory(Protocol):
    """Makes an encoder."""

    def __call__(self) -> Encoder:
        """An encoder."""
        ...


@runtime_checkable
class RefinerFactory(Protocol):
    """Makes a refiner once the encoder's width is known."""

    def __call__(self, *, in_dim: int) -> Refiner:
        """A refiner of vectors of width ``in_dim``."""
        ...


@runtime_checkable
class DecoderFactory(Protocol):
    """Makes a decoder once the vocabulary and the refiner's width are known."""

    def __call__(self, *, vocab_size: int, annotation_dim: int) -> Decoder:
        """A decoder of ``vocab_size`` words over vectors of width ``annotation_dim``."""
        ...


@runtime_checkable
class ObjectiveFactory(Protocol):
    """Makes an objective."""

    def __call__(self) -> Objective:
        """An objective."""
        ...


# All objectives, so that their names are known.
OBJECTIVES = (Likelihood, LowerBound, SelfCritical)


def tree(given: Any) -> dict[str, Any]:
    """A tree as it is, or that of a class given with all its defaults."""
    if isinstance(given, Mapping):
        return dict(given)
    return {"class_path": given.__name__, "init_args": {}}
