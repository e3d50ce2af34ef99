"""Does a visual sentinel separate words that need the photo from words that do not?

A captioner with a visual sentinel spends the share 1 - β of a word's attention on the photo (Lu et al.
2017, arXiv 1612.01887, §5.3). Here this share is compared between content words and function words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int, Shaped

from captioner.evaluation.bootstrap import Counts, Statistic, mean
from captioner.evaluation.named_objects import CaptionRecord
from captioner.language.word_classes import FUNCTION_WORDS


@dataclass(frozen=True, eq=False)
class Auroc:
    """The area under the ROC curve (Hanley and McNeil 1982): P(positive > negative), ties count half.

    It is NaN if a resample lacks positives or negatives.
    """

    scores: Shaped[np.ndarray, " N"]
    positive: Bool[np.ndarray, " N"]
    image: Int[np.ndarray, " N"]  # of each score

    def __call__(self, counts: Counts) -> Float64[np.ndarray, " R"]:
        """Return the area in each resample of the images."""
        values, rank = np.unique(self.scores, return_inverse=True)
        areas = np.full(len(counts), np.nan)
        for number, drawn in enumerate(counts):
            weights = drawn[self.image].astype(np.float64)
            above = np.bincount(rank, weights * self.positive, len(values))
            below = np.bincount(rank, weights * ~self.positive, len(values))
            smaller = np.cumsum(below) - below / 2
            if total := above.sum() * below.sum():
                areas[number] = above @ smaller / total
        return areas


def measures(captions: Sequence[CaptionRecord], images: int) -> dict[str, Statistic]:
    """Return the mean share for content words and for function words, and the AUROC between them.

    ``on_photo`` of the captions is NaN for unknown words, which do not count. Without a visual
    sentinel the result is empty.
    """
    rows = [caption for caption in captions if caption.on_photo is not None]
    if not rows:
        return {}
    share = np.concatenate([caption.on_photo for caption in rows])
    image = np.repeat([caption.image for caption in rows], [len(c.words) for c in rows])
    content = ~np.isin([word for caption in rows for word in caption.words], list(FUNCTION_WORDS))
    known = ~np.isnan(share)
    return {
        "content": mean(share[known & content], image[known & content], images),
        "function": mean(share[known & ~content], image[known & ~content], images),
        "auroc": Auroc(share[known], content[known], image[known]),
    }
