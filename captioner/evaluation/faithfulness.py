"""Faithfulness: does a word's log-probability drop when the attended regions are erased?

Regions are erased with the greatest attention weights first, in random order, and with the least
weights first (``captioner.evaluation.deletion``). For faithful attention, most > random > least.

    curves, model = DeletionCurves(predictor, records), predictor.captioner
    for batch in batches(model, records, 8, failed := []):
        curves.add(batch)
    curves.report().report["scores"]["content"]["verdict"]
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from captioner.data.masks import MaskedImage
from captioner.data.records import Record
from captioner.errors import EvaluationError
from captioner.evaluation import adapted
from captioner.evaluation.adapted import AdapterBatch
from captioner.evaluation.attention_maps import Batch
from captioner.evaluation.bootstrap import Bootstrap, Ratio, mean
from captioner.evaluation.deletion import DRAWS, SHARES, LogProbDrop, word_drops
from captioner.evaluation.image_statistics import Evaluation, Regime, of_images
from captioner.evaluation.randomisation import randomised, rank_correlation
from captioner.language.vocabulary import SPECIALS, UNK, Tokenizer
from captioner.language.word_classes import FUNCTION_WORDS
from captioner.models.decoder import Decoder
from captioner.models.distributions import hard_attention
from captioner.models.tensors import index_batch
from captioner.predict.base_predictor import BasePredictor
from captioner.predict.explanations import explain
from captioner.predict.predictor import Predictor

MEASURES = (
    *("log_prob", "area_most", "area_random", "area_least"),
    *("most_over_random", "random_over_least"),
    *("insertion_most", "insertion_random", "insertion_most_over_random", "rank_correlation"),
)
"""Means over words, in nats: log-probability, areas under the curves of drops and of rises, and their
differences; and, for a ``Predictor``, the rank correlation of maps with those of a random decoder."""
ROUNDING = 1e-5  # nats; smaller differences of log-probabilities are float32 rounding errors


class DeletionCurves:
    """Deletion curves of the words of all images, which are added batch by batch.

    Hard attention that samples is measured at its most probable region.

    Args:
        predictor: the model, from ``captioner.load``.
        records: images with reference captions.
        regime: ``forced``: the first reference caption of each image is fed in; ``generated``: the
            model's own captions.
        method: the maps that rank the regions: see ``captioner.predict.explanations``.
    """

    def __init__(
        self,
        predictor: BasePredictor,
        records: Sequence[Record] | Sequence[MaskedImage],
        regime: Regime = "forced",
        method: str = "attention",
    ) -> None:
        self.regime, self._method, self._records = regime, method, records
        self._mechanism, self._max_length = predictor.mechanism, predictor.decoding.max_length
        if isinstance(predictor, Predictor):
            self._decoder = deterministic(predictor.captioner.decoder)
            self._randomised = randomised(self._decoder)
            self._mechanism, self._vocabulary = self._decoder.mechanism, predictor.vocabulary
        self._ids: list[int | str] = []  # of each image
        self._captions: list[tuple[str, ...]] = []  # of each image
        self._values: list[np.ndarray] = []  # of each caption: MEASURES, (T, M)

    def add(self, batch: Batch | AdapterBatch) -> None:
        """Compute the deletion curves of some images."""
        firsts = [next(filter(str.strip, self._records[i].captions), "") for i in batch.indices]
        if isinstance(batch, AdapterBatch):
            texts = ["".join(reading.pieces).strip() for reading in batch.generated]
            if self.regime == "forced":
                texts = firsts
            for index, photo, text in zip(batch.indices, batch.photos, texts, strict=True):
                if text:
                    seed = batch.seed + index
                    self.add_caption(index, *adapted.word_drops(batch.adapter, photo, text, seed))
            return
        tokens = [best.tokens for best in batch.generated]
        if self.regime == "forced":
            words = [Tokenizer()(caption)[: self._max_length] for caption in firsts]
            tokens = list(map(self._vocabulary.encode, words))
        curves = self._curves(batch, list(filter(None, tokens)), list(map(bool, tokens)))
        for index, ids in zip(batch.indices, tokens, strict=True):
            self.add_caption(index, self._vocabulary.decode(ids), *(next(curves) if ids else ()))

    def _curves(
        self, batch: Batch, captions: Sequence[Sequence[int]], written: Sequence[bool]
    ) -> Iterator[tuple[LogProbDrop, np.ndarray]]:
        """Yield the curves and the rank correlations of the words of each caption."""
        chosen = torch.tensor(written, device=batch.annotations.vectors.device).nonzero().flatten()
        annotations = index_batch(batch.annotations, chosen)

        def explained(decoder: Any) -> list[torch.Tensor]:
            pairs = enumerate(captions)
            return [explain(decoder, annotations.of(b), ids, self._method) for b, ids in pairs]

        maps, others = explained(self._decoder), explained(self._randomised)
        # Without maps, a region that hard attention chose comes before more probable ones.
        given = None if self._method == "attention" else maps
        drops = word_drops(self._decoder, annotations, captions, seed=batch.seed, maps=given)
        for drop, one, other in zip(drops, maps, others, strict=True):
            yield drop, rank_correlation(one, other).numpy()

    def add_caption(
        self,
        index: int,
        words: Sequence[str],
        drops: LogProbDrop | None = None,
        correlations: np.ndarray | None = None,
    ) -> None:
        """Add a caption of an image: its curves, if it has words, and their rank correlations."""
        self._ids.append(self._records[index].image_id)
        self._captions.append(tuple(words))
        if drops is None:
            return
        most, random, least = drops.areas.T
        measures = [drops.log_probs, most, random, least, most - random, random - least]
        most, random, _ = drops.insertion_areas.T
        measures += [most, random, most - random]
        columns = [measure.double().cpu().numpy() for measure in measures]
        known = [] if correlations is None else [correlations]
        self._values.append(np.stack([*columns, *known], 1))

    def report(self, seed: int = 0, resamples: int = 2000) -> Evaluation:
        """Average over words, with intervals, for each group that has words.

        Raises:
            EvaluationError: the model knows no word of the captions.
        """
        words = np.array([word for caption in self._captions for word in caption])
        image = np.repeat(np.arange(len(self._ids)), list(map(len, self._captions)))
        known = words != SPECIALS[UNK]
        if not known.any():
            raise EvaluationError("no caption of a photo holds a word that the model knows")
        function = np.isin(words, list(FUNCTION_WORDS))
        groups = {"all": known, "content": known & ~function, "function": known & function}
        values, bootstrap = np.concatenate(self._values), Bootstrap(len(self._ids), resamples, seed)
        scores: dict[str, Any] = {}
        measures: dict[str, Ratio] = {}
        for group, member in groups.items():
            columns = [mean(column[member], image[member], len(self._ids)) for column in values.T]
            means = dict(zip(MEASURES, columns, strict=False))
            measures |= {f"{group}.{name}": of for name, of in means.items()}
            if member.any():
                found = bootstrap.intervals(means)
                verdict = _verdict(found["most_over_random"], found["random_over_least"])
                scores[group] = {**found, "verdict": verdict, "words": int(member.sum())}
        sizes = {"captions_per_image": 1, "largest_share": SHARES[-1], "draws": DRAWS}
        report = {
            "measure": "faithfulness",
            "regime": self.regime,
            "mechanism": self._mechanism,
            "method": self._method,
            "images": len(self._ids),
            "unknown_words": int((~known).sum()),
            "settings": sizes | {"seed": seed, "resamples": resamples},
            "scores": scores,
        }
        ids, scored = dict(enumerate(self._ids)), [(caption,) for caption in self._captions]
        return Evaluation(report, of_images(ids, measures, self.regime, "faithfulness", scored))


def deterministic(decoder: Decoder) -> Decoder:
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
