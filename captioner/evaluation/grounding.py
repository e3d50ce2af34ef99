"""Grounding: does attention look at the object that a word names?

*Forced* captions are the references, fed to the model word by word, so that every model is scored on
the same mentions. *Generated* captions are the model's own. The map of a word is the attention with
which the model predicts it, before the word itself is an input. The model's maps and baseline maps are
compared with object masks; the metrics have bootstrap confidence intervals.
"""

from typing import Any

import numpy as np

from captioner.data.masks import MaskedImages
from captioner.decoding import Decoding
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.baselines import MaskPrior, mean_of_others, oracle
from captioner.evaluation.bootstrap import Bootstrap, Ratio, mean, of_image
from captioner.evaluation.image_statistics import Evaluation, ImageStatistics, Regime, fingerprint
from captioner.evaluation.localisation import (
    Maps,
    correlation,
    discrimination,
    normalised,
    scores,
)
from captioner.evaluation.mentions import GroundingData
from captioner.evaluation.named_objects import named_objects
from captioner.models.captioner import Captioner

MAPS = {
    "model": "model",
    "chances": "sampling probabilities",
    "time_averaged": "mean over the caption's words",
    "shuffled": "shuffled within the caption",
    "mean_map": "mean map of other images",
    "random_weights": "random weights",
    "grad_cam": "Grad-CAM",
    "category_prior": "category prior",
    "centre": "centre Gaussian",
    "uniform": "uniform",
    "oracle": "oracle (upper bound)",
}
"""The maps that are scored, with their names in tables. ``chances`` exists for hard attention only,
where ``model`` is the chosen cell."""

MIN_IMAGES = 20  # fewer images do not support a verdict
LEAD = "lead_over_time_averaged_map"  # prefix of differences in the image statistics
LEFT_OUT = ("unknown_words", "mentions_of_unknown_words", "masks_of_whole_picture")


def grounding(
    captioner: Captioner,
    data: MaskedImages,
    regime: Regime,
    *,
    decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    batch_size: int = 16,
    resamples: int = 2000,
    seed: int = 0,
) -> Evaluation:
    """Score a model's attention maps and all baselines, with bootstrap intervals over images.

    Takes the arguments of ``GroundingData``, ``batches`` and ``report``.
    """
    collected = GroundingData(captioner, data, regime, seed)
    failed: list[str] = []
    search = decoding if regime == "generated" else None
    for batch in batches(captioner, data.images, batch_size, failed, decoding=search, seed=seed):
        collected.add(batch)
    evaluation = report(collected, MaskPrior(data.images, collected.grid), resamples, seed)
    evaluation.report["failed"] = failed
    return evaluation


def report(
    collected: GroundingData, prior: MaskPrior, resamples: int = 2000, seed: int = 0
) -> Evaluation:
    """Score the collected maps; without a mention to score, the report has an ``error`` instead.

    Scores are percentages, except ``map_entropy`` (mean over all words, nats) and ``map_grad_cam``
    (mean correlation of the maps of mentions with Grad-CAM).
    """
    data, regime = collected.data, collected.regime
    bootstrap = Bootstrap(len(data.images), resamples, seed)
    found: dict[str, Any] = {
        "regime": regime,
        "images": len(collected.images),
        "grid": list(collected.grid),
        "coverage": _coverage(collected),
    }
    measures: dict[str, Ratio] = {}
    pointing = {"model": np.zeros(0)}  # pointing score of each mention, by kind of map
    if collected.mentions:
        scored, measures, pointing = _score(collected, prior, bootstrap)
        found |= scored
    else:
        unknown = collected.left_out["mentions_of_unknown_words"]
        reason = ", or the model does not know the word" if unknown else ""
        found["error"] = (
            f"nothing to score: of {found['coverage']['words']} words in the {regime} captions of "
            f"{len(data.images)} images, none names an object that has a mask{reason}"
        )
    if regime == "generated":
        found["objects"], object_measures = named_objects(collected, pointing, bootstrap)
        measures |= object_measures
    return Evaluation(found, _image_statistics(collected, measures))


def _score(
    collected: GroundingData, prior: MaskPrior, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, Ratio], dict[str, np.ndarray]]:
    """Return the report's scores, the model's measures, and the pointing scores by kind of map."""
    n_images, images = len(collected.data.images), np.array([m.image for m in collected.mentions])
    pairs = np.array(collected.pairs, dtype=int).reshape(-1, 2)
    masks, maps = _all_maps(collected, prior)

    def means(values: dict[str, np.ndarray]) -> dict[str, Ratio]:
        of_pairs = {"discrimination": images[pairs[:, 0]]}
        return {m: mean(v, of_pairs.get(m, images), n_images) for m, v in values.items()}

    values = {
        kind: {"discrimination": 100 * discrimination(of_kind, masks, pairs)}
        | {metric: 100 * score for metric, score in scores(of_kind, masks).items()}
        for kind, of_kind in maps.items()
    }
    lead = {m: scored - values["time_averaged"][m] for m, scored in values["model"].items()}
    entropy = np.concatenate([caption.entropies for caption in collected.captions])
    entropy_image = np.array([c.image for c in collected.captions for _ in c.words])
    similarity = correlation(maps.get("chances", maps["model"]), maps["grad_cam"])
    measures = {
        "map_entropy": mean(entropy, entropy_image, n_images),
        "map_grad_cam": mean(similarity, images, n_images),
    }
    by_map = {kind: bootstrap.intervals(means(of_kind)) for kind, of_kind in values.items()}
    scored = {
        "prior": prior.description,
        "scores": by_map,
        "delta": bootstrap.intervals(means(lead)),
        "verdict": _verdict(
            by_map["model"]["discrimination"],
            ties=bool((values["model"]["discrimination"] == 50).all()),
            images=len(np.unique(images[pairs[:, 0]])),
        ),
        **bootstrap.intervals(measures),
    }
    measures |= means(values["model"])
    measures |= {f"{LEAD}.{metric}": of_metric for metric, of_metric in means(lead).items()}
    return scored, measures, {kind: of_kind["pointing"] for kind, of_kind in values.items()}


def _all_maps(collected: GroundingData, prior: MaskPrior) -> tuple[Maps, dict[str, Maps]]:
    """Return the masks of all mentions, and their maps of each kind in MAPS."""
    mentions, captions = collected.mentions, collected.captions
    masks = np.stack([m.mask for m in mentions])
    images = [m.image for m in mentions]
    centres = {image: prior.centre(image) for image in images}
    categories = [prior.category(m.mention.category, m.image) for m in mentions]
    caption_maps = np.stack([c.mean_map for c in captions])
    caption_images = np.array([c.image for c in captions])
    kinds = mentions[0].maps
    maps = {kind: normalised(np.stack([m.maps[kind] for m in mentions])) for kind in kinds}
    maps |= {
        "mean_map": mean_of_others(caption_maps, caption_images, np.array(images)),
        "category_prior": normalised(np.clip(categories, 0, None)),
        "centre": normalised(np.stack([centres[image] for image in images])),
        "uniform": normalised(np.ones_like(masks)),
        "oracle": oracle(masks),
    }
    return masks, {kind: maps[kind] for kind in MAPS if kind in maps}


def _verdict(estimate: dict[str, float | None], ties: bool, images: int) -> str:
    """State in words what paired-object discrimination shows."""
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return "no caption names two objects with disjoint masks, so there is no verdict"
    if ties:
        return "50 %, which is chance: all pairs tie, so the maps do not depend on the word"
    result = f"{value:.1f} % [{low:.1f}, {high:.1f}] where chance is 50"
    if images < MIN_IMAGES:
        return f"{result}, of {images} images: too few for a verdict"
    if low > 50:
        return f"{result}, above chance: the maps depend on the word"
    if high < 50:
        return f"{result}, below chance: the maps are on the wrong object of the two"
    return f"{result}, which is chance: these pairs do not show that the maps depend on the word"


def _coverage(collected: GroundingData) -> dict[str, Any]:
    """Count what was scored and what was left out."""
    captions, mentions = collected.captions, collected.mentions
    words = sum(len(caption.words) for caption in captions)
    naming = sum(len({w for m, _ in caption.mentions for w in m.words}) for caption in captions)
    return {
        "captions": len(captions),
        "words": words,
        "words_naming_objects_percent": round(100 * naming / max(1, words), 2),
        "mentions": sum(len(caption.mentions) for caption in captions),
        "mentions_with_mask": len(mentions),
        "pairs": len(collected.pairs),
        "images_with_pair": len({mentions[first].image for first, _ in collected.pairs}),
        **{name: collected.left_out[name] for name in LEFT_OUT},
        "crowds_dropped": collected.data.crowds,
        "empty_masks_dropped": collected.data.empty,
    }


def _image_statistics(
    collected: GroundingData, measures: dict[str, Ratio]
) -> list[ImageStatistics]:
    scored: dict[int, list[Any]] = {image: [] for image in collected.images}
    for image, mention, *_ in collected.mentions:
        scored[image].append((tuple(mention.words), tuple(mention.instances)))
    return [
        ImageStatistics(
            collected.data.images[image].image_id,
            of_image(measures, image),
            part=f"{collected.regime}.grounding",
            asked=fingerprint(mentions) if collected.regime == "forced" else None,
        )
        for image, mentions in scored.items()
    ]
