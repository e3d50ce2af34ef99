"""Objects that generated captions name: F1-all, F1-loc and CHAIR.

F1-all and F1-loc follow Zhou et al. 2019 (Grounded Video Description, arXiv 1812.06587), with three
differences: the pointing game on masks instead of an IoU of boxes above ½; the references of an image
are merged; and objects are pooled, not averaged by category. CHAIR follows Rohrbach et al. 2018.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from captioner.data.masks import MaskedImages
from captioner.data.scene_grammar import Mention, true_of
from captioner.evaluation.bootstrap import Ratio, mean
from captioner.language.vocabulary import Tokenizer


class CaptionRecord(NamedTuple):
    """A caption and the objects that it mentions."""

    image: int  # index of its image in the data set
    words: Sequence[str]
    mentions: list[tuple[Mention, int | None]]  # with the index among the scored ones, if scored
    entropies: Float64[np.ndarray, " T"]  # of each word's attention, nats
    on_photo: Float64[np.ndarray, " T"] | None = None  # share of attention, with a visual sentinel


_ROW = [("image", int), ("type", "U32"), ("named", int), ("target", int), ("number", int)]
"""A category that the caption of an image names or should name: the image's index; the type of the
category, if it has one; whether it counts as named (not if it is in the image, but is no target);
whether it is a target; the number of the scored mention if it is correct, otherwise -1."""


class NamedObjects:
    """The objects that generated captions name, and those that they should name.

    The targets of an image have a mask and are named by a reference. A category in the caption (counted
    once, by its first mention) is correct if it is a target and refers to objects of the image. It is
    grounded if the map also points into their mask. Other categories in the image do not count.
    """

    def __init__(self, captions: Sequence[CaptionRecord], data: MaskedImages) -> None:
        self._n_images = len(data.images)
        rows: list[tuple[int, str, bool, bool, int]] = []
        # Of each caption: its image, its mentions, those of absent objects, and whether it is true.
        counts: list[tuple[int, int, int, bool]] = []
        tokenizer = Tokenizer()
        for caption in captions:
            index, image = caption.image, data.images[caption.image]
            references = [data.named(tokenizer(text), image) for text in image.captions]
            in_reference = {mention.category for mentions in references for mention in mentions}
            target, present = in_reference & set(image.categories), in_reference | image.present
            absent = sum(mention.category not in present for mention, _ in caption.mentions)
            is_true = data.generated and true_of(" ".join(caption.words), image.objects)
            counts.append((index, len(caption.mentions), absent, is_true))
            first = {mention.category: number for mention, number in reversed(caption.mentions)}
            for category in sorted(target | set(first)):
                is_target = category in target
                named = category in first and (is_target or category not in present)
                number = first.get(category) if is_target else None
                kind = data.types.get(category, "")
                rows.append((index, kind, named, is_target, -1 if number is None else number))
        self._rows = np.array(rows, _ROW)
        self.types = self._rows["type"]
        self._captions = np.array(counts, int).reshape(-1, 4)
        self.counts = {
            "named": int(self._rows["named"].sum()),
            "to_be_named": int(self._rows["target"].sum()),
            "right": int((self._rows["number"] >= 0).sum()),
            "mentions": int(self._captions[:, 1].sum()),
        }

    def f1(
        self,
        pointing: Float64[np.ndarray, " N"],
        chosen: Bool[np.ndarray, " M"] | slice = slice(None),
    ) -> dict[str, Ratio]:
        """Return F1-all, 2 · grounded / (named + targets), and F1-loc, grounded / correct, in percent.

        ``pointing`` is the pointing score of each scored mention, in percent. ``chosen`` selects
        categories: it has the shape of ``types``.
        """
        rows = self._rows[chosen]
        grounded = np.append(pointing, 0.0)[rows["number"]]  # -1 is the appended one

        def ratio(sums: np.ndarray, numbers: np.ndarray) -> Ratio:
            return Ratio(*(self._totals(rows["image"], of) for of in (sums, numbers)))

        return {
            "f1_all": ratio(2 * grounded, rows["named"] + rows["target"]),
            "f1_loc": ratio(grounded, rows["number"] >= 0),
        }

    def hallucinations(self) -> dict[str, Ratio]:
        """Return CHAIR, the percentage of mentions and of captions that name an absent category."""
        image, mentions, absent, _ = self._captions.T
        return {
            "chair_i": Ratio(self._totals(image, 100 * absent), self._totals(image, mentions)),
            "chair_s": self._share(absent > 0),
        }

    def true_captions(self) -> Ratio:
        """Return the percentage of captions that ``true_of`` accepts, for generated scenes."""
        return self._share(self._captions[:, 3])

    def _share(self, of_captions: np.ndarray) -> Ratio:
        return mean(100 * of_captions, self._captions[:, 0], self._n_images)

    def _totals(self, image: np.ndarray, values: np.ndarray) -> Float64[np.ndarray, " I"]:
        """Add up values by image."""
        return np.bincount(image, values, self._n_images).astype(np.float64)
