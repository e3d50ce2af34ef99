"""Beam search, plain and diverse, and scoring of captions, with any decoder.

A search is batched over images. Greedy search is a beam of one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.errors import ModelError, UsageError
from captioner.language.vocabulary import END, PAD, START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.tensors import index_batch, map_tensors
from captioner.search.filters import allowed_log_probs
from captioner.search.hypotheses import (
    Beam,
    Extensions,
    Groups,
    Hypothesis,
    average_paths,
    best_first,
    in_parts,
)
from captioner.search.options import Decoding

# Finished images leave the batch once they are this share of it: copying the other images' keys
# costs about an eighth of a step.
COMPACT_SHARE = 1 / 8


@torch.inference_mode()
def search(
    decoder: Decoder,
    annotations: Annotations,
    decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    sampling: Sampling | None = None,
) -> list[list[Hypothesis]]:
    """Find the best captions of every image: best first, at least one, at most ``beam_size``.

    With ``diverse_groups``, the best caption of every group comes first, then the others. Captions are
    not empty and contain no ``<pad>``, ``<start>`` or ``<unk>``. The images of a batch are independent.

    Args:
        decoder: in eval mode.
        annotations: after the neck.
        decoding: options.
        sampling: how hard attention chooses locations; None for its own options.

    Raises:
        ModelError: the decoder's scores are not numbers, or its vocabulary has no words.
        UsageError: several samples of a decoder that does not sample locations.
    """
    decoder = average_paths(decoder, decoding.samples)
    results = []
    for part in in_parts(annotations, decoding.beam_size * decoding.samples):
        results += [best_first(groups) for groups in beam_search(decoder, part, decoding, sampling)]
    if not all(results):
        raise ModelError(
            "no caption can be written: the decoder's scores are NaN or infinite, or its vocabulary "
            "has no words: train it again with a smaller learning rate, or check the vocabulary"
        )
    return results


def beam_search(
    decoder: Decoder, annotations: Annotations, decoding: Decoding, sampling: Sampling | None
) -> list[Groups]:
    """Extend every hypothesis by every word, and keep the best, until enough hypotheses have ended.

    Plain beam search has one group of hypotheses. In diverse beam search (Vijayakumar et al. 2018, arXiv
    1610.02424), every group is a search of its own that avoids the words of the groups before it. A
    group of K hypotheses is done when K have ended, or at ``max_length``, where all hypotheses end.
    """
    groups, size = decoding.diverse_groups, decoding.group_size
    results: list[Groups] = [[[] for _ in range(groups)] for _ in range(len(annotations))]
    finished = results  # of the images that are still in the batch
    beam = Beam.empty(decoder, annotations, groups, sampling)
    for length in range(1, decoding.max_length + 2):  # the end token counts
        logits, weights, state = decoder.step(beam.tokens[..., -1], beam.state)
        log_probs = allowed_log_probs(logits, beam.tokens, decoding)  # (B, R, V)
        chosen = _choose(beam, log_probs, finished, decoding)
        active = [row for row, lists in enumerate(finished) if any(len(g) < size for g in lists)]
        if not active or length > decoding.max_length:
            break
        beam = beam.extended(chosen, log_probs, weights, state)
        if len(finished) - len(active) >= COMPACT_SHARE * len(finished):
            beam = index_batch(beam, torch.tensor(active, device=log_probs.device))
            finished = [finished[row] for row in active]
    return results


def _choose(
    beam: Beam, log_probs: Float[Tensor, "B R V"], finished: list[Groups], decoding: Decoding
) -> Extensions:
    """Choose the K best extensions of each group that do not end, and finish those that do.

    An extension that ends is finished if it is among the K best of its group. The groups choose one
    after the other. Words that earlier groups have chosen at this step are penalised (Hamming diversity,
    Vijayakumar et al. 2018, §4).
    """
    groups, size = decoding.diverse_groups, decoding.group_size
    rows = log_probs.shape[1] // groups  # K, and 1 in the first step
    counts = torch.zeros_like(log_probs[:, 0])  # (B, V), of the words of earlier groups
    chosen = []
    for group in range(groups):
        first = group * rows
        own = slice(first, first + rows)
        scores = beam.scores[:, own].unsqueeze(-1) + log_probs[:, own]
        if group:
            scores = scores - decoding.diversity * counts.unsqueeze(1)
        # At most one extension of a hypothesis ends it, so K of the best 2 K do not end.
        best = Extensions.best(scores, 2 * size, first)
        lists = [image[group] for image in finished]
        beam.finish(best, log_probs, lists, decoding)
        extensions = best.continuing(size)
        chosen.append(extensions)
        if group + 1 < groups:  # a group that is done chooses no words
            searches = torch.tensor([len(done) < size for done in lists], device=counts.device)
            spoken = extensions.scores.isfinite() & searches.unsqueeze(1)
            counts = counts.scatter_add(1, extensions.words, spoken.to(counts.dtype))
    return map_tensors(lambda *parts: torch.cat(parts, 1), *chosen)


@torch.inference_mode()
def score_captions(
    decoder: Decoder, annotations: Annotations, captions: Sequence[Sequence[int]], samples: int = 1
) -> list[Hypothesis]:
    """Score captions of one image and return them as hypotheses.

    The weights of layers, heads and earlier words are included, unless ``samples`` is above 1.

    Args:
        decoder: in eval mode.
        annotations: of one image, after the neck.
        captions: ids of the words of each caption, without start and end; at least one word.
        samples: as in ``Decoding``.

    Raises:
        UsageError: no words, or several samples of a decoder that does not sample locations.
    """
    if not all(captions):
        raise UsageError("a caption to explain needs at least one word")
    decoder = average_paths(decoder, samples)
    longest = max(map(len, captions))
    padded = [[START, *words, END, *[PAD] * (longest - len(words))] for words in captions]
    tokens = torch.tensor([padded], device=annotations.vectors.device)  # (1, R, T + 1)
    decoded = decoder(annotations, tokens[..., :-1], details=True)
    log_probs = decoded.logits.float().log_softmax(-1).gather(-1, tokens[..., 1:, None])[0, ..., 0]
    details = (decoded.weights, decoded.centre, decoded.layers, decoded.past_weights)
    hypotheses = []
    for row, words in enumerate(captions):
        count = len(words)  # the step after the words predicts the end of the caption
        shown: list[Any] = [None if d is None else d[0, row, :count].float().cpu() for d in details]
        weights, centre, layers, past = shown
        past = None if past is None else past[..., :count]
        each, total = log_probs[row, :count].tolist(), float(log_probs[row, : count + 1].sum())
        score = total / (count + 1)
        hypotheses.append(Hypothesis([*words], each, total, weights, score, centre, layers, past))
    return hypotheses
