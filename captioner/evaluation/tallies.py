"""What each image adds to the scores of all images, so that any resample of them can be scored.

Scores of a corpus are no means over images: BLEU and METEOR are computed from counts that are
summed first. A file of tallies, ``….images.jsonl`` beside the result it belongs to, has a line for
each image::

    {"image_id": 42, "caption": "…", "ratios": {"cider": [61.2, 1], …}, "bleu": […], "meteor": […]}

Of a report with several parts, each line says of which ``part`` it is (``forced.grounding``). ``asked``
changes with what the image was asked about, words or mentions, where that must be the same for two
models to be compared.

A ratio is a sum and how many it is over: the measure is the sum of the first by that of the second.
CIDEr-D is one, with how rare words are among *all* images, whichever are drawn. ``captioner evaluate``
takes the same file for its captions.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from captioner.errors import EvaluationError
from captioner.evaluation.bootstrap import Statistic, ratio

ENDING = ".images.jsonl"
ORDER = 4  # of the longest n-grams of BLEU
OF_METEOR = 23  # statistics of an image

# METEOR 1.5 for English (Denkowski, Lavie 2014), its jar's own: weights of precision and recall, of
# fragmentation, of content words; of exact, stem, synonym and paraphrase matches.
ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
MATCHERS = (1.0, 0.6, 0.8, 0.6)


@dataclass(frozen=True)
class Tally:
    """What one image adds.

    Attributes:
        image_id: as the record has it.
        ratios: measure → (its sum over the image, how many it is over).
        caption: what was scored, if a caption was.
        bleu: words of the caption, words of the reference nearest in length, then for n = 1 … 4 how
            many of its n-grams are right, and how many it has.
        meteor: the statistics of METEOR 1.5, as its program gives them.
        part: of a report that has several: the part that it belongs to.
        asked: changes with what the image was asked about; None where two models are compared whatever
            each of them said.
    """

    image_id: int | str
    ratios: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    caption: str | None = None
    bleu: tuple[int, ...] | None = None
    meteor: tuple[float, ...] | None = None
    part: str | None = None
    asked: str | None = None


def fingerprint(asked: object) -> str:
    """Changes with what an image was asked about."""
    return hashlib.sha256(repr(asked).encode()).hexdigest()[:12]


def statistics(tallies: Sequence[Tally]) -> dict[str, Statistic]:
    """Every measure that all the images have, as a function of how often each of them counts."""
    first = tallies[0]
    found: dict[str, Statistic] = {}
    if all(tally.bleu is not None for tally in tallies):
        counts = np.array([tally.bleu for tally in tallies], np.float64)
        found |= {f"bleu_{n}": _bleu(counts, n) for n in range(1, ORDER + 1)}
    if all(tally.meteor is not None for tally in tallies):
        found["meteor"] = _meteor(np.array([tally.meteor for tally in tallies], np.float64))
    for name in first.ratios:
        if all(name in tally.ratios for tally in tallies):
            sums, numbers = np.array([tally.ratios[name] for tally in tallies], np.float64).T
            found[name] = ratio(sums, numbers)
    return found


def _bleu(counts: Float64[np.ndarray, "I ten"], order: int) -> Statistic:
    """Percent; as coco-caption computes it, its guards against division by zero included."""

    def statistic(times: Float64[np.ndarray, "R I"]) -> Float64[np.ndarray, " R"]:
        length, reference, *grams = (times @ counts).T
        right, given = np.array(grams[:order]), np.array(grams[ORDER : ORDER + order])
        precision = ((right + 1e-15) / (given + 1e-9)).prod(0) ** (1 / order)
        brevity = (length + 1e-15) / (reference + 1e-9)
        return np.asarray(100 * precision * np.exp(np.minimum(0, 1 - 1 / brevity)))

    return statistic


def _meteor(counts: Float64[np.ndarray, "I numbers"]) -> Statistic:
    """Percent; the formula of METEOR 1.5, which its program computes from the same sums."""
    # A caption that is one of its references, word by word, is not in fragments.
    whole = (counts[:, 20] == 1) & (counts[:, 21:] == counts[:, :2]).all(1)
    counts = np.concatenate(
        [counts[:, :20], np.where(whole, 0, counts[:, 20])[:, None], counts[:, 21:]], 1
    )

    def statistic(times: Float64[np.ndarray, "R I"]) -> Float64[np.ndarray, " R"]:
        lengths, matches, (chunks, *matched) = np.split((times @ counts).T, [4, 20])
        # Content words of caption and reference, then function words, of every matcher.
        content, function = matches.reshape(len(MATCHERS), 2, 2, -1).swapaxes(0, 1)
        weighted = DELTA * content + (1 - DELTA) * function
        found = np.tensordot(MATCHERS, weighted, 1)
        length = DELTA * (lengths[:2] - lengths[2:]) + (1 - DELTA) * lengths[2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            precision, recall = found / length
            mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
            penalty = GAMMA * (chunks / np.mean(matched, 0)) ** BETA
            score = 100 * mean * (1 - penalty)
        return np.nan_to_num(score)

    return statistic


def lines(tallies: Iterable[Tally]) -> str:
    """A file of tallies."""
    return "".join(
        json.dumps({k: v for k, v in asdict(tally).items() if v is not None}, ensure_ascii=False)
        + "\n"
        for tally in tallies
    )


def read(file: Path) -> list[Tally]:
    """The tallies in a file, in the order of their images' ids.

    Raises:
        EvaluationError: it cannot be read, or holds something else.
    """
    try:
        records = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
        found = [_tally(record) for record in records]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(
            f"{file} holds no tallies of images ({error}); score the run again, or delete the file"
        ) from error
    if len({(tally.part, tally.image_id) for tally in found}) < len(found) or not found:
        raise EvaluationError(f"{file} names {'an image twice' if found else 'no image'}")
    return sorted(found, key=lambda tally: str(tally.image_id))


def _tally(record: dict[str, Any]) -> Tally:
    """As ``lines`` wrote it."""
    bleu, meteor = record.get("bleu"), record.get("meteor")
    for name, numbers, expected in (
        ("bleu", bleu, 2 + 2 * ORDER),
        ("meteor", meteor, OF_METEOR),
    ):
        if numbers is not None and len(numbers) != expected:
            raise ValueError(f"{name} has {len(numbers)} numbers, expected {expected}")
    ratios = {name: (float(a), float(b)) for name, (a, b) in record.get("ratios", {}).items()}
    return Tally(
        record["image_id"],
        ratios,
        record.get("caption"),
        None if bleu is None else tuple(map(int, bleu)),
        None if meteor is None else tuple(map(float, meteor)),
        record.get("part"),
        record.get("asked"),
    )
