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

import torch
from torch import Tensor

from captioner.data.pixels import PixelBatch, read_batches
from captioner.data.records import Record
from captioner.decoding import search
from captioner.errors import EvaluationError, UsageError
from captioner.evaluation.bootstrap import Bootstrap
from captioner.evaluation.curves import Curves, Sums, curves_of, sums_of
from captioner.evaluation.deletion import SHARES, word_falls
from captioner.evaluation.tallies import Tally
from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import hard_attention, samples_locations
from captioner.models.decoder import Decoder, of_pictures
from captioner.predictor import Predictor
from captioner.text import UNK, Tokenizer

Regime = Literal["forced", "generated"]


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
    sizes: Sequence[tuple[int, int]] | None = None,
    progress: Callable[[Iterable[PixelBatch], int], Iterable[PixelBatch]] = lambda batches, _: (
        batches
    ),
) -> Faithfulness:
    """Measures a captioner on photos.

    Hard attention that samples is measured at the most probable region (see ``mechanism``), though the
    captions that it generates are those that its samples lead to.

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
        sizes: the (width, height) at which each photo was annotated: one that was turned since is left
            out, as where masks are asked for. None: however they lie.
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
    batches = read_batches(paths, batch_size, whole.encoder.preprocessing, sizes)
    for batch in progress(batches, math.ceil(len(paths) / batch_size)):
        failed += [str(error) for _, error in sorted(batch.failed.items())]
        if not batch.indices:
            continue
        some = [records[index] for index in batch.indices]
        with torch.inference_mode():
            annotations = whole.refiner(whole.encode(batch.pixels.to(predictor.device)))
        if regime == "generated":
            said = _generated(predictor, annotations, seed + len(sums))
        else:
            said = [_references(record, captions, predictor) for record in some]
        flat = [ids for of_picture in said for ids in of_picture]
        if not flat:
            sums += [sums_of(record, [], [], whole.vocabulary, len(shares)) for record in some]
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
            sums.append(sums_of(record, of_picture, own, whole.vocabulary, len(shares)))
    if not any(image.words[0] for image in sums):
        reason = failed[0] if failed else "no caption holds a word that the model knows"
        raise EvaluationError(f"faithfulness of {len(records)} photos cannot be measured: {reason}")
    return Faithfulness(
        regime,
        decoder.mechanism,
        curves_of(sums, Bootstrap(len(sums), resamples, seed)),
        tuple(torch.stack(reached).mean(0).tolist()),
        unknown,
        tuple(failed),
        tuple(image.tally(f"{regime}.faithfulness", regime == "forced") for image in sums),
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
    if not samples_locations(decoder):
        return decoder
    settled = copy.deepcopy(decoder)
    for law in hard_attention(settled):
        if law.test_time == "sample":
            law.test_time = "argmax"
    return settled


def _generated(predictor: Predictor, annotations: Annotations, seed: int) -> list[list[list[int]]]:
    """The best caption of every picture as ids, as the model decodes, drawing if it does."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        found = search(predictor.captioner.decoder, annotations, predictor.decoding)
    return [[best.tokens] for best, *_ in found]


def _references(record: Record, count: int, predictor: Predictor) -> list[list[int]]:
    """The first captions of a photo as ids, none longer than the model writes."""
    words = [Tokenizer()(caption) for caption in record.captions[:count]]
    longest = predictor.decoding.max_length
    return [predictor.vocabulary.encode(caption[:longest]) for caption in words if caption]
