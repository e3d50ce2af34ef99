"""Does a model look at what it names? Its attention against object masks, beside its baselines.

    pictures with masks ─ encoder ─▶ captions, forced or generated ─▶ a map for every mention
                                                                          │ and the baselines' maps
                                     report ◀── scores, intervals ◀───────┘

Two regimes, never mixed. *Forced*: the reference captions are fed in, and every model is judged by the
same mentions. *Generated*: the model's own captions, where what it names counts too. The map of a word
is what the model looked at in order to write it, and so before the word was there to be read.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from captioner.data.masks import MaskedPictures
from captioner.decoding import Decoding
from captioner.errors import EvaluationError
from captioner.evaluation.baselines import MaskPrior, mean_of_others, oracle
from captioner.evaluation.bootstrap import Bootstrap, Statistic, ratio
from captioner.evaluation.gaze import Encoded
from captioner.evaluation.localisation import (
    METRICS,
    correlation,
    discrimination,
    normalised,
    scores,
)
from captioner.evaluation.means import Totals, macro, mean, percent, totals
from captioner.evaluation.mentions import Regime, Seen, look
from captioner.evaluation.naming import objects
from captioner.evaluation.tallies import Tally, fingerprint
from captioner.models.captioner import Captioner

MAPS = {
    "model": "the model",
    "chances": "the probabilities it chose by",
    "time_averaged": "time-averaged map of the caption",
    "shuffled": "its words' maps, shuffled",
    "mean_map": "the model's mean map",
    "random_weights": "random weights",
    "grad_cam": "Grad-CAM of the word",
    "category_prior": "category prior",
    "centre": "centre Gaussian",
    "uniform": "uniform",
    "oracle": "oracle of the grid",
}
"""The maps that are scored, and what people call them; ``chances`` where attention is hard: ``model`` is
then the cell that was chosen."""

Values = dict[str, dict[str, np.ndarray]]
"""By kind of map and metric the value of every mention, or pair."""

Added = dict[str, Totals]
"""By measure of the report what each picture adds to it, in its unit."""

# COCO's limits for the area of an object, 32² and 96² pixels, as parts of a photo of 640 × 480.
SMALL, LARGE = 32**2 / (640 * 480), 96**2 / (640 * 480)
FEW = 20  # pictures from which resampling cannot tell how far they are from all others
LEAD = "lead_over_time_averaged_map"  # what tallies call it, before the metric
UNNAMED = 30  # how many of the words without a category a report lists


class Grounding(NamedTuple):
    """How well a model looks at what it names.

    Attributes:
        report: ready for JSON.
        tallies: what each picture adds, for ``captioner.evaluation.tallies.lines``.
    """

    report: dict[str, Any]
    tallies: list[Tally]


def grounding(
    captioner: Captioner,
    data: MaskedPictures,
    regime: Regime,
    *,
    decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    training: MaskedPictures | None = None,
    batch_size: int = 16,
    resamples: int = 2000,
    seed: int = 0,
    progress: Callable[[Iterable[Encoded], int], Iterable[Encoded]] = lambda batches, _: batches,
) -> Grounding:
    """The scores of a model's maps and of all baselines.

    All scores are in percent, each with the 95 % interval of a bootstrap over the pictures. What the
    maps are like, right or wrong: ``map_entropy``, in nats, the mean over all words, and
    ``map_grad_cam``, the mean correlation of a mention's map with that of Grad-CAM.

    Args:
        captioner: in eval mode.
        data: the pictures; for ``forced`` with captions.
        regime: whose captions: the references (``forced``) or the model's (``generated``).
        decoding: how captions are generated.
        training: pictures of the training split, from whose masks the category prior and the centre
            Gaussian are taken; without, from the other evaluated pictures.
        batch_size: pictures computed together.
        resamples: of the bootstrap.
        seed: of shuffling, random weights and bootstrap.
        progress: wraps the batches, whose number it is told, to show a bar.

    Raises:
        EvaluationError: no reference caption mentions an object that has a mask, or no picture could be
            used. Of generated captions, the report says so, and what they name all the same.
    """
    seen = look(captioner, data, regime, decoding, batch_size, seed, progress)
    pictures = len(data.pictures)
    bootstrap = Bootstrap(pictures, resamples, seed)
    report: dict[str, Any] = {
        "regime": regime,
        "images": len(seen.places),
        "failed": seen.failed,
        "grid": list(seen.grid),
        "coverage": _coverage(seen, data),
    }
    added: Added = {}
    hits = {"model": np.zeros(0)}
    if seen.masks:
        scored, added, hits = _scored(seen, data, training, bootstrap)
        report |= scored
    else:
        report["error"] = (
            f"nothing to score: of {sum(seen.words.values())} words in the {regime} captions of "
            f"{pictures} pictures, none names an object that has a mask"
            + (" in words that the model knows" if seen.unknown_mentions else "")
            + "".join(f"; {message}" for message in seen.failed[:1])
        )
        if regime == "forced" or not seen.places:
            raise EvaluationError(report["error"])
    if regime == "generated":
        report["objects"], of_objects = objects(seen, data, hits, bootstrap)
        added |= {name: (100 * sums, of) for name, (sums, of) in of_objects.items()}
    return Grounding(report, _tallies(seen, data, regime, added))


def _scored(
    seen: Seen, data: MaskedPictures, training: MaskedPictures | None, bootstrap: Bootstrap
) -> tuple[dict[str, Any], Added, dict[str, np.ndarray]]:
    """What the report says of maps, what each picture adds to it, and by kind of map where it points."""
    masks, maps = _all_maps(seen, data, training)
    pictures, picture = len(data.pictures), np.array(seen.picture)
    pairs = np.array(seen.pairs, dtype=int).reshape(-1, 2)
    values: Values = {
        name: {"discrimination": discrimination(own, masks, pairs), **scores(own, masks)}
        for name, own in maps.items()
    }
    metrics = ("discrimination", *METRICS)
    of = {m: picture[pairs[:, 0]] if m == "discrimination" else picture for m in metrics}

    def measured(metric: str, *names: str) -> dict[str, float | None]:
        means = (mean(values[name][metric], of[metric], pictures) for name in names)
        return percent(bootstrap, pictures, *means)

    found = {name: {metric: measured(metric, name) for metric in metrics} for name in maps}
    ties = bool((values["model"]["discrimination"] == 0.5).all())
    with_pair = len(set(picture[pairs[:, 0]].tolist()))
    # Of hard attention, what it chose by.
    like = correlation(maps.get("chances", maps["model"]), maps["grad_cam"])
    words = np.array(seen.entropy_picture)
    added = {
        "map_entropy": totals(np.array(seen.entropy), words, words, pictures),
        "map_grad_cam": totals(like, picture, picture, pictures),
    }
    report = {
        "prior": "masks of the evaluated pictures, leaving out the one in question"
        if training is None
        else f"masks of {len(training.pictures)} training pictures: {training.source}",
        "scores": found,
        "delta": {metric: measured(metric, "model", "time_averaged") for metric in metrics},
        "verdict": _verdict(found["model"]["discrimination"], ties, with_pair),
        **{name: bootstrap.estimate(ratio(*own)).as_dict() for name, own in added.items()},
        "slices": _slices(seen, masks, values, bootstrap, pictures),
        "categories": _categories(seen, values),
    }
    for metric in metrics:
        own, average = (100 * values[name][metric] for name in ("model", "time_averaged"))
        added[metric] = totals(own, of[metric], of[metric], pictures)
        added[f"{LEAD}.{metric}"] = totals(own - average, of[metric], of[metric], pictures)
    return report, added, {name: own["pointing"] for name, own in values.items()}


def _all_maps(
    seen: Seen, data: MaskedPictures, training: MaskedPictures | None
) -> tuple[Float64[np.ndarray, "N L"], dict[str, Float64[np.ndarray, "N L"]]]:
    """The masks, and for every entry of MAPS the maps of all mentions."""
    masks, picture = np.stack(seen.masks), np.array(seen.picture)
    maps = {name: normalised(np.stack(own)) for name, own in seen.maps.items()}
    prior = MaskPrior((training or data).pictures, seen.grid, leave_out=training is None)
    centres = {place: prior.centre(place) for place in set(seen.picture)}
    maps["mean_map"] = mean_of_others(
        np.stack(seen.caption_maps), np.array(seen.caption_picture), picture
    )
    of_category = [
        prior.category(m.category, p) for m, p in zip(seen.mentions, seen.picture, strict=True)
    ]
    maps["category_prior"] = normalised(np.clip(of_category, 0, None))
    maps["centre"] = normalised(np.stack([centres[place] for place in seen.picture]))
    maps["uniform"] = normalised(np.ones_like(masks))
    maps["oracle"] = oracle(masks)
    return masks, {name: maps[name] for name in MAPS if name in maps}


def _tallies(seen: Seen, data: MaskedPictures, regime: Regime, added: Added) -> list[Tally]:
    """What each picture that could be used adds to the measures."""
    asked: dict[int, list[Any]] = {place: [] for place in seen.places}
    for place, mention in zip(seen.picture, seen.mentions, strict=True):
        asked[place].append((tuple(mention.words), tuple(mention.instances)))
    return [
        Tally(
            data.pictures[place].image_id,
            {name: (float(sums[place]), float(of[place])) for name, (sums, of) in added.items()},
            part=f"{regime}.grounding",
            asked=fingerprint(asked[place]) if regime == "forced" else None,
        )
        for place in seen.places
    ]


def _verdict(found: dict[str, float | None], ties: bool, pictures: int) -> str:
    """What the paired-object discrimination says, in words."""
    value, low, high = (found[key] for key in ("value", "low", "high"))
    if value is None or low is None or high is None:
        return "no caption names two whose masks are apart, so nothing can be said"
    if ties:
        return "50 %, which is chance, for all pairs tie: its maps do not depend on the word"
    told = f"{value:.1f} % [{low:.1f}, {high:.1f}] where chance is 50"
    if pictures < FEW:
        return f"{told}, of {pictures} pictures: too few to say more"
    if low <= 50 <= high:
        return (
            f"{told}, which is chance: for all these pairs show, its maps do not depend on the word"
        )
    if high < 50:
        return f"{told}, below chance: its maps are on the wrong object of the two"
    return f"{told}, above chance: its maps depend on the word"


def _coverage(seen: Seen, data: MaskedPictures) -> dict[str, Any]:
    words, masked = sum(seen.words.values()), len(seen.masks)
    captions = len(seen.named)
    return {
        "captions": captions,
        "words": words,
        "words_naming_objects": seen.naming,
        "words_naming_objects_percent": round(100 * seen.naming / max(1, words), 2),
        "mentions": seen.found,
        "mentions_with_mask": masked,
        "mentions_with_mask_percent": round(100 * masked / max(1, seen.found), 2),
        "captions_with_mention": sum(map(bool, seen.named)),
        "images_with_mention": len(set(seen.picture)),
        "pairs": len(seen.pairs),
        "images_with_pair": len({seen.picture[first] for first, _ in seen.pairs}),
        "unknown_words": seen.unknown,
        "mentions_of_unknown_words": seen.unknown_mentions,
        "masks_of_whole_picture": seen.full,
        "crowds_dropped": data.crowds,
        "empty_masks_dropped": data.empty,
        "most_frequent_words_naming_none": dict(seen.unnamed.most_common(UNNAMED)),
    }


def _slices(
    seen: Seen,
    masks: Float64[np.ndarray, "N L"],
    values: Values,
    bootstrap: Bootstrap,
    pictures: int,
) -> dict[str, Any]:
    """Scores of the model on parts of the mentions, and its lead over the time-averaged map."""
    area, picture = masks.mean(1), np.array(seen.picture)
    several = np.array([len(mention.instances) > 1 for mention in seen.mentions])
    order = np.array([number for number, _ in seen.order])
    repeated = np.array([again for _, again in seen.order])
    parts = {
        "small": area < SMALL,
        "medium": (area >= SMALL) & (area < LARGE),
        "large": area >= LARGE,
        "one object": ~several,
        "several objects": several,
        "first of its caption": order == 0,
        "later in its caption": order > 0,
        "first mention": ~repeated,
        "repeated mention": repeated,
    }
    _, group = np.unique([m.category for m in seen.mentions], return_inverse=True)

    def compared(measure: Callable[[np.ndarray], Statistic]) -> dict[str, Any]:
        found = {}
        for metric in METRICS:
            both = [measure(values[name][metric]) for name in ("model", "time_averaged")]
            found[metric] = {
                "model": percent(bootstrap, pictures, both[0]),
                "delta": percent(bootstrap, pictures, *both),
            }
        return found

    place = np.stack([picture, group], axis=1)
    slices: dict[str, Any] = {
        "mean over categories": {
            "mentions": len(masks),
            **compared(lambda own: macro(own, place, place, pictures)),
        }
    }
    for name, part in parts.items():
        if part.any():
            slices[name] = {
                "mentions": int(part.sum()),
                **compared(lambda own, part=part: mean(own[part], picture[part], pictures)),  # type: ignore[misc]
            }
    return slices


def _categories(seen: Seen, values: Values) -> dict[str, Any]:
    """For every category its mentions and the model's mean scores, most frequent first."""
    names = np.array([mention.category for mention in seen.mentions])
    return {
        name: {
            "mentions": count,
            **{m: round(100 * float(values["model"][m][names == name].mean()), 2) for m in METRICS},
        }
        for name, count in Counter(names.tolist()).most_common()
    }
