"""Beam search and scoring of captions, with any decoder.

A search is batched over images. Greedy search is a beam of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner import limits
from captioner.errors import ModelError, UsageError, unknown
from captioner.language.vocabulary import END, PAD, START, UNK
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.monte_carlo import MonteCarlo
from captioner.models.tensors import gather_rows, index_batch, map_tensors

# Finished images leave the batch once they are this share of it: copying the other images' keys
# costs about an eighth of a step.
COMPACT_SHARE = 1 / 8


@dataclass(frozen=True)
class Decoding:
    """Options of the search for captions; values outside ``limits.DECODING`` raise UsageError.

    Attributes:
        beam_size: hypotheses per image; 1 is greedy search.
        max_length: maximal number of words.
        length_penalty: hypotheses are ranked by log-probability / length ** length_penalty, where
            the length includes the end token; 1 is the mean per token, 0 prefers short captions.
        samples: number of paths that are averaged, for sampled hard attention; see ``MonteCarlo``.
        no_repeat: no sequence of this many words occurs twice in a caption (Paulus et al. 2018, arXiv
            1705.04304, §2.5); 0 allows repetitions.
        min_length: least number of words, at most ``max_length``.
        diverse_groups: groups of the beam, for diverse beam search (Vijayakumar et al. 2018, arXiv
            1610.02424); 1 is plain beam search. It divides ``beam_size``.
        diversity: penalty, in nats, of a word for every hypothesis of an earlier group that has the
            same word at the same position; with ``diverse_groups``.
    """

    beam_size: int = 5
    max_length: int = 24
    length_penalty: float = 1.0
    samples: int = 1
    no_repeat: int = 0
    min_length: int = 1
    diverse_groups: int = 1
    diversity: float | int = 0.5

    def __post_init__(self) -> None:
        for option, expected in limits.DECODING.items():
            limits.check(option, getattr(self, option), expected)
        limits.check_lengths(self.min_length, self.max_length)
        if self.beam_size * self.samples > limits.MAX_ROWS:
            raise UsageError(
                f"beam_size × samples must be at most {limits.MAX_ROWS}, "
                f"got {self.beam_size} × {self.samples}"
            )
        if self.beam_size % self.diverse_groups:
            raise UsageError(
                "beam_size must be a multiple of diverse_groups, so that all groups have the same size, "
                f"got {self.beam_size} and {self.diverse_groups}"
            )

    def with_options(self, options: Mapping[str, Any]) -> "Decoding":
        """Return a copy with some options changed; those that are None stay as they are.

        Raises:
            UsageError: an unknown option, or a value out of range.
        """
        for name in options.keys() - limits.DECODING.keys():
            raise UsageError(unknown("decoding option", name, limits.DECODING))
        return replace(self, **{k: value for k, value in options.items() if value is not None})


@dataclass(frozen=True)
class Hypothesis:
    """A caption as token ids.

    The last three fields are None if not requested or if the decoder has none: see ``Decoded``.
    """

    tokens: list[int]  # ids of the T words, without start and end
    log_probs: list[float]  # in nats, of each word given the words before it
    log_prob: float  # of the whole caption including its end
    weights: Float[Tensor, "T L"]  # attention weights of each word
    score: float  # hypotheses are ranked by it
    centre: Float[Tensor, "T 2"] | None = None
    layers: Float[Tensor, "T l h L"] | None = None
    past_weights: Float[Tensor, "T l s T"] | None = None


Groups = list[list[Hypothesis]]  # the finished hypotheses of an image by group


@dataclass(frozen=True)
class Beam:
    """The unfinished hypotheses: K of t words for each image, where K is at most the beam size.

    Each group has K / groups of them, one group after the other.
    """

    state: Any  # of the decoder before it reads the last word
    totals: Float[Tensor, "B K"]  # log-probabilities of the hypotheses minus their penalties
    penalties: Float[Tensor, "B K"]  # of words that earlier groups chose, too
    tokens: Int[Tensor, "B K s"]  # s = t + 1, from ``<start>``
    log_probs: Float[Tensor, "B K t"]
    weights: Float[Tensor, "B K t L"]


@torch.inference_mode()
def search(
    decoder: Decoder,
    annotations: Annotations,
    decoding: Decoding = Decoding(),
    sampling: Sampling | None = None,
) -> list[list[Hypothesis]]:
    """Find the best captions of every image: best first, at least one, at most ``beam_size``.

    Each step extends every hypothesis by every word and keeps the ``beam_size`` best extensions that
    do not end. An extension that ends and is among the ``beam_size`` best is finished. An image is
    done when it has ``beam_size`` finished hypotheses, or at ``max_length``, where all hypotheses
    end. Captions are not empty and contain no ``<pad>``, ``<start>`` or ``<unk>``. The images of a
    batch are independent.

    With diverse beam search, each of the G groups is such a search with ``beam_size`` / G hypotheses.
    At every step, the groups choose one after the other, and words that earlier groups have chosen at
    this step are penalised (Hamming diversity, Vijayakumar et al. 2018, §4). The penalties count in the
    choice, not in the log-probabilities and scores of the results. The best caption of every group
    comes first, then the others.

    Args:
        decoder: in eval mode.
        annotations: after the neck.
        sampling: how hard attention chooses locations; None for its own options.

    Raises:
        ModelError: the decoder's scores are not numbers, or its vocabulary has no words.
        UsageError: several samples of a decoder that does not sample locations.
    """
    most = limits.MAX_ROWS // (decoding.beam_size * decoding.samples)
    if len(annotations) > most:
        rows = torch.arange(len(annotations), device=annotations.vectors.device)
        parts = [index_batch(annotations, part) for part in torch.split(rows, most)]
        return [beam for part in parts for beam in search(decoder, part, decoding, sampling)]
    decoder, groups = _over_samples(decoder, decoding.samples), decoding.diverse_groups
    results: list[Groups] = [[[] for _ in range(groups)] for _ in range(len(annotations))]
    finished = results  # of the images that are still in the batch
    beam = _empty_beam(decoder, annotations, sampling, groups)
    for length in range(1, decoding.max_length + 2):  # the end token counts
        logits, weights, state = decoder.step(beam.tokens[..., -1], beam.state)
        log_probs = _allowed_log_probs(logits, beam.tokens, length, decoding)  # (B, K, V)
        parents, last, totals, penalties = _extend(beam, log_probs, finished, length, decoding)
        size = decoding.beam_size // groups
        active = [row for row, lists in enumerate(finished) if any(len(g) < size for g in lists)]
        if not active or length > decoding.max_length:
            break

        index = parents * log_probs.shape[-1] + last
        added = (last, log_probs.flatten(1).gather(1, index), gather_rows(weights, parents))
        earlier = gather_rows((beam.tokens, beam.log_probs, beam.weights), parents)
        history = map_tensors(
            lambda old, new: torch.cat([old, new.unsqueeze(2)], 2), earlier, added
        )
        beam = Beam(state.reorder(parents), totals, penalties, *history)
        if len(finished) - len(active) >= COMPACT_SHARE * len(finished):
            beam, finished = _compact(beam, finished, active)

    if not all(map(any, results)):
        raise ModelError(
            "no caption can be written: the decoder's scores are NaN or infinite, or its vocabulary "
            "has no words: train it again with a smaller learning rate, or check the vocabulary"
        )
    return [_best_first(lists) for lists in results]


def _best_first(groups: Groups) -> list[Hypothesis]:
    """Sort the best hypothesis of each group, then the others, by score; repeated captions come last."""
    groups = [sorted(hypotheses, key=lambda h: -h.score) for hypotheses in groups]
    best = [h for hypotheses in groups for h in hypotheses[:1]]
    others = [h for hypotheses in groups for h in hypotheses[1:]]
    ranked = sorted(best, key=lambda h: -h.score) + sorted(others, key=lambda h: -h.score)
    first = {tuple(h.tokens): h for h in reversed(ranked)}
    return sorted(ranked, key=lambda h: first[tuple(h.tokens)] is not h)


def _empty_beam(
    decoder: Decoder, annotations: Annotations, sampling: Sampling | None, groups: int
) -> Beam:
    """Start with one empty hypothesis per image and group."""
    images, regions = annotations.vectors.shape[:2]
    totals = torch.zeros(images, groups, device=annotations.vectors.device)
    tokens = torch.full_like(totals, START, dtype=torch.long).unsqueeze(-1)
    log_probs, weights = (
        totals.new_zeros(*totals.shape, 0),
        totals.new_zeros(*totals.shape, 0, regions),
    )
    state = decoder.init_state(annotations, rows=groups, sampling=sampling)
    return Beam(state, totals, torch.zeros_like(totals), tokens, log_probs, weights)


def _extend(
    beam: Beam,
    log_probs: Float[Tensor, "B K V"],
    finished: list[Groups],
    length: int,
    decoding: Decoding,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Finish hypotheses and choose the next ones, one group after the other.

    Returns:
        Parents, words, totals and penalties of the next beam, (B, K) each.
    """
    groups, vocab = decoding.diverse_groups, log_probs.shape[-1]
    size, rows = decoding.beam_size // groups, log_probs.shape[1] // groups
    chosen = []
    counts = log_probs.new_zeros(len(log_probs), vocab)  # of the words of earlier groups
    for group in range(groups):
        first = group * rows
        extended = beam.totals[:, first : first + rows, None] + log_probs[:, first : first + rows]
        if group:
            extended = extended - decoding.diversity * counts.unsqueeze(1)
        # At most one extension of a hypothesis ends it, so K of the best 2K do not end.
        totals, index = extended.flatten(1).topk(min(2 * size, rows * vocab), dim=1)
        parents, last = index.div(vocab, rounding_mode="floor") + first, index % vocab
        penalties = beam.penalties.gather(1, parents) + decoding.diversity * counts.gather(1, last)

        ends = (last == END) & totals.isfinite()
        ends[:, size:] = False
        lists = [image[group] for image in finished]
        _finish(lists, beam, ends, parents, totals + penalties, length, decoding)

        # A vocabulary smaller than the beam has fewer extensions at first.
        totals, best = totals.masked_fill(last == END, -torch.inf).topk(min(size, last.shape[1]))
        parents, last, penalties = (part.gather(1, best) for part in (parents, last, penalties))
        chosen.append((parents, last, totals, penalties))
        if group + 1 < groups:  # a group that is done chooses no words
            searches = torch.tensor([len(h) < size for h in lists], device=totals.device)
            words = totals.isfinite() & searches.unsqueeze(1)
            counts = counts.scatter_add(1, last, words.to(counts.dtype))
    parents, last, totals, penalties = (torch.cat(parts, 1) for parts in zip(*chosen, strict=True))
    return parents, last, totals, penalties


def _allowed_log_probs(
    logits: Float[Tensor, "B K V"], tokens: Int[Tensor, "B K t"], length: int, decoding: Decoding
) -> Float[Tensor, "B K V"]:
    """Compute log-probabilities of the next word, -inf for words that must not follow."""
    log_probs = logits.float().log_softmax(-1)
    log_probs[..., [PAD, START, UNK]] = -torch.inf  # in place, to save memory
    if length > decoding.max_length:
        log_probs[..., :END] = log_probs[..., END + 1 :] = -torch.inf
    elif length <= decoding.min_length:  # the end would be word number ``length``
        log_probs[..., END] = -torch.inf
    run = decoding.no_repeat
    if run and tokens.shape[-1] >= run:
        runs = tokens.unfold(-1, run, 1)  # (B, K, t - run + 1, run)
        last = tokens[..., None, tokens.shape[-1] - run + 1 :]
        repeated = (runs[..., :-1] == last).all(-1)
        # Ban the words that would repeat a run. Where no run repeats, ban <pad>, which is always banned.
        log_probs.scatter_(-1, runs[..., -1].where(repeated, PAD), -torch.inf)
    return log_probs


def _finish(
    finished: list[list[Hypothesis]],
    beam: Beam,
    ends: Bool[Tensor, "B C"],
    parents: Int[Tensor, "B C"],
    totals: Float[Tensor, "B C"],
    length: int,
    decoding: Decoding,
) -> None:
    """Add the hypotheses of ``beam`` whose end is marked in ``ends`` to those of a group, best first."""
    image, row = ends.nonzero()[:, 0], parents[ends]
    ended = (image, totals[ends], beam.tokens[image, row, 1:], beam.log_probs[image, row])
    weights = beam.weights[image, row].float().cpu()
    lists = (part.tolist() for part in ended)
    size = decoding.beam_size // decoding.diverse_groups
    for number, total, tokens, log_probs, maps in zip(*lists, weights, strict=True):
        if len(finished[number]) < size:
            score = total / length**decoding.length_penalty
            finished[number].append(Hypothesis(tokens, log_probs, total, maps, score))


def _compact(beam: Beam, finished: list[Groups], active: list[int]) -> tuple[Beam, list[Groups]]:
    """Keep only the images in the ``active`` rows."""
    rows = torch.tensor(active, device=beam.totals.device)
    return index_batch(beam, rows), [finished[row] for row in active]


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
    decoder = _over_samples(decoder, samples)
    longest = max(map(len, captions))
    padded = [[START, *words, END, *[PAD] * (longest - len(words))] for words in captions]
    tokens = torch.tensor([padded], device=annotations.vectors.device)  # (1, R, T + 1)
    decoded = decoder(annotations, tokens[..., :-1], details=True)
    log_probs = decoded.logits.float().log_softmax(-1).gather(-1, tokens[..., 1:, None])[0, ..., 0]
    parts = (decoded.weights, decoded.centre, decoded.layers, decoded.past_weights)
    hypotheses = []
    for row, words in enumerate(captions):
        count = len(words)  # the step after the words predicts the end of the caption
        shown: list[Any] = [
            None if part is None else part[0, row, :count].float().cpu() for part in parts
        ]
        weights, centre, layers, past = shown
        past = None if past is None else past[..., :count]
        each, total = log_probs[row, :count].tolist(), float(log_probs[row, : count + 1].sum())
        score = total / (count + 1)
        hypotheses += [Hypothesis([*words], each, total, weights, score, centre, layers, past)]
    return hypotheses


def _over_samples(decoder: Decoder, samples: int) -> Decoder:
    return decoder if samples == 1 else MonteCarlo(decoder, samples)
