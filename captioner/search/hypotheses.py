"""The hypotheses of a beam search: how those in the beam grow, and what a finished one contains."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner import limits
from captioner.language.vocabulary import END, START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.monte_carlo import MonteCarlo
from captioner.models.tensors import gather_rows, index_batch, map_tensors
from captioner.search.options import Decoding


@dataclass(frozen=True)
class Hypothesis:
    """A finished caption as token ids.

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
class Extensions:
    """Hypotheses of the beam with one more word each: C for every image, the best first."""

    parents: Int[Tensor, "B C"]  # the row of the hypothesis in the beam
    words: Int[Tensor, "B C"]
    scores: Float[Tensor, "B C"]  # as in ``Beam``, with the new word

    @classmethod
    def best(cls, scores: Float[Tensor, "B K V"], count: int, first: int) -> "Extensions":
        """Return the ``count`` best extensions, or all; ``first`` is the row of the first hypothesis."""
        _, rows, vocab = scores.shape
        largest, index = scores.flatten(1).topk(min(count, rows * vocab))
        return cls(index.div(vocab, rounding_mode="floor") + first, index % vocab, largest)

    def continuing(self, count: int) -> "Extensions":
        """Return the best extensions that do not end the caption.

        With a small vocabulary there may be fewer than ``count``; scores of -inf fill the rest.
        """
        scores = self.scores.masked_fill(self.words == END, -torch.inf)
        scores, best = scores.topk(min(count, scores.shape[1]))
        return Extensions(self.parents.gather(1, best), self.words.gather(1, best), scores)


@dataclass(frozen=True)
class Beam:
    """The unfinished hypotheses: R of t words for each image, one group after the other."""

    state: Any  # of the decoder before it reads the last word
    scores: Float[
        Tensor, "B R"
    ]  # log-probabilities of the hypotheses, less the penalties of diversity
    totals: Float[Tensor, "B R"]  # log-probabilities of the hypotheses
    tokens: Int[Tensor, "B R s"]  # s = t + 1, from ``<start>``
    log_probs: Float[Tensor, "B R t"]
    weights: Float[Tensor, "B R t L"]

    @classmethod
    def empty(
        cls, decoder: Decoder, annotations: Annotations, rows: int, sampling: Sampling | None
    ) -> "Beam":
        """Return hypotheses without words: R = ``rows`` for each image."""
        images, regions = annotations.vectors.shape[:2]
        zeros = torch.zeros(images, rows, device=annotations.vectors.device)
        return cls(
            state=decoder.init_state(annotations, rows=rows, sampling=sampling),
            scores=zeros,
            totals=zeros,
            tokens=torch.full_like(zeros, START, dtype=torch.long).unsqueeze(-1),
            log_probs=zeros.new_zeros(images, rows, 0),
            weights=zeros.new_zeros(images, rows, 0, regions),
        )

    def extended(
        self, chosen: Extensions, log_probs: Float[Tensor, "B R V"], weights: Tensor, state: Any
    ) -> "Beam":
        """Return the beam of the chosen extensions; the other arguments are results of the step."""
        index = chosen.parents * log_probs.shape[-1] + chosen.words
        word_log_probs = log_probs.flatten(1).gather(1, index)
        totals = self.totals.gather(1, chosen.parents) + word_log_probs
        added = (chosen.words, word_log_probs, gather_rows(weights, chosen.parents))
        earlier = gather_rows((self.tokens, self.log_probs, self.weights), chosen.parents)
        history = map_tensors(
            lambda old, new: torch.cat([old, new.unsqueeze(2)], 2), earlier, added
        )
        return Beam(state.reorder(chosen.parents), chosen.scores, totals, *history)

    def finish(
        self,
        best: Extensions,
        log_probs: Float[Tensor, "B R V"],
        finished: list[list[Hypothesis]],
        decoding: Decoding,
    ) -> None:
        """Add the hypotheses that end among the best extensions to those of their image."""
        size = decoding.group_size
        ends = (best.words == END) & best.scores.isfinite()
        ends[:, size:] = False
        image, row = ends.nonzero()[:, 0], best.parents[ends]
        totals = self.totals[image, row] + log_probs[image, row, END]
        ended = (image, totals, self.tokens[image, row, 1:], self.log_probs[image, row])
        weights = self.weights[image, row].float().cpu()
        lists = (part.tolist() for part in ended)
        length = self.tokens.shape[-1]  # the end token counts
        for number, total, tokens, each, maps in zip(*lists, weights, strict=True):
            if len(finished[number]) < size:
                score = total / length**decoding.length_penalty
                finished[number].append(Hypothesis(tokens, each, total, maps, score))


def best_first(groups: Groups) -> list[Hypothesis]:
    """Sort the best hypothesis of each group, then the others, by score; repeated captions come last."""
    groups = [_ranked(hypotheses) for hypotheses in groups]
    best = [h for hypotheses in groups for h in hypotheses[:1]]
    others = [h for hypotheses in groups for h in hypotheses[1:]]
    ordered = _ranked(best) + _ranked(others)
    first = {tuple(h.tokens): h for h in reversed(ordered)}
    return sorted(ordered, key=lambda h: first[tuple(h.tokens)] is not h)


def _ranked(hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    return sorted(hypotheses, key=lambda h: -h.score)


def average_paths(decoder: Decoder, samples: int) -> Decoder:
    """Return a decoder whose probabilities are means over sampled paths of hard attention."""
    return decoder if samples == 1 else MonteCarlo(decoder, samples)


def in_parts(annotations: Annotations, rows: int) -> list[Annotations]:
    """Split images, with ``rows`` hypotheses each, so that ``limits.MAX_ROWS`` limits the memory."""
    most = max(1, limits.MAX_ROWS // rows)
    if len(annotations) <= most:
        return [annotations]
    images = torch.arange(len(annotations), device=annotations.vectors.device)
    return [index_batch(annotations, part) for part in torch.split(images, most)]
