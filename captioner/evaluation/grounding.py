"""Grounding: does attention look at the object that a word names?

*Forced* captions are the references, fed to the model word by word, so that every model is scored on
the same mentions. *Generated* captions are the model's own. The map of a word is the attention with
which the model predicts it, before the word itself is an input. The model's maps and baseline maps are
compared with object masks; the metrics have bootstrap confidence intervals.

    collected = GroundingData(model, data, "forced")
    for batch in batches(model, data.images, 16, failed := []):
        collected.add(batch)
    collected.report().report["scores"]["model"]["discrimination"]
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from captioner.data.masks import MaskedImages
from captioner.data.scene_grammar import Mention, true_of
from captioner.evaluation.attention_maps import Batch, forced_maps
from captioner.evaluation.bootstrap import Bootstrap, Ratio, mean
from captioner.evaluation.image_statistics import Evaluation, Regime, of_images
from captioner.evaluation.localisation import (
    discrimination,
    entropies,
    mass,
    mean_of_others,
    normalised,
    oracle,
    pointing,
)
from captioner.models.captioner import Captioner
from captioner.text import UNK, Tokenizer

MAPS = {
    "model": "model",
    "chances": "sampling probabilities",
    "time_averaged": "mean over the caption's words",
    "mean_mask": "mean mask of other images",
    "uniform": "uniform",
    "oracle": "oracle (upper bound)",
}
"""The maps that are scored, with their names in tables. ``chances`` exists for hard attention only,
where ``model`` is the chosen cell."""

LEFT_OUT = ("unknown_words", "mentions_of_unknown_words", "masks_of_whole_picture")
OVERLAP = 0.1  # masks that share at most this fraction of the smaller one count as disjoint
MIN_IMAGES = 20  # fewer images do not support a verdict


class CaptionRecord(NamedTuple):
    """A caption and the objects that it mentions."""

    image: int  # index of its image in the data set
    words: Sequence[str]
    mentions: list[tuple[Mention, int | None]]  # with the index among the scored ones, if scored
    entropies: Float64[np.ndarray, " T"]  # of each word's attention, nats


class MentionRecord(NamedTuple):
    """A mention that is scored."""

    image: int  # index of its image in the data set
    mention: Mention
    mask: Float64[np.ndarray, " L"]  # fraction of each cell that the named objects cover
    maps: dict[str, np.ndarray]  # kind of map → mean over the mention's words, (L,)


class GroundingData:
    """Captions, mentions and maps of all images, which are added batch by batch.

    Args:
        captioner: in eval mode; None if ``add_caption`` is called instead of ``add``.
        data: images with masks, and for ``forced`` with captions.
        regime: ``forced`` (reference captions) or ``generated`` (the model's own).
    """

    def __init__(self, captioner: Captioner | None, data: MaskedImages, regime: Regime) -> None:
        self.data, self.regime = data, regime
        self.images: list[int] = []  # indices of the images that could be read
        self.grid = (1, 1)  # (rows, columns) of all maps, which are flat, in raster order
        self.captions: list[CaptionRecord] = []
        self.mentions: list[MentionRecord] = []  # that are scored
        self.pairs: list[
            tuple[int, int]
        ] = []  # of mentions in one caption whose masks are disjoint
        self.left_out = dict.fromkeys(LEFT_OUT, 0)
        self._captioner = captioner

    def add(self, batch: Batch) -> None:
        """Compute the maps of some images."""
        assert self._captioner is not None
        self.grid = batch.annotations.grid
        self.images += batch.indices
        images, vocabulary = self.data.images, self._captioner.vocabulary
        if self.regime == "forced":
            # Decoders are faster if the longest captions come first.
            split = [filter(None, map(Tokenizer(), images[i].captions)) for i in batch.indices]
            words = [sorted(captions, key=len, reverse=True) for captions in split]
            tokens = [[vocabulary.encode(caption) for caption in captions] for captions in words]
        else:
            tokens = [[best.tokens] for best in batch.generated]
            words = [[vocabulary.decode(ids)] for [ids] in tokens]
        with torch.random.fork_rng():
            torch.manual_seed(batch.seed)  # hard attention may sample
            weights, probs = forced_maps(self._captioner.decoder, batch.annotations, tokens)
        if self.regime == "generated":  # the weights, or chosen cells, of the search
            weights = [[best.weights] for best in batch.generated]
        kinds = {"model": weights} if probs is None else {"model": weights, "chances": probs}
        for b, index in enumerate(batch.indices):
            for r, caption in enumerate(words[b]):
                maps = {name: normalised(kind[b][r].numpy()) for name, kind in kinds.items()}
                self.add_caption(index, caption, maps, [id == UNK for id in tokens[b][r]])

    def add_caption(
        self,
        index: int,
        words: Sequence[str],
        maps: dict[str, np.ndarray],
        unknown: Sequence[bool] | None = None,
    ) -> None:
        """Add a caption of an image.

        Args:
            index: of the image in the data set.
            words: the T words of the caption.
            maps: kind of map → the map of each word, (T, L), whose sum is 1.
            unknown: whether the model does not know each word; None if it can read any.
        """
        unknown = unknown or [False] * len(words)
        mentions = self.data.mentions(words, self.data.images[index])
        numbered = [(mention, self._number(index, unknown, maps, mention)) for mention in mentions]
        self.pairs += [
            (first, second)
            for (one, first), (other, second) in combinations(numbered, 2)
            if first is not None and second is not None
            if self.data.images[index].overlap(one.instances, other.instances) <= OVERLAP
        ]
        self.left_out["unknown_words"] += sum(unknown)
        entropy = entropies(maps.get("chances", maps["model"]))
        self.captions.append(CaptionRecord(index, words, numbered, entropy))

    def _number(
        self, index: int, unknown: Sequence[bool], maps: dict[str, np.ndarray], mention: Mention
    ) -> int | None:
        """Add a mention if it can be scored, and return its index among the scored ones."""
        if not mention.instances:
            return None
        if any(unknown[word] for word in mention.words):  # the map of <unk> belongs to no word
            self.left_out["mentions_of_unknown_words"] += 1
            return None
        mask = self.data.images[index].truth(mention.instances, self.grid)
        if mask.min() >= 1:  # every map lies inside the mask
            self.left_out["masks_of_whole_picture"] += 1
            return None
        means = {name: of_words[list(mention.words)].mean(0) for name, of_words in maps.items()}
        means["time_averaged"] = maps["model"].mean(0)
        self.mentions.append(MentionRecord(index, mention, mask, means))
        return len(self.mentions) - 1

    def report(self, seed: int = 0, resamples: int = 2000) -> Evaluation:
        """Score the collected maps; without a mention to score, the report has an ``error`` instead.

        Scores are percentages, except ``map_entropy``, the mean over all words in nats.
        """
        data, regime = self.data, self.regime
        bootstrap = Bootstrap(len(data.images), resamples, seed)
        found: dict[str, Any] = {
            "regime": regime,
            "images": len(self.images),
            "grid": list(self.grid),
            "coverage": {
                "captions": len(self.captions),
                "words": sum(len(caption.words) for caption in self.captions),
                "mentions": sum(len(caption.mentions) for caption in self.captions),
                "mentions_with_mask": len(self.mentions),
                "pairs": len(self.pairs),
                "crowds_dropped": data.crowds,
                "empty_masks_dropped": data.empty,
                **self.left_out,
            },
        }
        measures: dict[str, Ratio] = {}
        on_object = np.zeros(0)  # pointing score of each mention
        if self.mentions:
            scored, measures, on_object = _score(self, bootstrap)
            found |= scored
        else:
            found["error"] = (
                f"nothing to score: no known word of the {regime} captions names an object with a mask"
            )
        if regime == "generated":
            counts, of_objects = _named_objects(self, on_object)
            found["objects"] = counts | bootstrap.intervals(of_objects)
            measures |= of_objects
        asked: dict[int, list[Any]] = {image: [] for image in self.images}
        for image, mention, *_ in self.mentions:
            asked[image].append((tuple(mention.words), tuple(mention.instances)))
        ids = {image: data.images[image].image_id for image in self.images}
        return Evaluation(found, of_images(ids, measures, regime, "grounding", asked.values()))


def _score(
    collected: GroundingData, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, Ratio], np.ndarray]:
    """Return the report's scores, the model's measures, and its pointing scores."""
    n_images, images = len(collected.data.images), np.array([m.image for m in collected.mentions])
    pairs = np.array(collected.pairs, dtype=int).reshape(-1, 2)
    masks = np.stack([m.mask for m in collected.mentions])
    maps = {
        k: np.stack([m.maps[k] for m in collected.mentions]) for k in collected.mentions[0].maps
    }
    maps["mean_mask"] = mean_of_others(masks, images)
    maps["uniform"], maps["oracle"] = np.ones_like(masks), oracle(masks)
    values = {
        kind: {
            "discrimination": 100 * discrimination(normalised(maps[kind]), masks, pairs),
            "pointing": 100 * pointing(maps[kind], masks),
            "mass": 100 * mass(normalised(maps[kind]), masks),
        }
        for kind in MAPS
        if kind in maps
    }

    def means(scores: dict[str, np.ndarray]) -> dict[str, Ratio]:
        of_pairs = {"discrimination": images[pairs[:, 0]]}
        return {m: mean(of, of_pairs.get(m, images), n_images) for m, of in scores.items()}

    lead = means({m: of - values["time_averaged"][m] for m, of in values["model"].items()})
    entropy = np.concatenate([caption.entropies for caption in collected.captions])
    entropy_image = np.array([c.image for c in collected.captions for _ in c.words])
    of_words = {"map_entropy": mean(entropy, entropy_image, n_images)}
    scores = {kind: bootstrap.intervals(means(of_kind)) for kind, of_kind in values.items()}
    scored = {
        "scores": scores,
        "delta": bootstrap.intervals(lead),
        "verdict": _verdict(
            scores["model"]["discrimination"],
            ties=bool((values["model"]["discrimination"] == 50).all()),
            images=len(np.unique(images[pairs[:, 0]])),
        ),
        **bootstrap.intervals(of_words),
    }
    of_lead = {f"lead_over_time_averaged_map.{metric}": of for metric, of in lead.items()}
    measures = means(values["model"]) | of_lead | of_words
    return scored, measures, values["model"]["pointing"]


def _verdict(estimate: dict[str, float | None], ties: bool, images: int) -> str:
    """State in words what paired-object discrimination shows."""
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return "no caption names two objects with disjoint masks, so there is no verdict"
    if ties:
        return "50 %, which is chance: all pairs tie, so the maps do not depend on the word"
    result = f"{value:.1f} % [{low:.1f}, {high:.1f}] where chance is 50"
    if images < MIN_IMAGES:
        return f"{result}, too few for a verdict: only {images} images, {MIN_IMAGES} are needed"
    if low > 50:
        return f"{result}, above chance: the maps depend on the word"
    if high < 50:
        return f"{result}, below chance: the maps are on the wrong object of the two"
    return f"{result}, which is chance: these pairs do not show that the maps depend on the word"


def _named_objects(
    collected: GroundingData, pointing: Float64[np.ndarray, " N"]
) -> tuple[dict[str, int], dict[str, Ratio]]:
    """Return counts of what generated captions name, and F1-all, F1-loc and CHAIR in percent.

    F1-all and F1-loc follow Zhou et al. 2019 (Grounded Video Description), but with the pointing game
    on masks instead of an IoU of boxes above ½. CHAIR follows Rohrbach et al. 2018.

    The target categories of an image have a mask and are named by a reference caption. A category in
    the caption (counted once, by its first mention) is correct if it is a target and refers to
    objects of the image. It is grounded if the map also points into their mask. Categories that are in
    the image, but are not targets, count neither as correct nor as wrong.

    - ``f1_all`` = 2 · grounded / (named + targets).
    - ``f1_loc`` = grounded / correct.
    - ``chair_i``: percentage of mentions whose category is neither annotated nor in a reference;
      ``chair_s``: percentage of captions with such a mention. Lower is better.
    - ``true_captions``, generated scenes only: percentage of captions that ``true_of`` accepts.

    ``pointing`` is the pointing score of each scored mention, in percent.
    """
    data, tokenizer = collected.data, Tokenizer()
    # Measure → the sum and the number of each image.
    shares: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((2, len(data.images))))
    counts: Counter[str] = Counter()
    for caption in collected.captions:
        index, image = caption.image, data.images[caption.image]
        references = [data.mentions(tokenizer(text), image) for text in image.captions]
        in_reference = {mention.category for mentions in references for mention in mentions}
        target, present = in_reference & set(image.categories), in_reference | image.present
        hallucinated = [mention.category not in present for mention, _ in caption.mentions]
        shares["chair_i"][:, index] += 100 * sum(hallucinated), len(hallucinated)
        shares["chair_s"][:, index] += 100 * any(hallucinated), 1
        if data.generated:
            is_true = true_of(" ".join(caption.words), image.objects)
            shares["true_captions"][:, index] += 100 * is_true, 1
        first = {mention.category: number for mention, number in reversed(caption.mentions)}
        named = sum(category in target or category not in present for category in first)
        correct = [n for category, n in first.items() if category in target and n is not None]
        grounded = sum(pointing[number] for number in correct)
        shares["f1_all"][:, index] += 2 * grounded, named + len(target)
        shares["f1_loc"][:, index] += grounded, len(correct)
        counts.update(named=named, to_be_named=len(target), right=len(correct))
        counts.update(mentions=len(hallucinated))
    return dict(counts), {name: Ratio(*of_images) for name, of_images in shares.items()}
