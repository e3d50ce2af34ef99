"""Objects named in generated captions: are they in the image, and does attention point at them?

F1-all and F1-loc follow Zhou et al. 2019 (Grounded Video Description), but with the pointing game on
masks instead of an IoU of boxes above ½. CHAIR follows Rohrbach et al. 2018.
"""

from collections import defaultdict
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

    ``pointing`` has the pointing score of each scored mention, in percent, by kind of map. Returns the
    report, and the model's measures.
    """
    data, images = collected.data, len(collected.data.images)
    # Measure → the sum and the number of each image.
    shares: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((2, images)))
    counted = np.zeros(images)  # named categories and targets
    named = targets = mentions = 0
    correct: list[tuple[int, int]] = []  # (image, mention)
    for caption in collected.captions:
        index, image = caption.image, data.images[caption.image]
        target, present = _categories(caption, data)
        hallucinated = [mention.category not in present for mention, _ in caption.mentions]
        mentions += len(hallucinated)
        shares["chair_i"][:, index] += 100 * sum(hallucinated), len(hallucinated)
        shares["chair_s"][:, index] += 100 * any(hallucinated), 1
        if data.generated:
            is_true = true_of(" ".join(caption.words), image.objects)
            shares["true_captions"][:, index] += 100 * is_true, 1
        first = {mention.category: number for mention, number in reversed(caption.mentions)}
        new = sum(category in target or category not in present for category in first)
        named, targets = named + new, targets + len(target)
        counted[index] += new + len(target)
        correct += [
            (index, n) for category, n in first.items() if category in target and n is not None
        ]

    measures = {name: Ratio(*of_images) for name, of_images in shares.items()}
    report: dict[str, Any] = {
        "named": named,
        "to_be_named": targets,
        "right": len(correct),
        "mentions": mentions,
        **bootstrap.intervals(measures),
    }
    image_of, number = np.array(correct, int).reshape(-1, 2).T
    for kind, of_mentions in pointing.items():
        grounded = mean(of_mentions[number], image_of, images)
        f1 = {"f1_all": Ratio(2 * grounded.sums, counted), "f1_loc": grounded}
        report[kind] = bootstrap.intervals(f1)
        if kind == "model":
            measures |= f1
    return report, measures


def _categories(caption: CaptionRecord, data: MaskedImages) -> tuple[set[str], set[str]]:
    """Return the target categories of a caption's image, and all categories that it shows."""
    image, tokenizer = data.images[caption.image], Tokenizer()
    words = [tokenizer(text) for text in image.captions]
    references = {mention.category for w in words for mention in data.mentions(w, image)}
    return references & set(image.categories), references | image.present
