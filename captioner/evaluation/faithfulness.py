"""Faithfulness: does a word lose its probability when the regions looked at for it are erased?

A map may be plausible and yet not be what the word depends on (Jain, Wallace 2019, arXiv
1902.10186). So regions are erased, for one word at a time, and the fall of its log-probability is
measured (``captioner.evaluation.deletion``): those with the greatest weights first, those with the
least first, and in random order. Attention that is faithful orders the three, most > random > least.

    found = measure(captioner.load("runs/soft"), records)
    found.words["content"].areas["most"], found.words["content"].verdict
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from captioner.data.pixels import PixelBatch, read_batches
from captioner.data.records import Record
from captioner.decoding import search
from captioner.errors import EvaluationError, UsageError
from captioner.evaluation.bootstrap import Bootstrap, Estimate, ratio
from captioner.evaluation.deletion import ORDERS, SHARES, Falls, Order, word_falls
from captioner.evaluation.function_words import FUNCTION_WORDS
from captioner.evaluation.tallies import Tally
from captioner.models.attention.distributions import Hard
from captioner.models.decoder import Decoder
from captioner.models.erasure import of_pictures
from captioner.predictor import Predictor
from captioner.text import UNK, Tokenizer, Vocabulary

Regime = Literal["forced", "generated"]
GROUPS = ("all", "content", "function")
ROUNDING = 1e-5
"""Of log-probabilities in single precision, in nats: no smaller difference means anything."""


@dataclass(frozen=True)
class Curves:
    """What erasing regions costs a group of words, with 95 % bootstrap intervals over images.

    Attributes:
        words: how many.
        log_prob: their mean log-probability, nothing erased; nats.
        falls: for every order and share of regions, how far it falls; nats.
        areas: for every order the area over the curve: the mean of the fall along it.
        most_over_random: the difference of two areas, image by image; and
        random_over_least: likewise.
    """

    words: int
    log_prob: Estimate
    falls: dict[Order, list[Estimate]]
    areas: dict[Order, Estimate]
    most_over_random: Estimate
    random_over_least: Estimate

    @property
    def verdict(self) -> str:
        """Whether most > random > least, as far as the intervals can say."""
        pairs = (self.most_over_random, self.random_over_least)
        upper, lower = (_sign(difference) for difference in pairs)
        found = f"most {upper} random {lower} least"
        if found == "most > random > least":
            return f"{found} holds"
        return f"most > random > least does not hold: {found}"

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "log_prob": self.log_prob.as_dict(),
            **{f"area_{order}": area.as_dict() for order, area in self.areas.items()},
            "most_over_random": self.most_over_random.as_dict(),
            "random_over_least": self.random_over_least.as_dict(),
            "verdict": self.verdict,
            "words": self.words,
            "falls": {o: [f.as_dict() for f in falls] for o, falls in self.falls.items()},
        }


def _sign(difference: Estimate) -> str:
    """How two measures stand to each other; ≈ where the interval of their difference holds 0."""
    if difference.low > ROUNDING:
        return ">"
    return "<" if difference.high < -ROUNDING else "≈"


@dataclass(frozen=True)
class Sums:
    """Over the words of one image: for each of ``GROUPS`` how many there are, and what they add up to.

    Attributes:
        image_id: as the record has it.
        words: how many.
        log_probs: of each group.
        falls: for every order and number of regions.
        areas: for every order.
    """

    image_id: int | str
    words: Float64[np.ndarray, " G"]
    log_probs: Float64[np.ndarray, " G"]
    falls: Float64[np.ndarray, "G 3 Q"]
    areas: Float64[np.ndarray, "G 3"]

    def tally(self) -> Tally:
        """The measures in which models are compared."""
        ratios = {}
        for g, group in enumerate(GROUPS):
            most, random, least = self.areas[g]
            measures = {
                "log_prob": self.log_probs[g],
                **{f"area_{order}": self.areas[g, o] for o, order in enumerate(ORDERS)},
                "most_over_random": most - random,
                "random_over_least": random - least,
            }
            for name, total in measures.items():
                ratios[f"{group}.{name}"] = (float(total), float(self.words[g]))
        return Tally(self.image_id, ratios)


@dataclass(frozen=True)
class Faithfulness:
    """How much words depend on where the decoder looks.

    Attributes:
        regime: whose captions: the references, ``forced`` on the model, or ``generated`` by it.
        mechanism: how the decoder attends.
        words: the curves of ``all``, ``content`` and ``function`` words.
        shares: of the regions, erased one after the other; the mean over images.
        unknown: words of the captions that the model does not know, which are left out.
        failed: one line for each photo that could not be read.
        tallies: what each image adds, for ``captioner.evaluation.tallies.lines``.
        settings: what else the numbers depend on.
    """

    regime: Regime
    mechanism: str
    words: dict[str, Curves]
    shares: tuple[float, ...]
    unknown: int
    failed: tuple[str, ...]
    tallies: tuple[Tally, ...]
    settings: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the tallies."""
        return {
            "measure": "faithfulness",
            "regime": self.regime,
            "mechanism": self.mechanism,
            "erased": "the picture's mean annotation, refined, at the word's own step alone",
            "images": len(self.tallies),
            "failed": list(self.failed),
            "unknown_words": self.unknown,
            "shares": [round(share, 6) for share in self.shares],
            "settings": self.settings,
            "scores": {group: curves.as_dict() for group, curves in self.words.items()},
        }


def measure(
    predictor: Predictor,
    records: Sequence[Record],
    regime: Regime = "forced",
    *,
    captions: int = 1,
    shares: Sequence[float] = SHARES,
    draws: int = 3,
    batch_size: int = 8,
    seed: int = 0,
    resamples: int = 2000,
    progress: Callable[[Iterable[PixelBatch], int], Iterable[PixelBatch]] = lambda batches, _: (
        batches
    ),
) -> Faithfulness:
    """Measures a captioner on photos.

    Hard attention that samples is measured at the most probable region: see ``mechanism``.

    Args:
        predictor: from ``captioner.load``.
        records: photos with their reference captions. A photo that cannot be read costs only itself.
        regime: ``forced``, the reference captions are fed in, whose words are the same for every
            model; or ``generated``, what the model would say, searched for as its decoding says.
        captions: how many reference captions of each photo, the first ones; not used for generated.
        shares: of a picture's regions to erase, increasing, above 0 and up to 1.
        draws: over how many random choices of regions ``random`` is averaged.
        batch_size: photos computed together.
        seed: of everything drawn.
        resamples: of the bootstrap.
        progress: wraps the batches, whose number it is told, to show a bar.

    Raises:
        UsageError: an option that is none.
        EvaluationError: no photo could be read, or no caption holds a word that the model knows.
    """
    if regime not in get_args(Regime):
        raise UsageError(f"regime must be forced or generated, got {regime!r}")
    if min(captions, draws, batch_size, resamples) < 1:
        raise UsageError(
            "captions, draws, batch_size and resamples must be 1 or more, got "
            f"{captions}, {draws}, {batch_size} and {resamples}"
        )
    if not shares or sorted(set(shares)) != list(shares) or not 0 < shares[0] <= shares[-1] <= 1:
        raise UsageError(
            f"shares must be increasing, above 0 and up to 1, got {', '.join(map(str, shares))}"
        )
    whole = predictor.captioner
    decoder = _settled(whole.decoder)
    sums: list[Sums] = []
    failed: list[str] = []
    reached: list[Tensor] = []
    unknown = 0
    paths = [record.path for record in records]
    batches = read_batches(paths, batch_size, whole.encoder.preprocessing)
    for batch in progress(batches, math.ceil(len(paths) / batch_size)):
        failed += [str(error) for _, error in sorted(batch.failed.items())]
        if not batch.indices:
            continue
        some = [records[index] for index in batch.indices]
        with torch.inference_mode():
            annotations = whole.refiner(whole.encode(batch.pixels.to(predictor.device)))
        if regime == "generated":
            decoding = predictor.decoding.with_options({"samples": 1})
            said = [[best.tokens] for best, *_ in search(decoder, annotations, decoding)]
        else:
            said = [_references(record, captions, predictor) for record in some]
        flat = [ids for of_picture in said for ids in of_picture]
        if not flat:
            sums += [_sums(record, [], [], whole.vocabulary, len(shares)) for record in some]
            continue
        pictures = [place for place, of_picture in enumerate(said) for _ in of_picture]
        chosen = torch.tensor(pictures, device=predictor.device)
        found = word_falls(
            decoder,
            of_pictures(annotations, chosen),
            flat,
            shares,
            draws,
            seed + len(sums),
        )
        unknown += sum(ids.count(UNK) for ids in flat)
        reached += [falls.shares for falls in found]
        falls = iter(found)
        for record, of_picture in zip(some, said, strict=True):
            own = [next(falls) for _ in of_picture]
            sums.append(_sums(record, of_picture, own, whole.vocabulary, len(shares)))
    if not any(image.words[0] for image in sums):
        reason = failed[0] if failed else "no caption holds a word that the model knows"
        raise EvaluationError(f"faithfulness of {len(records)} photos cannot be measured: {reason}")
    return Faithfulness(
        regime,
        decoder.mechanism,
        _curves(sums, Bootstrap(len(sums), resamples, seed)),
        tuple(torch.stack(reached).mean(0).tolist()),
        unknown,
        tuple(failed),
        tuple(image.tally() for image in sums),
        {
            "captions_per_image": captions if regime == "forced" else 1,
            "largest_share": shares[-1],
            "draws": draws,
            "seed": seed,
            "resamples": resamples,
        },
    )


def _settled(decoder: Decoder) -> Decoder:
    """The decoder, hard attention that samples looking at the most probable region instead.

    Two samples of one step differ, whatever is erased between them.
    """
    if not any(isinstance(part, Hard) and part.test_time == "sample" for part in decoder.modules()):
        return decoder
    settled = copy.deepcopy(decoder)
    for part in settled.modules():
        if isinstance(part, Hard) and part.test_time == "sample":
            part.test_time = "argmax"
    return settled


def _references(record: Record, count: int, predictor: Predictor) -> list[list[int]]:
    """The first captions of a photo as ids, none longer than the model writes."""
    words = [Tokenizer()(caption) for caption in record.captions[:count]]
    longest = predictor.decoding.max_length
    return [predictor.vocabulary.encode(caption[:longest]) for caption in words if caption]


def _sums(
    record: Record,
    captions: Sequence[Sequence[int]],
    found: Sequence[Falls],
    vocabulary: Vocabulary,
    shares: int,
) -> Sums:
    """What a photo adds, one region and so many shares of them erased."""
    groups, orders = len(GROUPS), len(ORDERS)
    image = Sums(
        record.image_id,
        np.zeros(groups),
        np.zeros(groups),
        np.zeros((groups, orders, shares + 1)),
        np.zeros((groups, orders)),
    )
    for ids, falls in zip(captions, found, strict=True):
        known = np.array([word != UNK for word in ids])
        function = np.array([vocabulary.words[word] in FUNCTION_WORDS for word in ids])
        member = np.stack([known, known & ~function, known & function]).astype(np.float64)  # G T
        for total, values in (
            (image.words, torch.ones_like(falls.log_probs)),
            (image.log_probs, falls.log_probs),
            (image.falls, falls.falls),
            (image.areas, falls.areas),
        ):
            total += np.tensordot(member, values.double().cpu().numpy(), 1)
    return image


def _curves(sums: Sequence[Sums], bootstrap: Bootstrap) -> dict[str, Curves]:
    """The means over words, by group; a group without a word is left out."""
    words, log_probs, falls, areas = (
        np.stack([getattr(image, name) for image in sums])
        for name in ("words", "log_probs", "falls", "areas")
    )
    found = {}
    for g, group in enumerate(GROUPS):
        if not words[:, g].any():
            continue

        def mean(totals: np.ndarray, numbers: np.ndarray = words[:, g]) -> Estimate:
            return bootstrap.estimate(ratio(totals, numbers))

        most, random, least = areas[:, g].T
        found[group] = Curves(
            round(words[:, g].sum()),
            mean(log_probs[:, g]),
            {order: [mean(level) for level in falls[:, g, o].T] for o, order in enumerate(ORDERS)},
            {order: mean(areas[:, g, o]) for o, order in enumerate(ORDERS)},
            mean(most - random),
            mean(random - least),
        )
    return found
