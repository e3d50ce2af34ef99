"""How much several captions of an image differ, and how good the best of them is."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import BleuScorer

from captioner.evaluation.cider import CiderD

Captions = Sequence[Sequence[str]]  # the words of several captions


@dataclass(frozen=True)
class Diversity:
    """Diversity of the captions of an image, in percent: means over the images with several captions.

    Attributes:
        images: number of images with several captions.
        captions: mean number of their captions.
        distinct_1, distinct_2: different words, or different pairs of neighbouring words, among the
            captions of an image, divided by their number of words (Li et al. 2016, arXiv 1510.03055;
            per image as Div-n in Shetty et al. 2017, arXiv 1703.10476).
        mbleu_4: corpus BLEU-4 of the i-th captions against the other captions of their image, averaged
            over i (mBLEU, Shetty et al. 2017). Lower is more diverse.
        self_cider: -log_m(√λ₁ / Σ √λᵢ) of the eigenvalues λ₁ ≥ λ₂ ≥ … of the kernel matrix of m
            captions, whose entries are the CIDEr between two captions (Wang, Chan 2019, arXiv
            1903.12020). 0 if all captions are equal, 100 if no two share a word.
        oracle_cider: CIDEr-D of the best caption of each image.
    """

    images: int
    captions: float
    distinct_1: float
    distinct_2: float
    mbleu_4: float
    self_cider: float
    oracle_cider: float


def diversity(captions: Mapping[Any, Captions], references: Mapping[Any, Captions]) -> Diversity:
    """Measure the diversity of the captions of images; captions are lists of words.

    ``captions`` has at least two captions for each image. ``references`` may have more images: CIDEr
    takes its document frequencies from all of them.
    """
    cider = CiderD(references.values())
    best = [max(cider(found, references[image])) for image, found in captions.items()]
    each = list(captions.values())
    kernels = [np.array(cider.similarities(found)) for found in each]
    return Diversity(
        len(each),
        captions=_mean(len(found) for found in each),
        distinct_1=100 * _mean(distinct(found, 1) for found in each),
        distinct_2=100 * _mean(distinct(found, 2) for found in each),
        mbleu_4=100 * mutual_bleu(each),
        self_cider=100 * _mean(map(spectral_diversity, kernels)),
        oracle_cider=100 * _mean(best),
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def distinct(captions: Captions, n: int) -> float:
    """Return the number of different n-grams, n = 1 or 2, per word; 0 without words."""
    grams = {g for words in captions for g in (pairwise(words) if n == 2 else words)}
    return len(grams) / max(sum(map(len, captions)), 1)


def mutual_bleu(images: Sequence[Captions]) -> float:
    """Return the mean over i of the corpus BLEU-4 of the i-th captions against the others."""
    scores = []
    for i in range(max(map(len, images))):
        bleu = BleuScorer(n=4)
        for captions in images:
            lines = [" ".join(words) for words in captions]
            if i < len(lines):
                bleu += (lines[i], lines[:i] + lines[i + 1 :])
        scores.append(bleu.compute_score(option="closest")[0][3])
    return float(np.mean(scores))


def spectral_diversity(kernel: np.ndarray) -> float:
    """Return -log_m(√λ₁ / Σ √λᵢ) of a kernel matrix (m, m), m ≥ 2; 0 for a matrix of zeros."""
    roots = np.sqrt(np.linalg.eigvalsh(kernel).clip(0))
    total = roots.sum()
    return float(-np.log(roots.max() / total) / np.log(len(roots))) if total else 0.0
