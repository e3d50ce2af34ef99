"""Beam search and scoring of captions, with any decoder.

A search is batched over images. Greedy search is a beam of one.
"""

from collections.abc import Sequence
from typing import Any

import torch

from captioner.errors import ModelError, UsageError
from captioner.language.vocabulary import END, PAD, START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.search.diverse import diverse_beam_search
from captioner.search.filters import allowed_log_probs
from captioner.search.hypotheses import (
    Beam,
    Extensions,
    Hypothesis,
    average_paths,
    compact,
    in_parts,
)
from captioner.search.options import Decoding


@torch.inference_mode()
def search(
    decoder: Decoder,
    annotations: Annotations,
    decoding: Decoding = Decoding(),  # noqa: B008 - frozen
    sampling: Sampling | None = None,
) -> list[list[Hypothesis]]:
    """Find the best captions of every image: best first, at least one, at most ``beam_size``.

    Captions are not empty and contain no ``<pad>``, ``<start>`` or ``<unk>``. The images of a batch are
    independent.

    Args:
        decoder: in eval mode.
        annotations: after the neck.
        decoding: options; with ``diverse_groups``, the search is diverse beam search.
        sampling: how hard attention chooses locations; None for its own options.

    Raises:
        ModelError: the decoder's scores are not numbers, or its vocabulary has no words.
        UsageError: several samples of a decoder that does not sample locations.
    """
    decoder = average_paths(decoder, decoding.samples)
    find = beam_search if decoding.diverse_groups == 1 else diverse_beam_search
    results = []
    for part in in_parts(annotations, decoding.beam_size * decoding.samples):
        results += find(decoder, part, decoding, sampling)
    if not all(results):
        raise ModelError(
            "no caption can be written: the decoder's scores are NaN or infinite, or its vocabulary "
            "has no words: train it again with a smaller learning rate, or check the vocabulary"
        )
    return results


def beam_search(
    decoder: Decoder, annotations: Annotations, decoding: Decoding, sampling: Sampling | None
) -> list[list[Hypothesis]]:
    """Extend every hypothesis by every word, and keep the K = ``beam_size`` best that do not end.

    An extension that ends is finished if it is among the K best. An image is done when it has K finished
    hypotheses, or at ``max_length``, where all hypotheses end.
    """
    size = decoding.beam_size
    results: list[list[Hypothesis]] = [[] for _ in range(len(annotations))]
    finished = results  # of the images that are still in the batch
    beam = Beam.empty(decoder, annotations, 1, sampling)
    for length in range(1, decoding.max_length + 2):  # the end token counts
        logits, weights, state = decoder.step(beam.tokens[..., -1], beam.state)
        log_probs = allowed_log_probs(logits, beam.tokens, decoding)  # (B, K, V)
        # At most one extension of a hypothesis ends it, so K of the best 2 K do not end.
        best = Extensions.best(beam.totals.unsqueeze(-1) + log_probs, 2 * size)
        beam.finish(best, best.totals, finished, decoding)
        active = [image for image, done in enumerate(finished) if len(done) < size]
        if not active or length > decoding.max_length:
            break
        beam = beam.extended(best.continuing(size), log_probs, weights, state)
        beam, finished = compact(beam, finished, active, beam.totals.device)
    return [sorted(hypotheses, key=lambda h: -h.score) for hypotheses in results]


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
