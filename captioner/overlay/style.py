"""How attention is shown: what can be chosen, and which weights are meant."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float32

from captioner.errors import UsageError
from captioner.predictor import Caption

Scale = Literal["shared", "own"]
Smoothing = Literal["bicubic", "gaussian", "none"]


@dataclass(frozen=True)
class Style:
    """How maps are drawn.

    Attributes:
        opacity: of the colours on the photo: 0 shows the photo alone, 1 the map alone.
        scale: ``shared``, one scale for all words of a caption, so that a flat map looks flat; or
            ``own``, each word's map up to its own greatest weight.
        smoothing: how the cells run into each other, for the eye only: ``bicubic``; ``gaussian``, as
            Xu et al. 2015 drew them; ``none``, the cells themselves.
        layer: which layer of a decoder that has several, from 0; None for the weights that the
            decoder itself shows, or for the mean over layers if a head is chosen.
        head: which head, from 0; None for their mean.

    Raises:
        UsageError: a value that does not exist.
    """

    opacity: float | int = 0.6
    scale: Scale = "shared"
    smoothing: Smoothing = "bicubic"
    layer: int | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.opacity <= 1:
            raise UsageError(f"opacity goes from 0 to 1, got {self.opacity}")
        for name, known in (("scale", Scale), ("smoothing", Smoothing)):
            if (value := getattr(self, name)) not in get_args(known):
                raise UsageError(f"{name} is {' or '.join(get_args(known))}, got {value!r}")
        for name in ("layer", "head"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise UsageError(f"there is no {name} {value + 1}: the first is 1, index 0")


def maps(caption: Caption, style: Style = Style()) -> Float32[np.ndarray, "T rows columns"]:
    """The weights that are shown: the caption's own, or those of the layer and head chosen.

    Raises:
        UsageError: there is no such layer or head.
    """
    if style.layer is None and style.head is None:
        return caption.weights
    if caption.layers is None:
        raise UsageError(
            f"no layers or heads to choose from: {caption.mechanism or caption.model} has one map "
            "for a word, or was not asked for details=True; leave out layer and head"
        )
    return choose(caption.layers, style.layer, style.head)


def choose(
    weights: Float32[np.ndarray, "T layers heads *place"], layer: int | None, head: int | None
) -> Float32[np.ndarray, " T *place"]:
    """One layer's and head's weights; the mean over those not chosen.

    Raises:
        UsageError: there is no such layer or head.
    """
    for name, chosen, there in (
        ("layer", layer, weights.shape[1]),
        ("head", head, weights.shape[2]),
    ):
        if chosen is not None and not 0 <= chosen < there:
            raise UsageError(f"there is no {name} {chosen + 1}: there are {there}")
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    return np.asarray(weights[:, layers, heads].mean((1, 2), dtype=np.float32))


def mechanism(caption: Caption, style: Style = Style()) -> str:
    """How the model attends, and which layer and head are shown, the first being 1."""
    chosen = [
        f"{name} {number + 1}"
        for name, number in (("layer", style.layer), ("head", style.head))
        if number is not None
    ]
    return ", ".join([caption.mechanism, *chosen])


def entropies(weights: Float32[np.ndarray, "T rows columns"]) -> Float32[np.ndarray, " T"]:
    """How spread out each map is: its entropy in nats; exp of it is the effective number of cells.

    From 0, one cell, to ln(rows · columns), all alike. Weights that do not sum to 1 are taken as
    shares of their sum; a map of zeros has entropy 0.
    """
    flat = weights.reshape(len(weights), -1).astype(np.float64)
    shares = flat / np.maximum(flat.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    # -0.0 would be written as such.
    return np.asarray(np.maximum(-(shares * logs).sum(1), 0), np.float32)


def chose_cells(caption: Caption) -> bool:
    """Whether its attention is hard: every head, on every path, looked at one cell and at no other."""
    return "Hard (" in caption.mechanism and "expectation" not in caption.mechanism
