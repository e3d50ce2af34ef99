"""Objects named in generated captions: are they in the image, and does attention point at them?

F1-all and F1-loc follow Zhou et al. 2019 (Grounded Video Description), but with the pointing game on
masks instead of an IoU of boxes above ½. CHAIR follows Rohrbach et al. 2018.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from captioner.data.masks import MaskedImages
from captioner.data.scene_grammar import true_of
from captioner.evaluation.bootstrap import Bootstrap, Ratio, mean
from captioner.evaluation.mentions import CaptionRecord, GroundingData
from captioner.text import Tokenizer


def named_objects(
    collected: GroundingData,
    pointing: Mapping[str, Float64[np.ndarray, " N"]],
    bootstrap: Bootstrap,
) -> tuple[dict[str, Any], dict[str, Ratio]]:
    """Compute F1-all, F1-loc and CHAIR in percent with their intervals.

    The target categories of an image have a mask and are named by a reference caption. A category in
    the caption (counted once, by its first mention) is correct if it is a target and refers to
    objects of the image. It is grounded if the map also points into their mask. Categories that are in
    the image, but are not targets, count neither as correct nor as wrong.

    - ``f1_all`` = 2 · grounded / (named + targets).
    - ``f1_loc`` = grounded / correct.
    - ``chair_i``: percentage of mentions whose category is neither annotated nor in a reference;
      ``chair_s``: percentage of captions with such a mention. Lower is better.
    - ``true_captions``, generated scenes only: percentage of captions that ``true_of`` accepts.

    Args:
        collected: generated captions, one per image.
        pointing: kind of map → pointing score of each scored mention, in percent.
        bootstrap: resamples of the images.

    Returns:
        The report, and the model's measures.
    """
    data, images = collected.data, len(collected.data.images)
    named, targets, correct = [], [], []  # images of categories; correct: (image, mention)
    mentions, captions, true = [], [], []  # (image, whether it is hallucinated or true)
    for caption in collected.captions:
        index, image = caption.image, data.images[caption.image]
        target, present = _categories(caption, data)
        targets += [index] * len(target)
        hallucinated = [mention.category not in present for mention, _ in caption.mentions]
        mentions += [(index, is_hallucinated) for is_hallucinated in hallucinated]
        captions.append((index, any(hallucinated)))
        if data.generated:
            true.append((index, true_of(" ".join(caption.words), image.objects)))
        first = {mention.category: number for mention, number in reversed(caption.mentions)}
        named += [index for category in first if category in target or category not in present]
        correct += [
            (index, n) for category, n in first.items() if category in target and n is not None
        ]

    shares = {"chair_i": mentions, "chair_s": captions} | ({"true_captions": true} if true else {})
    measures = {}
    for name, rows in shares.items():
        of_image, marked = _columns(rows)
        measures[name] = mean(100 * marked, of_image, images)
    report: dict[str, Any] = {
        "named": len(named),
        "to_be_named": len(targets),
        "right": len(correct),
        "mentions": len(mentions),
        **bootstrap.intervals(measures),
    }
    correct_image, number = _columns(correct)
    counted = np.array(named + targets, int)
    f1 = {
        kind: {
            "f1_all": mean(2 * of_mentions[number], correct_image, images, counted),
            "f1_loc": mean(of_mentions[number], correct_image, images),
        }
        for kind, of_mentions in pointing.items()
    }
    report |= {kind: bootstrap.intervals(of_kind) for kind, of_kind in f1.items()}
    return report, measures | f1["model"]


def _categories(caption: CaptionRecord, data: MaskedImages) -> tuple[set[str], set[str]]:
    """Return the target categories of a caption's image, and all categories that it shows."""
    image, tokenizer = data.images[caption.image], Tokenizer()
    words = [tokenizer(text) for text in image.captions]
    references = {mention.category for w in words for mention in data.mentions(w, image)}
    return references & set(image.categories), references | image.present


def _columns(rows: list[Any]) -> np.ndarray:
    return np.array(rows, dtype=int).reshape(-1, 2).T
