"""Diverse beam search (Vijayakumar et al. 2018, arXiv 1610.02424)."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.tensors import map_tensors
from captioner.search.filters import allowed_log_probs
from captioner.search.hypotheses import Beam, Extensions, Hypothesis, compact
from captioner.search.options import Decoding

Groups = list[list[Hypothesis]]  # the finished hypotheses of an image by group


def diverse_beam_search(
    decoder: Decoder, annotations: Annotations, decoding: Decoding, sampling: Sampling | None
) -> list[list[Hypothesis]]:
    """Find captions by several beam searches, each of which avoids the words of those before it.

    Each of the G groups is a beam search with ``beam_size`` / G hypotheses. At every step, the groups
    choose one after the other, and words that earlier groups have chosen at this step are penalised
    (Hamming diversity, §4). The penalties count in the choice, not in the log-probabilities and scores
    of the results. The best caption of every group comes first, then the others.
    """
    groups, size = decoding.diverse_groups, decoding.group_size
    results: list[Groups] = [[[] for _ in range(groups)] for _ in range(len(annotations))]
    finished = results  # of the images that are still in the batch
    # Every group has the same number of rows in the beam, one group after the other.
    beam = Beam.empty(decoder, annotations, groups, sampling)
    penalties = torch.zeros_like(beam.totals)  # which have been subtracted from the totals
    for length in range(1, decoding.max_length + 2):  # the end token counts
        logits, weights, state = decoder.step(beam.tokens[..., -1], beam.state)
        log_probs = allowed_log_probs(logits, beam.tokens, decoding)  # (B, K, V)
        chosen, penalties = _choose(beam, penalties, log_probs, finished, decoding)
        active = [row for row, lists in enumerate(finished) if any(len(g) < size for g in lists)]
        if not active or length > decoding.max_length:
            break
        beam = beam.extended(chosen, log_probs, weights, state)
        remaining, finished = compact((beam, penalties), finished, active, penalties.device)
        beam, penalties = remaining
    return [_best_first(lists) for lists in results]


def _choose(
    beam: Beam,
    penalties: Float[Tensor, "B K"],
    log_probs: Float[Tensor, "B K V"],
    finished: list[Groups],
    decoding: Decoding,
) -> tuple[Extensions, Float[Tensor, "B C"]]:
    """Finish hypotheses and choose the next ones, one group after the other.

    Returns:
        The next hypotheses, and the penalties of their words.
    """
    size, rows = decoding.group_size, beam.totals.shape[1] // decoding.diverse_groups
    counts = torch.zeros_like(log_probs[:, 0])  # (B, V), of the words of earlier groups

    def penalties_of(extensions: Extensions) -> Float[Tensor, "B C"]:
        new = decoding.diversity * counts.gather(1, extensions.words)
        return penalties.gather(1, extensions.parents) + new

    chosen = []
    for group in range(decoding.diverse_groups):
        first = group * rows
        own = slice(first, first + rows)
        totals = beam.totals[:, own].unsqueeze(-1) + log_probs[:, own]
        best = Extensions.best(totals - decoding.diversity * counts.unsqueeze(1), 2 * size)
        best = replace(best, parents=best.parents + first)
        lists = [image[group] for image in finished]
        beam.finish(best, best.totals + penalties_of(best), lists, decoding)
        extensions = best.continuing(size)
        chosen.append((extensions, penalties_of(extensions)))
        # A group that is done chooses no words.
        searches = torch.tensor([len(done) < size for done in lists], device=totals.device)
        spoken = extensions.totals.isfinite() & searches.unsqueeze(1)
        counts = counts.scatter_add(1, extensions.words, spoken.to(counts.dtype))
    return map_tensors(lambda *parts: torch.cat(parts, 1), *chosen)


def _best_first(groups: Groups) -> list[Hypothesis]:
    """Sort the best hypothesis of each group, then the others, by score; repeated captions come last."""
    groups = [_ranked(hypotheses) for hypotheses in groups]
    best = [hypotheses[0] for hypotheses in groups if hypotheses]
    others = [h for hypotheses in groups for h in hypotheses[1:]]
    ordered = _ranked(best) + _ranked(others)
    first = {tuple(h.tokens): h for h in reversed(ordered)}
    return sorted(ordered, key=lambda h: first[tuple(h.tokens)] is not h)


def _ranked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda h: -h.score)
