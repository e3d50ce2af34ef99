"""Drawing options, the weights that they select, and what a map says in words."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float32

from captioner import limits
from captioner.caption import Caption
from captioner.errors import UsageError
from captioner.word_classes import FUNCTION_WORDS

Look = Literal["glow", "paper"]
Scale = Literal["shared", "own"]
Smoothing = Literal["bicubic", "gaussian", "none"]

FLAT = 0.9
"""A map is nearly even if its effective number of cells is this share of all cells or more."""


@dataclass(frozen=True)
class Style:
    """How attention maps are drawn.

    Attributes:
        opacity: opacity of the colours: 0 shows only the photo, 1 only the map where it is strongest.
        scale: ``shared`` uses one colour scale for all words of a caption, so that a flat map looks
            flat; ``own`` scales each map to its own maximum.
        smoothing: interpolation between cells in images: ``bicubic``; ``gaussian``, as in Xu et al.
            2015; or ``none``. It does not change exported weights.
        layer: index of the layer to show, from 0; None for the weights that the decoder reports, or
            for the mean over layers if ``head`` is given.
        head: index of the head to show, from 0; None for the mean over heads.
        look: ``glow`` colours only cells with more than the weight of even attention, 1 / (number of
            cells); ``paper`` is a grey photo under a map from black (0) to white, as in Xu et al. 2015.
        contours: also draw a line around the cells above half of the colour scale.
        content_words: figures and animations leave out function words such as "a" and "of".
    """

    opacity: float | int = 0.8
    scale: Scale = "shared"
    smoothing: Smoothing = "bicubic"
    layer: int | None = None
    head: int | None = None
    look: Look = "glow"
    contours: bool = False
    content_words: bool = False

    def __post_init__(self) -> None:
        limits.check("opacity", self.opacity, limits.SHARE)
        for name, choices in (("scale", Scale), ("smoothing", Smoothing), ("look", Look)):
            if (value := getattr(self, name)) not in get_args(choices):
                raise UsageError(f"{name} must be {' or '.join(get_args(choices))}, got {value!r}")


DEFAULT_STYLE = Style()


def maps(caption: Caption, style: Style = DEFAULT_STYLE) -> Float32[np.ndarray, "T rows columns"]:
    """Return the weights to show: those of the chosen layer and head, or the caption's own."""
    if style.layer is None and style.head is None:
        return caption.weights
    if caption.layers is None:
        raise UsageError(
            f"cannot choose a layer or head: {caption.mechanism or caption.model} has one map per "
            "word, or details=True was not given; leave out layer and head"
        )
    return select_head(caption.layers, style.layer, style.head)


def select_head(
    weights: Float32[np.ndarray, "T layers heads *cells"], layer: int | None, head: int | None
) -> Float32[np.ndarray, " T *cells"]:
    """Return the weights of one layer and head; None takes the mean over layers or heads."""
    _, layer_count, head_count, *_ = weights.shape
    for name, index, count in (("layer", layer, layer_count), ("head", head, head_count)):
        if index is not None and not 0 <= index < count:
            raise UsageError(f"there is no {name} {index + 1}: there are {count}")
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    heads = slice(None) if head is None else slice(head, head + 1)
    return np.asarray(weights[:, layers, heads].mean((1, 2), dtype=np.float32))


def describe_mechanism(caption: Caption, style: Style = DEFAULT_STYLE) -> str:
    """Return the attention mechanism, and the layer and head shown, counted from 1."""
    layer = "" if style.layer is None else f", layer {style.layer + 1}"
    head = "" if style.head is None else f", head {style.head + 1}"
    return caption.mechanism + layer + head


def entropies(weights: Float32[np.ndarray, "T rows columns"]) -> Float32[np.ndarray, " T"]:
    """Return the entropy of each map in nats; its exponential is the effective number of cells.

    It ranges from 0 (one cell) to ln(rows · columns) (uniform). Weights are normalised to sum to 1
    first; a map of zeros has entropy 0.
    """
    flat = weights.reshape(len(weights), -1).astype(np.float64)
    probs = flat / np.maximum(flat.sum(1, keepdims=True), np.finfo(np.float64).tiny)
    logs = np.log(probs, out=np.zeros_like(probs), where=probs > 0)
    # The maximum turns -0.0 into 0.0.
    return np.asarray(np.maximum(-(probs * logs).sum(1), 0), np.float32)


def describe_location(weights: Float32[np.ndarray, "rows columns"]) -> str:
    """Return where a map is strongest, in words: "everywhere" if it is nearly even."""
    if np.exp(entropies(weights[None])[0]) > FLAT * weights.size:
        return "everywhere"
    row, column = np.unravel_index(int(weights.argmax()), weights.shape)
    vertical = ("top", "middle", "bottom")[int(3 * (row + 0.5) / weights.shape[0])]
    horizontal = ("left", "centre", "right")[int(3 * (column + 0.5) / weights.shape[1])]
    return "most at the " + f"{vertical} {horizontal}".replace("middle centre", "centre")


def describe_spread(caption: Caption, index: int, style: Style) -> str:
    """Say over how many cells the attention of a word spreads."""
    weights = maps(caption, style)[index]
    if describe_location(weights) == "everywhere":
        return "looked everywhere"
    return f"{np.exp(entropies(weights[None])[0]):.1f} of {weights.size} cells"


def content_words(caption: Caption) -> list[int]:
    """Return the indices of the words that are not function words, or of all words if none is left."""
    indices = [i for i, word in enumerate(caption.words) if word not in FUNCTION_WORDS]
    return indices or list(range(len(caption.words)))


def sharpest_word(caption: Caption, style: Style = DEFAULT_STYLE) -> int:
    """Return the index of the content word whose map is the least even."""
    entropy = entropies(maps(caption, style))
    return min(content_words(caption), key=lambda index: float(entropy[index]))


def sentence(caption: Caption) -> str:
    """Return the caption with a capital letter and a full stop."""
    text = caption.text[:1].upper() + caption.text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
