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

from captioner.data.records import Record
from captioner.errors import EvaluationError
from captioner.evaluation.attention_maps import Batch, batches
from captioner.evaluation.bootstrap import Bootstrap, Estimate, Ratio, mean, of_image
from captioner.evaluation.deletion import DRAWS, ORDERS, SHARES, word_drops
from captioner.evaluation.image_statistics import Evaluation, ImageStatistics, Regime, fingerprint
from captioner.models.decoder import Decoder, index_batch
from captioner.models.distributions import hard_attention
from captioner.predictor import Predictor
from captioner.text import UNK, Tokenizer
from captioner.word_classes import FUNCTION_WORDS

MEASURES = (
    *("log_prob", "area_most", "area_random", "area_least"),
    *("most_over_random", "random_over_least"),
)
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
        records: images with reference captions.
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
        self._images: list[tuple[Record, str | None]] = []  # with the fingerprint of its captions
        self._words: list[str] = []
        self._image_of_word: list[int] = []
        self._values: list[np.ndarray] = []  # of each caption: MEASURES and curves, (T, M)
        self._shares: list[np.ndarray] = []  # of each caption: erased shares of the regions

    def add(self, batch: Batch) -> None:
        """Compute the deletion curves of some images."""
        captions: list[Sequence[int]] = []
        images = []  # of each caption: its image in the batch
        for number, index in enumerate(batch.indices):
            record = self._records[index]
            if self.regime == "generated":
                of_image = [batch.generated[number].tokens]
            else:
                of_image = self._references(record)
            words = tuple(tuple(map(self._vocabulary.words.__getitem__, ids)) for ids in of_image)
            captions += of_image
            images += [number] * len(of_image)
            self._words += [word for caption in words for word in caption]
            self._image_of_word += [len(self._images)] * sum(map(len, words))
            # Two models are compared on the same words only, unless each writes its own captions.
            asked = fingerprint(words) if self.regime == "forced" else None
            self._images.append((record, asked))
        if not captions:
            return
        chosen = torch.tensor(images, device=batch.annotations.vectors.device)
        annotations = index_batch(batch.annotations, chosen)
        for drop in word_drops(self._decoder, annotations, captions, seed=batch.seed):
            most, random, least = drop.areas.T
            measures = [drop.log_probs, most, random, least, most - random, random - least]
            values = torch.cat([torch.stack(measures, 1), drop.drops.flatten(1)], 1)
            self._values.append(values.double().cpu().numpy())
            self._shares.append(drop.shares.double().cpu().numpy())

    def _references(self, record: Record) -> list[list[int]]:
        """Encode the first captions of an image, cut to the model's maximal length."""
        words = [Tokenizer()(caption) for caption in record.captions[: self._captions]]
        return [
            self._vocabulary.encode(caption[: self._max_length]) for caption in words if caption
        ]

    def report(self, seed: int = 0, resamples: int = 2000) -> Evaluation:
        """Average over words, with intervals, for each group that has words.

        Raises:
            EvaluationError: the model knows no word of the captions.
        """
        words = np.array(self._words)
        known = words != self._vocabulary.words[UNK]
        if not known.any():
            raise EvaluationError(
                f"cannot measure faithfulness of {len(self._records)} photos: no caption holds a word "
                "that the model knows"
            )
        function = np.isin(words, list(FUNCTION_WORDS))
        groups = {"all": known, "content": known & ~function, "function": known & function}
        values, image = np.concatenate(self._values), np.array(self._image_of_word)
        images = len(self._images)
        means = {
            group: [mean(column[member], image[member], images) for column in values.T]
            for group, member in groups.items()
        }
        bootstrap = Bootstrap(images, resamples, seed)
        report = {
            "measure": "faithfulness",
            "regime": self.regime,
            "mechanism": self._decoder.mechanism,
            "images": images,
            "unknown_words": int((~known).sum()),
            "shares": np.mean(self._shares, 0).round(6).tolist(),
            "settings": {
                "captions_per_image": self._captions if self.regime == "forced" else 1,
                "largest_share": SHARES[-1],
                "draws": DRAWS,
                "seed": seed,
                "resamples": resamples,
            },
            "scores": {
                group: _scores(of_group, bootstrap)
                for group, of_group in means.items()
                if groups[group].any()
            },
        }
        measures = {
            f"{group}.{name}": measure
            for group, of_group in means.items()
            for name, measure in zip(MEASURES, of_group, strict=False)
        }
        part = f"{self.regime}.faithfulness"
        statistics = [
            ImageStatistics(record.image_id, of_image(measures, i), part=part, asked=asked)
            for i, (record, asked) in enumerate(self._images)
        ]
        return Evaluation(report, statistics)


def _scores(means: Sequence[Ratio], bootstrap: Bootstrap) -> dict[str, Any]:
    """Average over the words of a group, with intervals."""
    estimates = list(map(bootstrap.estimate, means))
    named = dict(zip(MEASURES, estimates, strict=False))
    drops = list(map(asdict, estimates[len(MEASURES) :]))
    return {
        **{name: asdict(estimate) for name, estimate in named.items()},
        "verdict": _verdict(named["most_over_random"], named["random_over_least"]),
        "words": round(means[0].numbers.sum()),
        "falls": {order: drops[o * POINTS : (o + 1) * POINTS] for o, order in enumerate(ORDERS)},
    }


def _deterministic(decoder: Decoder) -> Decoder:
    """Replace sampling by the argmax: two samples of a step differ even if nothing is erased."""
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
