"""Grounding: does attention look at the object that a word names?

*Forced* captions are the references, fed to the model word by word, so that every model is scored on
the same mentions. *Generated* captions are the model's own. The map of a word is the attention with
which the model predicts it, before the word itself is an input.

    collected = GroundingData(model, data, "forced")
    for batch in batches(model, data.images, 16, failed := []):
        collected.add(batch)
    collected.report().report["scores"]["model"]["discrimination"]
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from captioner.data.masks import MaskedImages
from captioner.data.scene_grammar import Mention
from captioner.evaluation import sentinel_use
from captioner.evaluation.adapted import AdapterBatch
from captioner.evaluation.attention_maps import Batch, forced_maps
from captioner.evaluation.bootstrap import Bootstrap, Ratio, mean
from captioner.evaluation.image_statistics import Evaluation, Regime, of_images
from captioner.evaluation.localisation import (
    correctness,
    discrimination,
    entropies,
    gaussians,
    mass,
    mean_of_others,
    normalised,
    oracle,
    pointing,
    spread,
)
from captioner.evaluation.named_objects import CaptionRecord, NamedObjects
from captioner.language.alignment import words_of
from captioner.language.vocabulary import UNK, Tokenizer
from captioner.models.captioner import Captioner
from captioner.photos.geometry import to_photo
from captioner.predict.adapter import Reading

MAPS = {
    "model": "model",
    "probs": "sampling probabilities",
    "time_averaged": "mean over the caption's words",
    "mean_mask": "mean mask of other images",
    "centre": "centre Gaussian",
    "uniform": "uniform",
    "oracle": "oracle (upper bound)",
}
"""The maps that are scored, with their names in tables. ``probs`` exists for hard attention only,
where ``model`` is the chosen cell."""

LEFT_OUT = ("unknown_words", "mentions_of_unknown_words", "masks_of_whole_picture")
BOX_GRID = 14, 14
"""(rows, columns) of the cells over which the weight of a detector's region is spread evenly."""
MIN_IMAGES = 20  # fewer images do not support a verdict


class MentionRecord(NamedTuple):
    """A mention that is scored."""

    image: int  # index of its image in the data set
    mention: Mention
    mask: Float64[np.ndarray, " L"]  # fraction of each cell that the named objects cover
    maps: dict[str, np.ndarray]  # kind of map → mean over the mention's words, (L,)
    correctness: dict[str, float]  # kind of map → attention correctness


class GroundingData:
    """Captions, mentions and maps of all images, which are added batch by batch.

    Args:
        captioner: in eval mode; None for the batches of an adapter.
        data: images with masks, and for ``forced`` with captions.
        regime: ``forced`` (reference captions) or ``generated`` (the model's own).
        method: of the maps: see ``captioner.predict.explanations``.
    """

    def __init__(
        self,
        captioner: Captioner | None,
        data: MaskedImages,
        regime: Regime,
        method: str = "attention",
    ) -> None:
        self.data, self.regime, self._method = data, regime, method
        self.images: list[int] = []  # indices of the images that could be read
        self.grid = (1, 1)  # (rows, columns) of all maps, which are flat, in raster order
        self.captions: list[CaptionRecord] = []
        self.mentions: list[MentionRecord] = []  # that are scored
        self.pairs: list[tuple[int, int]] = []  # mentions in one caption with disjoint masks
        self.left_out = dict.fromkeys(LEFT_OUT, 0)
        self._captioner = captioner

    def add(self, batch: Batch | AdapterBatch) -> None:
        """Compute the maps of some images."""
        self.images += batch.indices
        if isinstance(batch, AdapterBatch):
            self._add_readings(batch)
            return
        assert self._captioner is not None
        boxes = batch.annotations.boxes
        self.grid = batch.annotations.grid if boxes is None else BOX_GRID
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
            decoder = self._captioner.decoder
            weights, probs = forced_maps(decoder, batch.annotations, tokens, self._method)
        attention = self._method == "attention"
        if self.regime == "generated" and attention:  # the weights, or chosen cells, of the search
            weights = [[best.weights] for best in batch.generated]
        kinds = {"model": weights} if probs is None else {"model": weights, "probs": probs}
        for b, index in enumerate(batch.indices):
            cells = None if boxes is None else spread(boxes[b].double().cpu().numpy(), BOX_GRID)
            for r, caption in enumerate(words[b]):
                maps = {name: normalised(kind[b][r].numpy()) for name, kind in kinds.items()}
                if cells is not None:
                    maps = {name: of_boxes @ cells for name, of_boxes in maps.items()}
                on_photo = None
                if attention and decoder.has_sentinel:  # the weights of a word sum to 1 - β
                    on_photo = weights[b][r].double().sum(1).numpy()
                unknown = [id == UNK for id in tokens[b][r]]
                self.add_caption(index, caption, maps, unknown, on_photo)

    def _add_readings(self, batch: AdapterBatch) -> None:
        """Add the maps of an adapter, on a grid of the model's size that covers the photo."""
        for number, (index, photo) in enumerate(zip(batch.indices, batch.photos, strict=True)):
            if self.regime == "generated":
                self._add_reading(index, batch.generated[number])
                continue
            for text in filter(str.strip, self.data.images[index].captions):
                self._add_reading(index, batch.adapter.read(photo, text), Tokenizer()(text))

    def _add_reading(
        self, index: int, reading: Reading, given: Sequence[str] | None = None
    ) -> None:
        assert reading.attention is not None
        words, members = words_of(reading.pieces, given)
        self.grid = reading.attention.shape[-2:]
        of_pieces = to_photo(reading.attention.mean((1, 2)), reading.box, self.grid)
        of_words = np.stack([of_pieces[pieces].mean(0).ravel() for pieces in members])
        self.add_caption(index, words, {"model": normalised(of_words)})

    def add_caption(
        self,
        index: int,
        words: Sequence[str],
        maps: dict[str, np.ndarray],
        unknown: Sequence[bool] | None = None,
        on_photo: np.ndarray | None = None,
    ) -> None:
        """Add a caption of an image.

        Args:
            index: of the image in the data set.
            words: the T words of the caption.
            maps: kind of map → the map of each word, (T, L), whose sum is 1.
            unknown: whether the model does not know each word; None if it can read any.
            on_photo: the share of each word's attention on the photo, with a visual sentinel, (T,).
        """
        unknown = unknown or [False] * len(words)
        if on_photo is not None:
            on_photo = np.where(unknown, np.nan, on_photo)
        find, image = self.data.named, self.data.images[index]
        if self.regime == "forced":
            find = self.data.mentions
        numbered = [(m, self._number(index, unknown, maps, m)) for m in find(words, image)]
        scored = [(number, mention) for mention, number in numbered if number is not None]
        for (first, one), (second, other) in combinations(scored, 2):
            if image.overlap(one.instances, other.instances) <= self.data.max_overlap:
                self.pairs.append((first, second))
        self.left_out["unknown_words"] += sum(unknown)
        entropy = entropies(maps.get("probs", maps["model"]))
        self.captions.append(CaptionRecord(index, words, numbered, entropy, on_photo))

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
        of_mention = {name: of_words[list(mention.words)] for name, of_words in maps.items()}
        means = {name: of_words.mean(0) for name, of_words in of_mention.items()}
        means["time_averaged"] = maps["model"].mean(0)
        correct = {name: correctness(of_words, mask) for name, of_words in of_mention.items()}
        self.mentions.append(MentionRecord(index, mention, mask, means, correct))
        return len(self.mentions) - 1

    def report(self, seed: int = 0, resamples: int = 2000) -> Evaluation:
        """Score the collected maps; without a mention to score, the report has an ``error`` instead.

        Scores are percentages, except ``map_entropy`` in nats and ``on_photo``, from 0 to 1.
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
                **data.left_out,
                **self.left_out,
            },
        }
        measures: dict[str, Ratio] = {}
        on_objects = {"model": np.zeros(0)}  # pointing score of each mention, by kind of map
        if self.mentions:
            scored, measures, on_objects = _score(self, bootstrap)
            found |= scored
        else:
            problem = f"no known word of the {regime} captions names an object with a mask"
            found["error"] = f"nothing to score: {problem}"
        if of_sentinel := sentinel_use.measures(self.captions, len(data.images)):
            found["on_photo"] = bootstrap.intervals(of_sentinel)
        if regime == "generated":
            objects = NamedObjects(self.captions, data)
            for kind, scores in found.get("scores", {}).items():
                scores |= bootstrap.intervals(objects.f1(on_objects[kind]))
                for name, group in found["types"].items():
                    of_type = objects.f1(on_objects[kind], objects.types == name)
                    group["scores"][kind] |= bootstrap.intervals(of_type)
            of_objects = objects.f1(on_objects["model"])
            if data.exhaustive:
                of_objects |= objects.hallucinations()
            if data.generated:
                of_objects["true_captions"] = objects.true_captions()
            found["objects"] = objects.counts | bootstrap.intervals(of_objects)
            measures |= of_objects
        mentioned: dict[int, list[Any]] = {image: [] for image in self.images}
        for image, mention, *_ in self.mentions:
            mentioned[image].append((tuple(mention.words), tuple(mention.instances)))
        ids = {image: data.images[image].image_id for image in self.images}
        return Evaluation(found, of_images(ids, measures, regime, "grounding", mentioned.values()))


def _score(
    collected: GroundingData, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, Ratio], dict[str, np.ndarray]]:
    """Return the report's scores, the model's measures, and the pointing scores by kind of map."""
    n_images, mentions = len(collected.data.images), collected.mentions
    images = np.array([m.image for m in mentions])
    pairs = np.array(collected.pairs, dtype=int).reshape(-1, 2)
    values = _values(mentions, pairs, images, collected.grid)

    def means(scores: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, Ratio]:
        """Average over the chosen mentions, and over the pairs that contain one."""
        of_pairs = {"discrimination": (images[pairs[:, 0]], chosen[pairs].any(1))}
        result = {}
        for metric, of in scores.items():
            image, use = of_pairs.get(metric, (images, chosen))
            result[metric] = mean(of[use], image[use], n_images)
        return result

    def by_map(chosen: np.ndarray) -> dict[str, Any]:
        return {kind: bootstrap.intervals(means(of, chosen)) for kind, of in values.items()}

    everything = np.ones(len(mentions), bool)
    lead = {m: of - values["time_averaged"][m] for m, of in values["model"].items()}
    leads = means(lead, everything)
    entropy = np.concatenate([caption.entropies for caption in collected.captions])
    entropy_image = np.array([c.image for c in collected.captions for _ in c.words])
    of_words = {"map_entropy": mean(entropy, entropy_image, n_images)}
    scores, types = by_map(everything), {}
    for name in sorted(set(collected.data.types.values())):
        chosen = np.array([name in m.mention.types for m in mentions])
        numbers = {"mentions": int(chosen.sum()), "pairs": int(chosen[pairs].any(1).sum())}
        types[name] = {**numbers, "scores": by_map(chosen)}
    scored = {
        "scores": scores,
        "delta": bootstrap.intervals(leads),
        "types": types,
        "verdict": _verdict(
            scores["model"]["discrimination"],
            ties=bool((values["model"]["discrimination"] == 50).all()),
            images=len(np.unique(images[pairs[:, 0]])),
        ),
        **bootstrap.intervals(of_words),
    }
    of_lead = {f"lead_over_time_averaged_map.{metric}": of for metric, of in leads.items()}
    measures = means(values["model"], everything) | of_lead | of_words
    return scored, measures, {kind: of["pointing"] for kind, of in values.items()}


def _values(
    mentions: Sequence[MentionRecord], pairs: np.ndarray, images: np.ndarray, grid: tuple[int, int]
) -> dict[str, dict[str, np.ndarray]]:
    """Return for each kind of map and metric the values of all mentions, or pairs, in percent."""
    masks = np.stack([m.mask for m in mentions])
    maps = {kind: np.stack([m.maps[kind] for m in mentions]) for kind in mentions[0].maps}
    maps["mean_mask"] = mean_of_others(masks, images)
    maps["centre"] = gaussians(maps["mean_mask"], grid)
    maps["uniform"], maps["oracle"] = np.ones_like(masks), oracle(masks)
    values = {}
    for kind in filter(maps.__contains__, MAPS):
        masses = mass(normalised(maps[kind]), masks)
        # A map that is the same for all words has the same mass for all words.
        best = [m.correctness[kind] for m in mentions if kind in m.correctness]
        values[kind] = {
            "discrimination": 100 * discrimination(normalised(maps[kind]), masks, pairs),
            "pointing": 100 * pointing(maps[kind], masks),
            "mass": 100 * masses,
            "correctness": 100 * (np.array(best) if best else masses),
        }
    return values


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
