"""Drawing options, the weights that they select, and descriptions of maps in words."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32

from captioner import limits
from captioner.errors import UsageError, plural
from captioner.evaluation import localisation
from captioner.language.word_classes import FUNCTION_WORDS
from captioner.photos.geometry import Geometry
from captioner.predict.caption import Caption

Look = Literal["glow", "paper"]
Scale = Literal["shared", "own"]
Smoothing = Literal["bicubic", "gaussian", "none"]
Sign = Literal["positive", "negative", "absolute"]

NEAR_UNIFORM = 0.9  # share of effective cells from which a map counts as nearly uniform


@dataclass(frozen=True)
class Style:
    """How attention maps are drawn.

    Attributes:
        opacity: of the colours; 0 shows only the photo, 1 only the map where it is strongest.
        scale: ``shared`` is one colour scale for all words of a caption, which ends at the mean of the
            maps' maxima. ``own`` scales each map to its own maximum.
        smoothing: interpolation between cells in images: ``bicubic``; ``gaussian``, as in Xu et al.
            2015; or ``none``. It does not change exported weights.
        layer: layer to show, from 0; None for the weights that the decoder reports, or for the mean
            over layers if ``head`` is given.
        head: head to show, from 0; None for the mean over heads.
        look: ``glow`` colours only cells with more than uniform attention, 1 / (number of cells);
            ``paper`` is a grey photo under a map from black (0) to white, as in Xu et al. 2015.
        contours: also draw a line at half of the colour scale.
        content_words: figures and animations leave out function words such as "a" and "of".
        sign: what is drawn of maps that may be negative: ``positive``, regions that make the word more
            probable; ``negative``, less probable; ``absolute``, both.
    """

    opacity: float | int = 0.8
    scale: Scale = "shared"
    smoothing: Smoothing = "bicubic"
    layer: int | None = None
    head: int | None = None
    look: Look = "glow"
    contours: bool = False
    content_words: bool = False
    sign: Sign = "positive"

    def __post_init__(self) -> None:
        limits.check("opacity", self.opacity, limits.SHARE)


DEFAULT_STYLE = Style()


def maps(caption: Caption, style: Style = DEFAULT_STYLE) -> Float32[np.ndarray, "T rows columns"]:
    """Return the maps to draw: attention weights, or another method's part of one sign.

    The latter are divided by the largest sum of a map of the caption, so that a word that depends
    little on the photo has a pale map; with ``scale="own"``, each by its own sum.
    """
    found = values(caption, style)
    if caption.method == "attention":
        return found
    drawn = {"positive": found, "negative": -found, "absolute": np.abs(found)}[style.sign]
    drawn = np.maximum(drawn, 0)
    sums = drawn.sum((1, 2), keepdims=True)
    sums = sums if style.scale == "own" else sums.max(keepdims=True)
    return drawn / np.maximum(sums, np.float32(1e-30))


def values(caption: Caption, style: Style = DEFAULT_STYLE) -> Float32[np.ndarray, "T rows columns"]:
    """Return the maps as they were computed: of the chosen layer and head, or the caption's own."""
    if style.layer is None and style.head is None:
        return caption.weights
    if caption.layers is None:
        raise UsageError(
            f"{caption.mechanism or caption.model} has one map per word, or details=True was not given; "
            "leave out layer and head"
        )
    weights = select_head(caption.layers, style.layer, style.head)
    if caption.outside is None:
        return weights
    return weights / np.maximum(weights.sum((1, 2), keepdims=True), np.float32(1e-30))


def select_head(
    weights: Float32[np.ndarray, "T layers heads *cells"], layer: int | None, head: int | None
) -> Float32[np.ndarray, " T *cells"]:
    """Return the weights of one layer and head; None takes the mean over layers or heads."""
    for name, index in (("layer", layer), ("head", head)):
        count = weights.shape[1]
        if index is None:
            weights = weights.mean(1, dtype=np.float32)
        elif 0 <= index < count:
            weights = weights[:, index]
        else:
            raise UsageError(f"there is no {name} {index + 1}: the model has {plural(count, name)}")
    return weights


def describe_mechanism(caption: Caption, style: Style = DEFAULT_STYLE) -> str:
    """Return the attention mechanism, the layer and head shown, counted from 1, and the method."""
    text = caption.mechanism
    text += "" if style.layer is None else f", layer {style.layer + 1}"
    text += "" if style.head is None else f", head {style.head + 1}"
    if caption.method == "attention":
        return text
    return f"{text}, {caption.method}" + ("" if style.sign == "positive" else f" ({style.sign})")


def describe_measure(caption: Caption, style: Style = DEFAULT_STYLE) -> str:
    """Return what a map shows in each region: attention weights, or shares of what a method finds."""
    signs = limits.SIGNED.get(caption.method, {})
    return limits.METHODS[caption.method].format(signs.get(style.sign))


def entropies(weights: Float32[np.ndarray, "T rows columns"]) -> Float32[np.ndarray, " T"]:
    """Return the entropy in nats of each normalised map: 0 (one cell) to ln(rows · columns) (uniform).

    Its exponential is the effective number of cells. A map of zeros has entropy 0.
    """
    flat = np.asarray(weights, np.float64).reshape(len(weights), -1)
    probs = flat / np.maximum(flat.sum(1, keepdims=True), 1e-300)
    return np.asarray(np.abs(localisation.entropies(probs)), np.float32)


def describe_location(weights: Float32[np.ndarray, "rows columns"], geometry: Geometry) -> str:
    """Return where a map is strongest, in words: "everywhere" if it is nearly uniform, or "nowhere"."""
    if not weights.any():
        return "nowhere"
    if np.exp(entropies(weights[None])[0]) > NEAR_UNIFORM * weights.size:
        return "everywhere"
    if geometry.boxes is None:
        row, column = np.unravel_index(int(weights.argmax()), weights.shape)
        y, x = (row + 0.5) / weights.shape[0], (column + 0.5) / weights.shape[1]
    else:
        left, top, right, bottom = geometry.boxes[int(weights.argmax())]
        y, x = (top + bottom) / 2 / geometry.height, (left + right) / 2 / geometry.width
    vertical = ("top", "middle", "bottom")[min(int(3 * y), 2)]
    horizontal = ("left", "centre", "right")[min(int(3 * x), 2)]
    return "most at the " + f"{vertical} {horizontal}".replace("middle centre", "centre")


def describe_spread(caption: Caption, index: int, style: Style) -> str:
    """Describe over how many cells or regions the attention of a word is spread."""
    weights = maps(caption, style)[index]
    cells = np.exp(entropies(weights[None])[0])
    unit = "regions" if caption.geometry.boxes else "cells"
    spread = f"{cells:.1f} of {weights.size} {unit}" if weights.any() else f"no {unit}"
    everywhere = cells > NEAR_UNIFORM * weights.size
    if everywhere:
        spread = "everywhere"
    if caption.visual_grounding is not None:
        return f"looked {100 * caption.visual_grounding[index]:.0f} %: {spread}"
    return f"looked {spread}" if everywhere and caption.method == "attention" else spread


def content_words(caption: Caption) -> list[int]:
    """Return the indices of the words that are not function words, or of all words if none is left."""
    indices = [i for i, word in enumerate(caption.words) if word not in FUNCTION_WORDS]
    return indices or list(range(len(caption.words)))


def sentence(caption: Caption) -> str:
    """Return the caption with a capital letter and a full stop."""
    text = caption.text[:1].upper() + caption.text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
