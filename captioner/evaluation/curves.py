"""What erasing regions costs groups of words: what each image adds, and means with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from captioner.data.records import Record
from captioner.evaluation.bootstrap import Bootstrap, Estimate, ratio
from captioner.evaluation.deletion import ORDERS, Falls, Order
from captioner.evaluation.function_words import FUNCTION_WORDS
from captioner.evaluation.tallies import Tally, fingerprint
from captioner.text import UNK, Vocabulary

GROUPS = ("all", "content", "function")
ROUNDING = 1e-5
"""Of log-probabilities in single precision, in nats: no smaller difference means anything."""


@dataclass(frozen=True)
class Curves:
    """What erasing regions costs a group of words, with 95 % bootstrap intervals over images.

    Attributes:
        words: how many.
        log_prob: their mean log-probability, nothing erased; nats.
        falls: for every order and share of regions, how far it falls; nats.
        areas: for every order the area over the curve: the mean of the fall along it.
        most_over_random: the difference of two areas, image by image; and
        random_over_least: likewise.
    """

    words: int
    log_prob: Estimate
    falls: dict[Order, list[Estimate]]
    areas: dict[Order, Estimate]
    most_over_random: Estimate
    random_over_least: Estimate

    @property
    def verdict(self) -> str:
        """Whether most > random > least, as far as the intervals can say."""
        pairs = (self.most_over_random, self.random_over_least)
        upper, lower = (_sign(difference) for difference in pairs)
        found = f"most {upper} random {lower} least"
        if found == "most > random > least":
            return f"{found} holds"
        return f"most > random > least does not hold: {found}"

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "log_prob": self.log_prob.as_dict(),
            **{f"area_{order}": area.as_dict() for order, area in self.areas.items()},
            "most_over_random": self.most_over_random.as_dict(),
            "random_over_least": self.random_over_least.as_dict(),
            "verdict": self.verdict,
            "words": self.words,
            "falls": {o: [f.as_dict() for f in falls] for o, falls in self.falls.items()},
        }


def _sign(difference: Estimate) -> str:
    """How two measures stand to each other; ≈ where the interval of their difference holds 0."""
    if difference.low > ROUNDING:
        return ">"
    return "<" if difference.high < -ROUNDING else "≈"


@dataclass(frozen=True)
class Sums:
    """Over the words of one image: for each of ``GROUPS`` how many there are, and what they add up to.

    Attributes:
        image_id: as the record has it.
        words: how many.
        log_probs: of each group.
        falls: for every order and number of regions.
        areas: for every order.
        said: the words of its captions, as the model reads them.
    """

    image_id: int | str
    words: Float64[np.ndarray, " G"]
    log_probs: Float64[np.ndarray, " G"]
    falls: Float64[np.ndarray, "G 3 Q"]
    areas: Float64[np.ndarray, "G 3"]
    said: tuple[tuple[str, ...], ...]

    def tally(self, part: str, fixed: bool) -> Tally:
        """The measures in which models are compared.

        Args:
            part: of a report, that they are of.
            fixed: whether the captions were given, so that models are compared on the same words only.
        """
        ratios = {}
        for g, group in enumerate(GROUPS):
            most, random, least = self.areas[g]
            measures = {
                "log_prob": self.log_probs[g],
                **{f"area_{order}": self.areas[g, o] for o, order in enumerate(ORDERS)},
                "most_over_random": most - random,
                "random_over_least": random - least,
            }
            for name, total in measures.items():
                ratios[f"{group}.{name}"] = (float(total), float(self.words[g]))
        asked = fingerprint(self.said) if fixed else None
        return Tally(self.image_id, ratios, part=part, asked=asked)


def sums_of(
    record: Record,
    captions: Sequence[Sequence[int]],
    found: Sequence[Falls],
    vocabulary: Vocabulary,
    shares: int,
) -> Sums:
    """What a photo adds, one region and so many shares of them erased."""
    groups, orders = len(GROUPS), len(ORDERS)
    image = Sums(
        record.image_id,
        np.zeros(groups),
        np.zeros(groups),
        np.zeros((groups, orders, shares + 1)),
        np.zeros((groups, orders)),
        tuple(tuple(vocabulary.words[word] for word in ids) for ids in captions),
    )
    for ids, falls in zip(captions, found, strict=True):
        known = np.array([word != UNK for word in ids])
        function = np.array([vocabulary.words[word] in FUNCTION_WORDS for word in ids])
        member = np.stack([known, known & ~function, known & function]).astype(np.float64)  # G T
        for total, values in (
            (image.words, torch.ones_like(falls.log_probs)),
            (image.log_probs, falls.log_probs),
            (image.falls, falls.falls),
            (image.areas, falls.areas),
        ):
            total += np.tensordot(member, values.double().cpu().numpy(), 1)
    return image


def curves_of(sums: Sequence[Sums], bootstrap: Bootstrap) -> dict[str, Curves]:
    """The means over words, by group; a group without a word is left out."""
    words, log_probs, falls, areas = (
        np.stack([getattr(image, name) for image in sums])
        for name in ("words", "log_probs", "falls", "areas")
    )
    found = {}
    for g, group in enumerate(GROUPS):
        if not words[:, g].any():
            continue

        def mean(totals: np.ndarray, numbers: np.ndarray = words[:, g]) -> Estimate:
            return bootstrap.estimate(ratio(totals, numbers))

        most, random, least = areas[:, g].T
        found[group] = Curves(
            round(words[:, g].sum()),
            mean(log_probs[:, g]),
            {order: [mean(level) for level in falls[:, g, o].T] for o, order in enumerate(ORDERS)},
            {order: mean(areas[:, g, o]) for o, order in enumerate(ORDERS)},
            mean(most - random),
            mean(random - least),
        )
    return found
