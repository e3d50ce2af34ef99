"""Faithfulness: does a word's log-probability drop when the attended regions are erased?

A plausible map need not be what the word depends on (Jain, Wallace 2019, arXiv 1902.10186). Regions
are erased with the greatest attention weights first, in random order, and with the least weights
first (``captioner.evaluation.deletion``). For faithful attention, most > random > least.

    curves, model = DeletionCurves(predictor, records), predictor.captioner
    for batch in batches(model, records, 8, failed := []):
        curves.add(batch)
    curves.report().report["scores"]["content"]["verdict"]
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from captioner.data.masks import MaskedImage
from captioner.data.records import Record
from captioner.errors import EvaluationError
from captioner.evaluation.attention_maps import Batch
from captioner.evaluation.bootstrap import Bootstrap, Ratio, mean
from captioner.evaluation.deletion import DRAWS, SHARES, LogProbDrop, word_drops
from captioner.evaluation.image_statistics import Evaluation, Regime, of_images
from captioner.models.decoder import Decoder, index_batch
from captioner.models.distributions import hard_attention
from captioner.predictor import BasePredictor, Predictor
from captioner.text import SPECIALS, UNK, Tokenizer
from captioner.word_classes import FUNCTION_WORDS

MEASURES = (
    *("log_prob", "area_most", "area_random", "area_least"),
    *("most_over_random", "random_over_least"),
)
"""Means over words, in nats: log-probability, areas under the drop curves, differences of areas."""
ROUNDING = 1e-5  # nats; smaller differences of log-probabilities are float32 rounding errors


class DeletionCurves:
    """Deletion curves of the words of all images, which are added batch by batch.

    Hard attention that samples is measured at its most probable region.

    Args:
        predictor: the model, from ``captioner.load``.
        records: images with reference captions.
        regime: ``forced``: the first reference caption of each image is fed in; ``generated``: the
            model's own captions.
    """

    def __init__(
        self,
        predictor: BasePredictor,
        records: Sequence[Record] | Sequence[MaskedImage],
        regime: Regime = "forced",
    ) -> None:
        self.regime = regime
        self._records = records
        self._mechanism, self._max_length = predictor.mechanism, predictor.decoding.max_length
        if isinstance(predictor, Predictor):
            self._decoder = _deterministic(predictor.captioner.decoder)
            self._mechanism, self._vocabulary = self._decoder.mechanism, predictor.vocabulary
        self._ids: list[int | str] = []  # of each image
        self._captions: list[tuple[str, ...]] = []  # of each image
        self._values: list[np.ndarray] = []  # of each caption: MEASURES, (T, M)

    def add(self, batch: Batch) -> None:
        """Compute the deletion curves of some images, for a ``Predictor``."""
        tokens = [best.tokens for best in batch.generated]
        if self.regime == "forced":
            first = [[*self._records[index].captions, ""][0] for index in batch.indices]
            words = [Tokenizer()(caption)[: self._max_length] for caption in first]
            tokens = list(map(self._vocabulary.encode, words))
        captions = [tuple(self._vocabulary.decode(ids)) for ids in tokens]
        nonempty = [number for number, ids in enumerate(tokens) if ids]
        if not nonempty:
            return self._add(batch.indices, captions, [])
        chosen = torch.tensor(nonempty, device=batch.annotations.vectors.device)
        annotations = index_batch(batch.annotations, chosen)
        written = [tokens[number] for number in nonempty]
        drops = word_drops(self._decoder, annotations, written, seed=batch.seed)
        return self._add(batch.indices, captions, drops)

    def add_caption(self, index: int, words: Sequence[str], drops: LogProbDrop) -> None:
        """Add the deletion curves of a caption of an image."""
        self._add([index], [tuple(words)], [drops])

    def _add(
        self,
        indices: Sequence[int],
        captions: Sequence[tuple[str, ...]],
        drops: Sequence[LogProbDrop],
    ) -> None:
        self._ids += [self._records[index].image_id for index in indices]
        self._captions += captions
        for drop in drops:
            most, random, least = drop.areas.T
            measures = [drop.log_probs, most, random, least, most - random, random - least]
            self._values.append(torch.stack(measures, 1).double().cpu().numpy())

    def report(self, seed: int = 0, resamples: int = 2000) -> Evaluation:
        """Average over words, with intervals, for each group that has words.

        Raises:
            EvaluationError: the model knows no word of the captions.
        """
        words = np.array([word for caption in self._captions for word in caption])
        image = np.repeat(np.arange(len(self._ids)), list(map(len, self._captions)))
        known = words != SPECIALS[UNK]
        if not known.any():
            raise EvaluationError(
                "cannot measure faithfulness: no caption of a photo holds a word that the model knows"
            )
        function = np.isin(words, list(FUNCTION_WORDS))
        groups = {"all": known, "content": known & ~function, "function": known & function}
        values, bootstrap = np.concatenate(self._values), Bootstrap(len(self._ids), resamples, seed)
        scores: dict[str, Any] = {}
        measures: dict[str, Ratio] = {}
        for group, member in groups.items():
            columns = [mean(column[member], image[member], len(self._ids)) for column in values.T]
            means = dict(zip(MEASURES, columns, strict=True))
            measures |= {f"{group}.{name}": of for name, of in means.items()}
            if member.any():
                found = bootstrap.intervals(means)
                verdict = _verdict(found["most_over_random"], found["random_over_least"])
                scores[group] = {**found, "verdict": verdict, "words": int(member.sum())}
        report = {
            "measure": "faithfulness",
            "regime": self.regime,
            "mechanism": self._mechanism,
            "images": len(self._ids),
            "unknown_words": int((~known).sum()),
            "settings": {
                "captions_per_image": 1,
                "largest_share": SHARES[-1],
                "draws": DRAWS,
                "seed": seed,
                "resamples": resamples,
            },
            "scores": scores,
        }
        ids, asked = dict(enumerate(self._ids)), [(caption,) for caption in self._captions]
        return Evaluation(report, of_images(ids, measures, self.regime, "faithfulness", asked))


def _deterministic(decoder: Decoder) -> Decoder:
    """Replace sampling by the argmax: two samples of a step differ even if nothing is erased."""
    decoder = copy.deepcopy(decoder)
    for distribution in hard_attention(decoder):
        if distribution.test_time == "sample":
            distribution.test_time = "argmax"
    return decoder


def _verdict(most_over_random: dict[str, Any], random_over_least: dict[str, Any]) -> str:
    """State whether most > random > least holds; ≈ if the interval of a difference contains 0."""
    upper, lower = (
        ">" if difference["low"] > ROUNDING else "<" if difference["high"] < -ROUNDING else "≈"
        for difference in (most_over_random, random_over_least)
    )
    ordering = f"most {upper} random {lower} least"
    expected = "most > random > least"
    return f"{expected} holds" if ordering == expected else f"{expected} does not hold: {ordering}"
