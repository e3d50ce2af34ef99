"""Faithfulness: does a word's log-probability drop when the attended regions are erased?

A plausible map need not be what the word depends on (Jain, Wallace 2019, arXiv 1902.10186). Regions
are erased with the greatest attention weights first, in random order, and with the least weights
first (``captioner.evaluation.deletion``). For faithful attention, most > random > least.

    result = measure(captioner.load("runs/soft"), records)
    result.report["scores"]["content"]["area_most"], result.report["scores"]["content"]["verdict"]
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from captioner.data.records import Record
from captioner.errors import EvaluationError
from captioner.evaluation.attention_maps import Batch, batches
from captioner.evaluation.bootstrap import Bootstrap, Estimate, ratio
from captioner.evaluation.deletion import DRAWS, ORDERS, SHARES, LogProbDrop, word_drops
from captioner.evaluation.image_statistics import Evaluation, ImageStatistics, Regime, fingerprint
from captioner.evaluation.word_classes import FUNCTION_WORDS
from captioner.models.decoder import Decoder, index_batch
from captioner.models.distributions import hard_attention, samples_locations
from captioner.predictor import Predictor
from captioner.text import UNK, Tokenizer

GROUPS = ("all", "content", "function")
"""Groups of words that are reported; words that the model does not know are in none of them."""
AREAS = ("area_most", "area_random", "area_least", "most_over_random", "random_over_least")
MEASURES = ("log_prob", *AREAS)
"""Means over words, in nats: log-probability, areas under the drop curves, differences of areas."""
POINTS = len(SHARES) + 1  # of a deletion curve
ROUNDING = 1e-5  # nats; smaller differences of log-probabilities are float32 rounding errors


def measure(
    predictor: Predictor,
    records: Sequence[Record],
    regime: Regime = "forced",
    *,
    captions: int = 1,
    batch_size: int = 8,
    seed: int = 0,
    resamples: int = 2000,
) -> Evaluation:
    """Measure the faithfulness of a captioner's attention.

    Takes the arguments of ``DeletionCurves``, ``batches`` and ``DeletionCurves.report``, and raises
    their errors.
    """
    curves = DeletionCurves(predictor, records, regime, captions)
    failed: list[str] = []
    decoding = predictor.decoding if regime == "generated" else None
    model = predictor.captioner
    for batch in batches(model, records, batch_size, failed, decoding=decoding, seed=seed):
        curves.add(batch)
    evaluation = curves.report(seed, resamples)
    evaluation.report["failed"] = failed
    return evaluation


class DeletionCurves:
    """Deletion curves of the words of all images, which are added batch by batch.

    Hard attention that samples is measured at its most probable region. Its generated captions are
    still those of its samples.

    Args:
        predictor: the model, from ``captioner.load``.
        records: images with reference captions. Unreadable images are left out and reported.
        regime: ``forced``: reference captions are fed in; ``generated``: the model's own captions.
        captions: number of reference captions per image, the first ones; unused for ``generated``.
    """

    def __init__(
        self,
        predictor: Predictor,
        records: Sequence[Record],
        regime: Regime = "forced",
        captions: int = 1,
    ) -> None:
        self.regime = regime
        self._records, self._captions = records, captions
        self._decoder = _deterministic(predictor.captioner.decoder)
        self._vocabulary, self._max_length = predictor.vocabulary, predictor.decoding.max_length
        self._images: list[ImageStatistics] = []
        self._words: list[np.ndarray] = []  # of each image: number of words by group
        self._sums: list[np.ndarray] = []  # of each image: sums over these words
        self._shares: list[np.ndarray] = []  # of each caption: erased shares of the regions
        self._unknown_words = 0

    def add(self, batch: Batch) -> None:
        """Compute the deletion curves of some images."""
        records = [self._records[index] for index in batch.indices]
        if self.regime == "generated":
            ids = [[best.tokens] for best in batch.generated]
        else:
            ids = [self._references(record) for record in records]
        flat = [caption for of_image in ids for caption in of_image]
        images = [index for index, of_image in enumerate(ids) for _ in of_image]
        device = batch.annotations.vectors.device
        selected = index_batch(batch.annotations, torch.tensor(images, device=device))
        drops = iter(word_drops(self._decoder, selected, flat, seed=batch.seed) if flat else ())
        for record, of_image in zip(records, ids, strict=True):
            self._add_image(record, of_image, [next(drops) for _ in of_image])

    def _references(self, record: Record) -> list[list[int]]:
        """Encode the first captions of an image, cut to the model's maximal length."""
        words = [Tokenizer()(caption) for caption in record.captions[: self._captions]]
        return [
            self._vocabulary.encode(caption[: self._max_length]) for caption in words if caption
        ]

    def _add_image(
        self, record: Record, captions: Sequence[Sequence[int]], drops: Sequence[LogProbDrop]
    ) -> None:
        """Sum MEASURES and the points of all curves over the words of an image."""
        words = np.zeros(len(GROUPS))
        sums = np.zeros((len(GROUPS), len(MEASURES) + len(ORDERS) * POINTS))
        for ids, drop in zip(captions, drops, strict=True):
            known = np.array([word != UNK for word in ids])
            function = np.array([self._vocabulary.words[word] in FUNCTION_WORDS for word in ids])
            member = np.stack([known, known & ~function, known & function]).astype(np.float64)
            most, random, least = drop.areas.T
            measures = [drop.log_probs, most, random, least, most - random, random - least]
            values = torch.cat([torch.stack(measures, 1), drop.drops.flatten(1)], 1)  # T M
            words += member.sum(1)
            sums += member @ values.double().cpu().numpy()
            self._shares.append(drop.shares.double().cpu().numpy())
            self._unknown_words += int((~known).sum())
        self._words.append(words)
        self._sums.append(sums)
        ratios = {
            f"{group}.{name}": (float(sums[g, m]), float(words[g]))
            for g, group in enumerate(GROUPS)
            for m, name in enumerate(MEASURES)
        }
        # Two models are compared on the same words only, unless each writes its own captions.
        text = tuple(
            tuple(self._vocabulary.words[word] for word in caption) for caption in captions
        )
        asked = fingerprint(text) if self.regime == "forced" else None
        part = f"{self.regime}.faithfulness"
        self._images.append(ImageStatistics(record.image_id, ratios, part=part, asked=asked))

    def report(self, seed: int = 0, resamples: int = 2000) -> Evaluation:
        """Average over words, with intervals, for each group that has words.

        Raises:
            EvaluationError: the model knows no word of the captions.
        """
        if not any(numbers[0] for numbers in self._words):
            raise EvaluationError(
                f"cannot measure faithfulness of {len(self._records)} photos: no caption holds a word "
                "that the model knows"
            )
        bootstrap = Bootstrap(len(self._images), resamples, seed)
        columns = zip(GROUPS, np.stack(self._words).T, np.stack(self._sums, 2), strict=True)
        report = {
            "measure": "faithfulness",
            "regime": self.regime,
            "mechanism": self._decoder.mechanism,
            "erased": "the image's mean annotation replaces a region's, at the word's own step only",
            "images": len(self._images),
            "unknown_words": self._unknown_words,
            "shares": np.mean(self._shares, 0).round(6).tolist(),
            "settings": {
                "captions_per_image": self._captions if self.regime == "forced" else 1,
                "largest_share": SHARES[-1],
                "draws": DRAWS,
                "seed": seed,
                "resamples": resamples,
            },
            "scores": {
                g: _scores(words, sums, bootstrap) for g, words, sums in columns if words.any()
            },
        }
        return Evaluation(report, self._images)


def _scores(
    words: Float64[np.ndarray, " I"], sums: Float64[np.ndarray, "M I"], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Average over the words of a group, with intervals."""
    means = [bootstrap.estimate(ratio(column, words)) for column in sums]
    named = dict(zip(MEASURES, means, strict=False))
    drops = list(map(asdict, means[len(MEASURES) :]))
    return {
        **{name: asdict(mean) for name, mean in named.items()},
        "verdict": _verdict(named["most_over_random"], named["random_over_least"]),
        "words": round(words.sum()),
        "falls": {order: drops[o * POINTS : (o + 1) * POINTS] for o, order in enumerate(ORDERS)},
    }


def _deterministic(decoder: Decoder) -> Decoder:
    """Replace sampling by the argmax: two samples of a step differ even if nothing is erased."""
    if not samples_locations(decoder):
        return decoder
    decoder = copy.deepcopy(decoder)
    for distribution in hard_attention(decoder):
        if distribution.test_time == "sample":
            distribution.test_time = "argmax"
    return decoder


def _verdict(most_over_random: Estimate, random_over_least: Estimate) -> str:
    """State whether most > random > least holds; ≈ if the interval of a difference contains 0."""
    upper, lower = (
        ">" if difference.low > ROUNDING else "<" if difference.high < -ROUNDING else "≈"
        for difference in (most_over_random, random_over_least)
    )
    ordering = f"most {upper} random {lower} least"
    expected = "most > random > least"
    return f"{expected} holds" if ordering == expected else f"{expected} does not hold: {ordering}"
