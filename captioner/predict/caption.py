"""A caption: the words of a sentence, their probabilities and where the model attended for each."""

from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

import captioner  # its ``overlay``, which imports this module, is read when it is used
from captioner.photos.geometry import Geometry
from captioner.photos.images import Source, data_url

Attends = Literal["soft", "argmax", "sample"]


@dataclass(frozen=True, eq=False, repr=False)
class Caption:
    """A sentence about an image; notebooks show its attention figure.

    Attributes:
        image: path of the image; None if the source was not a path.
        text: the sentence.
        words: its T words as tokens.
        log_prob: log-probability in nats of the sentence including its end.
        word_log_probs: log-probability in nats of each word given those before it.
        score: log_prob / length ** length_penalty, by which the search ranks captions; the length
            includes the end. For a sentence given to ``Predictor.explain``, the mean per token.
        weights: attention weights of each word; their sum is 1 - β if there is a sentinel. No cells, if
            they were not asked for.
        geometry: the position of the annotation grid in the original image.
        model: name of the model.
        mechanism: description of the attention, e.g. ``LSTMDecoder: Additive × Soft``; with the
            number of paths if sampled locations were averaged.
        attends: ``soft`` if every cell has a weight; ``argmax`` or ``sample`` if each head attends
            to one cell, the most probable one or a sampled one.
        layers: weights of every layer and head; None without details, or for a single one.
        past: weights of the input words for each word; None without details, or if the decoder does
            not attend to words. Input 0 is ``<start>``, input j is ``words[j - 1]``; later inputs
            have weight 0.
        centre: centre (row, column) of local attention in cells; cell r covers [r, r + 1).
        window: cells on each side of the centre that local attention covers.
        has_sentinel: whether a visual sentinel takes the rest of the attention, β (Lu et al. 2017).
        alternatives: the other captions of the beam, best first.
        outside: share of each word's attention that fell on no cell, but on class and register tokens
            or on text; None if all of it is on cells. If given, ``weights`` are shares of the rest, and
            ``layers`` are the model's own weights, whose sum is below 1.
        rollout: attention rollout of each word, as shares; only with details and ``outside``.
        confidence: probability that the caption is right; None if it was not requested.
        method: one of ``captioner.limits.METHODS``; except for ``attention``, ``weights`` are its maps.
        unknown: indices of the words that the model does not know and reads as ``<unk>``; only a
            sentence given to ``Predictor.explain`` has any.
    """

    image: str | None
    text: str
    words: tuple[str, ...]
    log_prob: float
    word_log_probs: tuple[float, ...]
    score: float
    weights: Float32[np.ndarray, "T rows columns"]
    geometry: Geometry
    model: str
    mechanism: str = ""
    attends: Attends = "soft"
    layers: Float32[np.ndarray, "T layers heads rows columns"] | None = None
    past: Float32[np.ndarray, "T layers past_heads T"] | None = None
    centre: Float32[np.ndarray, "T 2"] | None = None
    window: int | None = None
    has_sentinel: bool = False
    outside: Float32[np.ndarray, " T"] | None = None
    rollout: Float32[np.ndarray, "T rows columns"] | None = None
    alternatives: tuple["Caption", ...] = ()
    confidence: float | None = None
    unknown: tuple[int, ...] = ()
    method: str = "attention"

    def __repr__(self) -> str:
        unknown = [self.words[index] for index in self.unknown]
        return (
            f"Caption({self.text!r}, image={self.image!r}, model={self.model!r}, "
            f"log_prob={self.log_prob:.2f}{f', {unknown=}' if unknown else ''})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Caption):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    def __hash__(self) -> int:
        return hash((self.image, self.text, self.log_prob, self.model))

    @property
    def visual_grounding(self) -> Float32[np.ndarray, " T"] | None:
        """The visual grounding probability 1 - β of each word; None without a visual sentinel."""
        return self.weights.sum((1, 2), dtype=np.float32) if self.has_sentinel else None

    def with_maps(self, maps: Float32[np.ndarray, "T rows columns"], method: str) -> "Caption":
        """Return the caption with maps of another method, without what describes attention alone."""
        return replace(
            self,
            weights=np.asarray(maps, np.float32),
            method=method,
            attends="soft",
            layers=None,
            centre=None,
            window=None,
            has_sentinel=False,
            outside=None,
            rollout=None,
            alternatives=(),
        )

    def save(
        self,
        file: str | Path,
        photo: Source | None = None,
        style: "captioner.overlay.Style | None" = None,
    ) -> None:
        """Write the attention in the format of the suffix: see ``captioner.overlay.save``."""
        captioner.overlay.save(self, file, style, photo)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON record that ``captioner caption`` writes."""
        marked: dict[str, Any] = {"unknown": list(self.unknown)} if self.unknown else {}
        if self.confidence is not None:
            marked["confidence"] = round(self.confidence, 4)
        return {
            "image": self.image,
            "caption": self.text,
            "words": list(self.words),
            "log_prob": round(self.log_prob, 4),
            "word_log_probs": [round(value, 4) for value in self.word_log_probs],
            "model": self.model,
            **marked,
        }

    def _repr_html_(self) -> str:
        """Return the attention figure, or the text alone if the image cannot be read."""
        try:
            url = data_url(captioner.overlay.figure(self, dpi=120))
        except Exception:  # a notebook shows at least the text
            return f"<p>{escape(self.text)}</p>"
        return f'<img alt="{escape(self.text)}" src="{url}">'
