"""Per-image statistics, from which the scores of any resample of the images can be computed.

Corpus scores are not means over images: BLEU and METEOR first add up counts. The statistics file
``NAME.images.jsonl`` beside the result ``NAME.json`` has one line for each image::

    {"image_id": 42, "caption": "…", "ratios": {"cider": [61.2, 1], …}, "bleu": […], "meteor": […]}
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from captioner.errors import EvaluationError
from captioner.evaluation.bootstrap import Counts, Ratio, Statistic

ENDING = ".images.jsonl"
ORDER = 4  # the n of BLEU-n, at most

# METEOR 1.5 for English (Denkowski, Lavie 2014), the defaults of its program.
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
MATCHERS = (1.0, 0.6, 0.8, 0.6)  # weights of exact, stem, synonym and paraphrase matches

Regime = Literal["forced", "generated"]
"""Which captions are evaluated: reference captions fed to the model, or the model's own."""


@dataclass(frozen=True)
class ImageStatistics:
    """What one image contributes to the measures.

    CIDEr-D has the document frequencies of *all* images in every resample. Two models are compared only
    if ``scored`` is equal.
    """

    image_id: int | str
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # measure → sum, number
    caption: str | None = None  # the scored caption
    # Lengths of the caption and of the closest reference; matching n-grams, all n-grams for n = 1 … 4.
    bleu: tuple[int, ...] | None = None
    meteor: tuple[float, ...] | None = None  # the 23 numbers that METEOR's program prints
    part: str | None = None  # the section of a report, such as ``forced.grounding``
    scored: str | None = None  # fingerprint of the words or mentions; None for generated captions


class Evaluation(NamedTuple):
    """The result of an evaluation over many images."""

    report: dict[str, Any]  # scores and settings, ready for JSON
    image_statistics: list[ImageStatistics]


def of_images(
    ids: Mapping[int, int | str],
    measures: Mapping[str, Ratio],
    regime: Regime,
    part: str,
    scored: Iterable[object],
) -> list[ImageStatistics]:
    """Return statistics; ``ids``: index → image id; ``scored``: each image's words or mentions."""
    return [
        ImageStatistics(
            image_id,
            {name: (float(m.sums[i]), float(m.numbers[i])) for name, m in measures.items()},
            part=f"{regime}.{part}",
            scored=sha256(repr(of).encode()).hexdigest()[:12] if regime == "forced" else None,
        )
        for (i, image_id), of in zip(ids.items(), scored, strict=True)
    ]


def statistics(images: Sequence[ImageStatistics]) -> dict[str, Statistic]:
    """Return each measure that all images have, as a function of how often each image occurs."""
    measures: dict[str, Statistic] = {}
    if all(image.bleu is not None for image in images):
        counts = np.array([image.bleu for image in images], np.float64)
        measures |= {f"bleu_{n}": _bleu(counts, n) for n in range(1, ORDER + 1)}
    if all(image.meteor is not None for image in images):
        measures["meteor"] = _meteor(np.array([image.meteor for image in images], np.float64))
    for name in images[0].ratios:
        if all(name in image.ratios for image in images):
            totals = np.array([image.ratios[name] for image in images], np.float64)
            measures[name] = Ratio(*totals.T)
    return measures


def _bleu(counts: Float64[np.ndarray, "I ten"], order: int) -> Statistic:
    """BLEU in percent, with coco-caption's guards against division by zero."""

    def statistic(times: Counts) -> Float64[np.ndarray, " R"]:
        length, reference, *grams = (times @ counts).T
        correct, total = np.array(grams[:order]), np.array(grams[ORDER : ORDER + order])
        precision = ((correct + 1e-15) / (total + 1e-9)).prod(0) ** (1 / order)
        brevity = (length + 1e-15) / (reference + 1e-9)
        return np.asarray(100 * precision * np.exp(np.minimum(0, 1 - 1 / brevity)))

    return statistic


def _meteor(counts: Float64[np.ndarray, "I numbers"]) -> Statistic:
    """METEOR 1.5 in percent, by the formula that its program applies to the same sums."""
    # A caption that equals one of its references has no fragmentation penalty.
    identical = (counts[:, 20] == 1) & (counts[:, 21:] == counts[:, :2]).all(1)
    counts = counts.copy()
    counts[identical, 20] = 0

    def statistic(times: Counts) -> Float64[np.ndarray, " R"]:
        lengths, matches, (chunks, *matched) = np.split((times @ counts).T, [4, 20])
        # For every matcher: content words of caption and reference, then function words.
        content, function = matches.reshape(len(MATCHERS), 2, 2, -1).swapaxes(0, 1)
        weighted = np.tensordot(MATCHERS, DELTA * content + (1 - DELTA) * function, 1)
        length = DELTA * (lengths[:2] - lengths[2:]) + (1 - DELTA) * lengths[2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            precision, recall = weighted / length
            mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
            penalty = GAMMA * (chunks / np.mean(matched, 0)) ** BETA
            score = 100 * mean * (1 - penalty)
        return np.nan_to_num(score)

    return statistic


def lines(images: Iterable[ImageStatistics]) -> str:
    """Return the text of a statistics file."""
    records = ({k: v for k, v in asdict(image).items() if v is not None} for image in images)
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read(file: Path) -> list[ImageStatistics]:
    """Read a statistics file, sorted by image id.

    Raises:
        EvaluationError: the file cannot be read or has another content.
    """
    try:
        records = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
        images = [_from_record(record) for record in records]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EvaluationError(
            f"{file} holds no image statistics ({error}); score the run again, or delete the file"
        ) from error
    return sorted(images, key=lambda image: str(image.image_id))


def _from_record(record: dict[str, Any]) -> ImageStatistics:
    ratios = {name: tuple(pair) for name, pair in record.get("ratios", {}).items()}
    counts = {name: tuple(record[name]) for name in ("bleu", "meteor") if name in record}
    return ImageStatistics(**record | counts | {"ratios": ratios})
